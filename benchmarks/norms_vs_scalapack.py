"""Compare mxpeak's norms with ScaLAPACK's p?lange on the same local arrays, and the accuracy of both for fro in fp32.

    mpiexec -n 2 python benchmarks/norms_vs_scalapack.py --scalapack /path/to/libscalapack.so --out result.json

The ScaLAPACK library must have 32-bit integers and the MPI library that mpi4py loads, and mpiexec must belong to this
MPI library. Each rank uses one thread. In every round, each norm is computed by both libraries one after the other, and
the ranks read all bytes before mxpeak's norm. A time is that of the slowest rank from a barrier on. Rates are those of
the best round after one that is not counted, for the bytes of the complete matrix. Ratios are those of the best rounds,
and medians of the ratios of each round. "all" is one call of mxpeak for all four norms, and four calls of ScaLAPACK.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import mpi4py

mpi4py.rc.thread_level = "funneled"  # the level that mxpeak uses, which needs no locks

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402
from threadpoolctl import threadpool_info, threadpool_limits  # noqa: E402

import mxpeak as mx  # noqa: E402
from mxpeak.kernels.contract.norms import Tile  # noqa: E402
from mxpeak.kernels.host.engine.team import Team  # noqa: E402
from mxpeak.kernels.host.norms.norms import HostNorms  # noqa: E402
from mxpeak.layout.index_map import consecutive  # noqa: E402
from mxpeak.perf.host import environment, host_facts, software_facts  # noqa: E402

KINDS = {"max": b"M", "one": b"1", "inf": b"I", "fro": b"F"}
TYPES = {
    "d": ("float64", ctypes.c_double),
    "s": ("float32", ctypes.c_float),
    "z": ("complex128", ctypes.c_double),
    "c": ("complex64", ctypes.c_float),
}
RATIOS = ("scalapack_over_mxpeak", "share_of_read")
WORLD = MPI.COMM_WORLD
Row = dict[str, Any]


# --- ScaLAPACK --------------------------------------------------------------------------------------------------


class ScaLapack:
    """The required routines of ScaLAPACK on one BLACS grid of all ranks, numbered by rows."""

    def __init__(self, path: str, P: int, Q: int):
        self._lib = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        if len(mpis := {path.name for path in mapped() if re.match(r"lib(mpi|mpich)\.so", path.name)}) > 1:
            sys.exit(f"{path} and mpi4py load different MPIs, {' and '.join(sorted(mpis))}; both have to use the same")
        context, rows, columns, p, q = (ctypes.c_int() for _ in range(5))
        self._lib.blacs_get_(*integers(-1, 0), ctypes.byref(context))  # the default context with all ranks
        self._lib.blacs_gridinit_(ctypes.byref(context), b"Row", *integers(P, Q), ctypes.c_size_t(3))
        self._lib.blacs_gridinfo_(*map(ctypes.byref, (context, rows, columns, p, q)))
        self.context, self.P, self.Q, self.p, self.q = (x.value for x in (context, rows, columns, p, q))

    def local_shape(self, n: int, nb: int) -> tuple[int, int]:
        """Return the shape of this process's part of an n×n matrix."""
        return (
            self._lib.numroc_(*integers(n, nb, self.p, 0, self.P)),
            self._lib.numroc_(*integers(n, nb, self.q, 0, self.Q)),
        )

    def norm(self, letter: str, kind: str, local: Any, desc: list[int], work: Any) -> float:
        """Return the norm of the complete matrix by P?LANGE. Collective."""
        lange = getattr(self._lib, f"p{letter}lange_")
        lange.restype = TYPES[letter][1]
        m, n, one = integers(desc[2], desc[3], 1)
        descriptor = (ctypes.c_int * len(desc))(*desc)
        return float(lange(KINDS[kind], m, n, pointer(local), one, one, descriptor, pointer(work), ctypes.c_size_t(1)))

    def lapack_version(self) -> str | None:
        """Return the version of the LAPACK library that ScaLAPACK calls."""
        if not hasattr(self._lib, "ilaver_"):
            return None
        numbers = [ctypes.c_int() for _ in range(3)]
        self._lib.ilaver_(*map(ctypes.byref, numbers))
        return ".".join(str(number.value) for number in numbers)


def integers(*values: int) -> list[Any]:
    return [ctypes.byref(ctypes.c_int(value)) for value in values]


def pointer(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def mapped() -> set[Path]:
    """Return the shared libraries of this process, if the operating system lists them."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    return {Path(line.split()[-1]) for line in lines if ".so" in line}


def loaded() -> Row:
    """Return the loaded libraries of ScaLAPACK, BLAS and MPI, except those of NumPy and SciPy."""
    known = re.compile(r"lib(mpi|scalapack|blas|lapack|openblas|blis|flame|mkl|atlas)")
    names = {path.name for path in mapped() if known.match(path.name) and "site-packages" not in path.parts}
    blas = [
        {key: info.get(key) for key in ("internal_api", "version", "architecture", "num_threads")}
        for info in threadpool_info()
        if info["user_api"] == "blas" and "site-packages" not in info["filepath"]
    ]
    return {
        "libraries": sorted(names),
        "blas": blas or "reference BLAS, or none that threadpoolctl knows",
        "mpi": MPI.Get_library_version().split("\n")[0].strip(),
    }


# --- measuring --------------------------------------------------------------------------------------------------


class Case:
    """A matrix in the form of both libraries, with entries between -1 and 1, or ones."""

    def __init__(self, scalapack: ScaLapack, letter: str, n: int, nb: int, fill: str = "random"):
        shape = scalapack.local_shape(n, nb)
        self.local = np.ones(shape, TYPES[letter][0], "F")
        if fill == "random":
            rng = np.random.default_rng([n, WORLD.rank])
            columns = self.local.T.view(self.local.real.dtype)  # alternating real and imaginary parts
            for column in columns:
                column[:] = 2 * rng.random(column.size, column.dtype) - 1
        desc = [1, scalapack.context, n, n, nb, nb, 0, 0, max(1, shape[0])]
        work = np.empty(max(1, *shape), self.local.real.dtype)
        self.bytes = n * n * self.local.itemsize
        self.lange = partial(scalapack.norm, letter, local=self.local, desc=desc, work=work)
        self.matrix = mx.from_scalapack(self.local, desc, grid=(scalapack.P, scalapack.Q), comm=WORLD)

    def norm(self, kind: str) -> float:
        return float(mx.norm(self.matrix, kind, threads=1))


def slowest(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the time of the slowest rank, and the result."""
    WORLD.Barrier()
    begin = time.perf_counter()
    found = call()
    elapsed = time.perf_counter() - begin
    return WORLD.allreduce(elapsed, MPI.MAX), found


def rates(args: argparse.Namespace, scalapack: ScaLapack) -> Iterator[Row]:
    """Measure each norm by both libraries, all four norms in one call, and the time to read the matrix."""
    for letter in args.types.split(","):
        case = Case(scalapack, letter, args.n, args.nb)
        m, n = case.local.shape
        tile, kernels = Tile(case.local, consecutive(m), consecutive(n), 0, 0), HostNorms(Team(1))
        read = partial(kernels.read_all, [tile])
        calls: dict[str, Callable[[], Any]] = {}
        for kind in KINDS:
            calls[f"scalapack {kind}"] = partial(case.lange, kind)
            calls[f"read {kind}"], calls[f"mxpeak {kind}"] = read, partial(case.norm, kind)
        calls["read all"], calls["mxpeak all"] = read, partial(mx.norms, case.matrix, threads=1)
        times: dict[str, list[float]] = {who: [] for who in calls}
        values: dict[str, Any] = {}
        for round_ in range(args.repeat + 1):
            for who, call in calls.items():
                elapsed, values[who] = slowest(call)
                if round_:
                    times[who].append(elapsed)
        times["scalapack all"] = [sum(found) for found in zip(*(times[f"scalapack {kind}"] for kind in KINDS))]
        row: Row = {"type": letter, "n": args.n, "bytes": case.bytes}
        for who in ("scalapack", "mxpeak", "read"):
            row[f"{who}_bytes_s"] = {kind: case.bytes / min(times[f"{who} {kind}"]) for kind in (*KINDS, "all")}
        for name, over in zip(RATIOS, ("scalapack", "read")):
            pairs = {kind: (times[f"{over} {kind}"], times[f"mxpeak {kind}"]) for kind in (*KINDS, "all")}
            row[name] = {kind: min(x) / min(y) for kind, (x, y) in pairs.items()}
            row[f"{name}_median"] = {
                kind: statistics.median(t / u for t, u in zip(x, y)) for kind, (x, y) in pairs.items()
            }
        row["relative_difference"] = {
            kind: abs(values[f"scalapack {kind}"] / values[f"mxpeak {kind}"] - 1) for kind in KINDS
        }
        row["times_s"] = times
        say(f"p{letter}lange n = {args.n}  read {max(row['read_bytes_s'].values()) / 1e9:.1f} GB/s")
        for kind in (*KINDS, "all"):
            theirs, mine = (row[f"{who}_bytes_s"][kind] / 1e9 for who in ("scalapack", "mxpeak"))
            ratio, share = (f"{row[of][kind]:5.2f} ({row[f'{of}_median'][kind]:5.2f})" for of in RATIOS)
            say(f"  {kind:4} ScaLAPACK {theirs:6.2f}  mxpeak {mine:6.2f} GB/s  ratio {ratio}  of read {share}")
        yield row


def accuracy(args: argparse.Namespace, scalapack: ScaLapack) -> Iterator[Row]:
    """Measure relative errors of fro in fp32 (SLATE Working Note 9, appendix B.2)."""
    for fill in ("random", "ones"):
        for n in map(int, args.accuracy_n.split(",")):
            case = Case(scalapack, "s", n, args.nb, fill)
            exact = np.sqrt(WORLD.allreduce(sum_of_squares(case.local)))
            values = {"scalapack": case.lange("fro"), "mxpeak": case.norm("fro")}
            errors = {who: float(abs(np.longdouble(value) - exact) / exact) for who, value in values.items()}
            say(
                f"fro fp32 {fill:6} n = {n:6d}  exact {float(exact):.9e}  relative error  "
                f"ScaLAPACK {errors['scalapack']:.1e}  mxpeak {errors['mxpeak']:.1e}"
            )
            yield {"type": "s", "fill": fill, "n": n, "exact": float(exact), **values, "relative_error": errors}


def sum_of_squares(local: Any) -> Any:
    """Return the sum of squares of fp32 numbers.

    Each square is exact in fp64, and the sum has extended precision if the machine has it.
    """
    total = np.longdouble(0)
    for column in local.T:
        total += np.square(column, dtype=np.float64).astype(np.longdouble).sum()
    return total


def say(text: str) -> None:
    if WORLD.rank == 0:
        print(text, flush=True)


SECTIONS: dict[str, Callable[[argparse.Namespace, ScaLapack], Iterator[Row]]] = {"rates": rates, "accuracy": accuracy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scalapack", required=True)
    parser.add_argument("-N", "--n", type=int, default=10000)
    parser.add_argument("--nb", type=int, default=256)
    parser.add_argument("--grid", default="2x1")
    parser.add_argument("--types", default="d,s,z,c")
    parser.add_argument("--accuracy-n", default="1000,2000,5000,10000,20000")
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    P, Q = map(int, args.grid.split("x"))
    if WORLD.size != P * Q:
        sys.exit(f"grid {P}x{Q} takes {P}*{Q} = {P * Q} ranks, but there are {WORLD.size}; say mpiexec -n {P * Q}")
    scalapack = ScaLapack(args.scalapack, P, Q)
    with threadpool_limits(1, user_api="blas"):
        facts = {
            "command": re.sub(
                r"--scalapack \S+",
                "--scalapack libscalapack.so",
                re.sub(r" --out \S+", "", f"mpiexec -n {P * Q} python {' '.join(sys.argv)}"),
            ),
            "grid": args.grid,
            "ranks": P * Q,
            "threads": 1,
            "nb": args.nb,
            "repeat": args.repeat,
            "load_average": os.getloadavg(),
            "scalapack": {**loaded(), "lapack_version": scalapack.lapack_version()},
            "environment": environment(),
            "machine": host_facts(),
            "software": software_facts(),
        }
        say(json.dumps(facts["scalapack"]))
        found = {section: list(SECTIONS[section](args, scalapack)) for section in args.sections.split(",")}
    if args.out and WORLD.rank == 0:
        args.out.write_text(json.dumps({**facts, "sections": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

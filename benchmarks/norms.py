"""mxpeak's norms beside what memory gives, and beside NumPy and SciPy: calls interleaved in one process, bests of each.

    python benchmarks/norms.py --sections general,structured,deterministic,vectors,peers,small --out result.json

Matrices are square and take at least 800 MB, random and of both signs; order F is the transposed view of the one in
order C.  In each round every contender runs once, right after a reading of all bytes by the same threads.  Ratios are
those of bests (each the best of the rounds after one that is not counted) and medians of the rounds' own.  NumPy and
SciPy, which take seconds, get --peer-repeat rounds, and ratios of bests only; their BLAS's threads go on spinning for a
moment, so there is a pause between calls.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import sys
import time
import timeit
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import scipy.linalg

import mxpeak as mx
from mxpeak.kernels.contract.norms import Tile
from mxpeak.kernels.host.engine.blas import blas_facts
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.norms.norms import HostNorms
from mxpeak.layout.index_map import consecutive
from mxpeak.perf.host import environment, host_facts, one_core_each, software_facts

KINDS = ("max", "one", "inf", "fro")
DTYPES = ("float64", "float32", "complex128", "complex64", "float16", "bfloat16")
MIN_BYTES = 800e6
SMALL = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
PAUSE_S = 0.1
#: A small matrix is called so often at a time, several times over.
SAMPLE_S, SAMPLES = 0.01, 7
NUMPY: dict[str, Callable[[Any], Any]] = {
    "max": lambda A: np.abs(A).max(),
    "one": lambda A: np.linalg.norm(A, 1),
    "inf": lambda A: np.linalg.norm(A, np.inf),
    "fro": lambda A: np.linalg.norm(A, "fro"),
}
SCIPY = {"one": 1, "inf": np.inf, "fro": "fro"}
#: Of a vector, max and inf are the same.
VECTOR_KINDS = ("max", "one", "fro")
RATIOS = ("ratio", "ratio_median")
Row = dict[str, Any]
Contenders = Mapping[str, Callable[[], Any]]


# --- measuring --------------------------------------------------------------------------------------------------


def rounds(contenders: Contenders, repeat: int, pause: float = 0.0) -> dict[str, list[float]]:
    """Seconds of every contender, one after the other in every round."""
    times: dict[str, list[float]] = {who: [] for who in contenders}
    for _ in range(repeat):
        for who, call in contenders.items():
            time.sleep(pause)
            begin = time.perf_counter()
            call()
            times[who].append(time.perf_counter() - begin)
    return times


def beside(contenders: Contenders, other: Callable[[], Any], repeat: int) -> dict[str, Row]:
    """Each contender, and `other` right before it: the bests of both, their ratio, and the median of the rounds' own.

    What memory gives changes within seconds where machines are shared: the median compares neighbours in time only.
    """
    calls: dict[str, Callable[[], Any]] = {}
    for who, call in contenders.items():
        calls[f"other before {who}"], calls[who] = other, call
    rounds(calls, 1)
    times, rows = rounds(calls, repeat), {}
    for who in contenders:
        others, own = times[f"other before {who}"], times[who]
        rows[who] = {
            "best_s": min(own),
            "other_s": min(others),
            "ratio": min(others) / min(own),
            "ratio_median": statistics.median(x / y for x, y in zip(others, own)),
        }
    return rows


def reading(A: Any, team: Team) -> Callable[[], Any]:
    """A call that reads all bytes of A."""
    kernels, tile = HostNorms(team), Tile(A, consecutive(A.shape[0]), consecutive(A.shape[1]), 0, 0)
    return lambda: kernels.read_all([tile])


def random_matrix(n: int, dtype: str) -> Any:
    """Numbers between -1 and 1, made by rows: no second array of that size."""
    rng = np.random.default_rng(n)
    A = np.empty((n, n), getattr(ml_dtypes, dtype, dtype))
    for i in range(0, n, 256):
        rows = A[i : i + 256]
        numbers = rng.random((*rows.shape, 2 if A.dtype.kind == "c" else 1), np.float32 if A.itemsize < 8 else float)
        numbers = 2 * numbers - 1
        rows[:] = numbers[..., 0] + 1j * numbers[..., 1] if A.dtype.kind == "c" else numbers[..., 0]
    return A


def matrices(args: argparse.Namespace, dtypes: tuple[str, ...]) -> Iterator[tuple[Row, Any]]:
    """What each row says of its matrix, and the matrix; one at a time is in memory."""
    for dtype in dtypes:
        if dtype in args.dtypes.split(","):
            itemsize = np.dtype(getattr(ml_dtypes, dtype, dtype)).itemsize
            n = args.n or math.ceil(math.sqrt(MIN_BYTES / itemsize))
            A = random_matrix(n, dtype)
            yield {"dtype": dtype, "n": n, "bytes": A.nbytes}, A


def ordered(A: Any) -> Iterator[tuple[str, Any]]:
    yield from (("C", A), ("F", A.T))


def values(found: Mapping[str, Row], what: str) -> dict[str, float]:
    return {kind: row[what] for kind, row in found.items()}


# --- sections ---------------------------------------------------------------------------------------------------


def general(args: argparse.Namespace) -> Iterator[Row]:
    """Every type and order: GB/s of each norm, its share of reading, and all four in one call."""
    team = Team(args.threads)
    for facts, A in matrices(args, DTYPES):
        contenders: dict[str, Callable[[], Any]] = {}
        for order, X in ordered(A):
            for kind in KINDS:
                contenders[f"{order} {kind}"] = partial(mx.norm, X, kind, threads=args.threads)
            contenders[f"{order} all"] = partial(mx.norms, X, threads=args.threads)
        times = beside(contenders, reading(A, team), args.repeat)
        for order, _ in ordered(A):
            row_of = {kind: times[f"{order} {kind}"] for kind in (*KINDS, "all")}
            row = {
                **facts,
                "order": order,
                **of_reading(row_of, A.nbytes),
                "all_over_slowest": over_others(row_of, max),
                "all_over_mean": over_others(row_of, statistics.mean),
            }
            show(f"general {facts['dtype']} {order}", row)
            yield row


def of_reading(row_of: Mapping[str, Row], nbytes: int) -> Row:
    """Rates, and shares of the rate of reading."""
    return {
        "read_bytes_s": nbytes / min(values(row_of, "other_s").values()),
        "times_s": values(row_of, "best_s"),
        "bytes_s": {kind: nbytes / t for kind, t in values(row_of, "best_s").items()},
        "share_of_read": values(row_of, "ratio"),
        "share_of_read_median": values(row_of, "ratio_median"),
    }


def over_others(row_of: Mapping[str, Row], which: Callable[[list[float]], float]) -> dict[str, float]:
    """The time of all four in one call over the largest (mean) one's: of bests, and of medians in readings."""
    best, units = values(row_of, "best_s"), {kind: 1 / x for kind, x in values(row_of, "ratio_median").items()}
    return {
        "of_bests": best["all"] / which([best[kind] for kind in KINDS]),
        "of_medians": units["all"] / which([units[kind] for kind in KINDS]),
    }


def show(head: str, row: Row) -> None:
    cells = {
        kind: f"{rate / 1e9:5.1f} ({row['share_of_read'][kind]:.2f} {row['share_of_read_median'][kind]:.2f})"
        for kind, rate in row["bytes_s"].items()
    }
    for name in ("all_over_slowest", "all_over_mean"):
        if name in row:
            cells[name.replace("_over_", "/")] = f"{row[name]['of_bests']:.2f} {row[name]['of_medians']:.2f}"
    line(f"{head:28} read {row['read_bytes_s'] / 1e9:5.1f} GB/s", cells)


def structured(args: argparse.Namespace) -> Iterator[Row]:
    """Triangles: each norm's time over that of reading half of the matrix."""
    team = Team(args.threads)
    for facts, A in matrices(args, ("float64", "float32", "complex128")):
        names = ("symmetric", "triangular", *(("hermitian",) if A.dtype.kind == "c" else ()))
        cases = [(name, uplo) for name in names for uplo in ("lower", "upper")]
        contenders: dict[str, Callable[[], Any]] = {}
        for name, uplo in cases:
            options = {"structure": name, "uplo": uplo, "threads": args.threads}
            for kind in KINDS:
                contenders[f"{name} {uplo} {kind}"] = partial(mx.norm, A, kind, **options)
            contenders[f"{name} {uplo} all"] = partial(mx.norms, A, **options)
        times = beside(contenders, reading(A, team), args.repeat)
        for name, uplo in cases:
            row_of = {kind: times[f"{name} {uplo} {kind}"] for kind in (*KINDS, "all")}
            over, median = ({kind: 2 / x for kind, x in values(row_of, what).items()} for what in RATIOS)
            line(f"structured {facts['dtype']:10} {name:10} {uplo}", both(over, median))
            yield {
                **facts,
                "order": "C",
                "structure": name,
                "uplo": uplo,
                "times_s": values(row_of, "best_s"),
                "read_s": min(values(row_of, "other_s").values()),
                "over_reading_half": over,
                "over_reading_half_median": median,
            }


def both(of_bests: Mapping[str, float], medians: Mapping[str, float]) -> dict[str, str]:
    return {kind: f"{x:.2f} ({medians[kind]:.2f})" for kind, x in of_bests.items()}


def deterministic(args: argparse.Namespace) -> Iterator[Row]:
    """What bits that depend on the matrix alone cost."""
    for facts, A in matrices(args, ("float64", "float32", "complex128")):
        for order, X in ordered(A):
            row_of: dict[str, Row] = {}
            for kind in KINDS:
                plain = partial(mx.norm, X, kind, threads=args.threads)
                row_of |= beside({kind: partial(plain, deterministic=True)}, plain, args.repeat)
            over, median = ({kind: 1 / x for kind, x in values(row_of, what).items()} for what in RATIOS)
            line(f"deterministic {facts['dtype']:10} {order}", both(over, median))
            yield {
                **facts,
                "order": order,
                "plain_s": values(row_of, "other_s"),
                "times_s": values(row_of, "best_s"),
                "over_plain": over,
                "over_plain_median": median,
            }


def vectors(args: argparse.Namespace) -> Iterator[Row]:
    """Norms of all columns and of all rows."""
    team = Team(args.threads)
    for facts, A in matrices(args, ("float64", "float32", "complex128")):
        contenders: dict[str, Callable[[], Any]] = {}
        for order, X in ordered(A):
            for by, norms in (("columns", mx.column_norms), ("rows", mx.row_norms)):
                for kind in VECTOR_KINDS:
                    contenders[f"{order} {by} {kind}"] = partial(norms, X, kind, threads=args.threads)
        times = beside(contenders, reading(A, team), args.repeat)
        for order, _ in ordered(A):
            for by in ("columns", "rows"):
                found = {kind: times[f"{order} {by} {kind}"] for kind in VECTOR_KINDS}
                row = {**facts, "order": order, "by": by, **of_reading(found, A.nbytes)}
                show(f"vectors {facts['dtype']} {order} {by}", row)
                yield row


def peers(args: argparse.Namespace) -> Iterator[Row]:
    """NumPy's and SciPy's times over mxpeak's."""
    for facts, A in matrices(args, ("float64", "float32")):
        for order, X in ordered(A):
            calls: dict[str, Callable[[], Any]] = {}
            for kind in KINDS:
                calls[f"mxpeak {kind}"] = partial(mx.norm, X, kind, threads=args.threads)
                calls[f"numpy {kind}"] = partial(NUMPY[kind], X)
                if kind in SCIPY:
                    calls[f"scipy {kind}"] = partial(scipy.linalg.norm, X, SCIPY[kind])
                    calls[f"scipy unchecked {kind}"] = partial(scipy.linalg.norm, X, SCIPY[kind], check_finite=False)
            rounds({who: call for who, call in calls.items() if who.startswith("mxpeak")}, 1)
            times = {who: min(t) for who, t in rounds(calls, args.peer_repeat, PAUSE_S).items()}
            row = {**facts, "order": order, "rounds": args.peer_repeat, "times_s": times}
            for who in ("numpy", "scipy", "scipy unchecked"):
                over = {
                    kind: times[f"{who} {kind}"] / times[f"mxpeak {kind}"] for kind in KINDS if f"{who} {kind}" in times
                }
                row[f"{who.replace(' ', '_')}_over_mxpeak"] = over
                line(
                    f"peers {facts['dtype']} {order} {who:15} / mxpeak", {kind: f"{x:.1f}" for kind, x in over.items()}
                )
            row["numpy_relative_difference"] = {
                kind: abs(float(NUMPY[kind](X)) / mx.norm(X, kind, threads=args.threads) - 1) for kind in KINDS
            }
            yield row


def small(args: argparse.Namespace) -> Iterator[Row]:
    """Microseconds a call, both with the overhead of Python."""
    for dtype in ("float64", "float32", "complex128"):
        for n in SMALL:
            A = random_matrix(n, dtype)
            row: Row = {"dtype": dtype, "n": n, "mxpeak_s": {}, "numpy_s": {}}
            for kind in KINDS:
                calls = {"mxpeak_s": partial(mx.norm, A, kind), "numpy_s": partial(NUMPY[kind], A)}
                samples: dict[str, list[float]] = {who: [] for who in calls}
                for call in calls.values():
                    call()
                numbers = {who: 1 + int(SAMPLE_S / timeit.timeit(call, number=3) * 3) for who, call in calls.items()}
                for _ in range(SAMPLES):
                    for who, call in calls.items():
                        samples[who].append(timeit.timeit(call, number=numbers[who]) / numbers[who])
                for who, found in samples.items():
                    row[who][kind] = min(found)
            row["numpy_over_mxpeak"] = {kind: row["numpy_s"][kind] / row["mxpeak_s"][kind] for kind in KINDS}
            line(
                f"small {dtype:10} n = {n:3d} us mxpeak/numpy",
                {kind: f"{1e6 * row['mxpeak_s'][kind]:6.1f}/{1e6 * row['numpy_s'][kind]:6.1f}" for kind in KINDS},
            )
            yield row


def line(head: str, values: Mapping[str, str]) -> None:
    print(f"{head:42}", "  ".join(f"{name} {value}" for name, value in values.items()), flush=True)


SECTIONS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    section.__name__: section for section in (general, structured, deterministic, vectors, peers, small)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("-N", "--n", type=int, help="order of the matrices (default: the least that takes 800 MB)")
    parser.add_argument("--threads", type=int, default=len(one_core_each()))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--peer-repeat", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if unknown := set(args.sections.split(",")) - set(SECTIONS):
        parser.error(f"unknown sections {', '.join(sorted(unknown))}; choose from {', '.join(SECTIONS)}")
    facts = {
        "command": re.sub(r" --out \S+", "", " ".join(["python", *sys.argv])),
        "threads": args.threads,
        "repeat": args.repeat,
        "peer_repeat": args.peer_repeat,
        "load_average": os.getloadavg(),
        "environment": environment(),
        "machine": host_facts(),
        "software": software_facts(),
        "scipy_blas": blas_facts(),
    }
    found = {section: list(SECTIONS[section](args)) for section in args.sections.split(",")}
    if args.out:
        args.out.write_text(json.dumps({**facts, "sections": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

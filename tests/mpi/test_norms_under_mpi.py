"""Run the checks of norms over virtual ranks on MPI ranks, with a user's mpi4py communicator."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from mxpeak.configs.norms import KINDS, STRUCTURES
from mxpeak.errors import UsageError
from mxpeak.layout.grid import ProcessGrid
from tests.support.exact_norms import cases, poisoned
from tests.support.norm_ranks import all_norms, blocks, check, laid, scalapack_array, scalapack_part, size_of
from tests.support.norm_tiles import TYPES, random_values
from tests.support.ranks import MPIEXEC, PYTHON, StandingRanks, commands_here, needs_mpi
from tests.support.roundoff import U

pytestmark = needs_mpi


def check_scalapack(comm: Any) -> None:
    """Check every structure on every grid of these ranks, from ScaLAPACK's layout with any source process."""
    rng, size = np.random.default_rng(20261121), comm.Get_size()
    for P in (P for P in range(1, size + 1) if size % P == 0):
        Q, order = size // P, "column" if P == 2 else "row"
        for turn, name in enumerate(STRUCTURES):
            options = cases(name)[turn % len(cases(name))]
            dtype = TYPES[("float64", "complex64", "bfloat16")[turn % 3]]
            A = poisoned(random_values(rng, size_of(name), dtype), name, **options)
            desc = [1, 0, *A.shape, 3, 2, P - 1, Q // 2, 20]
            part = scalapack_part(A, desc, (P, Q), *ProcessGrid(P, Q, order).coords(comm.Get_rank()))
            local = scalapack_array(part, 20, flat=comm.Get_rank() == 0)
            M = mx.from_scalapack(local, desc, grid=(P, Q), comm=comm, order=order)
            check(comm.allgather(all_norms(M, structure=name, **options)), A, name, **options)


def check_tiles(comm: Any) -> None:
    """Check every structure, from tiles on any rank."""
    rng, rank, size = np.random.default_rng(20261121), comm.Get_rank(), comm.Get_size()
    for turn, name in enumerate(STRUCTURES):
        m, n = size_of(name)
        heights, widths = (5, 1, 0, m - 6), (2, n - 6, 4)
        options = cases(name)[-1]
        dtype = TYPES[("complex64", "bfloat16", "float64")[turn % 3]]
        A = poisoned(random_values(rng, (m, n), dtype), name, **options)
        owners = rng.integers(size, size=(4, 3))
        mine = {at: laid(tile, turn + rank) for at, tile in blocks(A, heights, widths).items() if owners[at] == rank}
        M = mx.from_tiles(mine, heights, widths, comm=comm)
        check(comm.allgather(all_norms(M, structure=name, **options)), A, name, **options)


def check_ends_of_the_range(comm: Any) -> None:
    """Check large numbers on one rank and small ones on another, NaN on one and Inf on another, and empty matrices."""
    rank, size = comm.Get_rank(), comm.Get_size()

    def stacked(value: float) -> Any:
        return mx.from_tiles({(rank, 0): np.full((1, 1), value)}, [1] * size, [1], comm=comm)

    for deterministic in (False, True):
        options: dict[str, Any] = {"deterministic": deterministic, "threads": 1}
        large = mx.norm(stacked(3e300 if rank == 0 else 4e300 if rank == 1 else 1e-300), "fro", **options)
        assert large == pytest.approx(5e300, rel=8 * U)  # square, sum and root of a few numbers
        small = mx.norm(stacked(1e-300), "fro", **options)
        assert small == pytest.approx(math.sqrt(size) * 1e-300, rel=8 * U)
        for culprit in range(size):
            odd = stacked(np.nan if rank == culprit else -np.inf if rank == (culprit + 1) % size else 1.0)
            assert all(map(math.isnan, mx.norms(odd, **options)))
            odd = stacked(np.inf if rank == culprit else 1.0)
            assert all(map(math.isinf, mx.norms(odd, **options)))
    for m, n in ((0, 0), (0, 3), (3, 0)):
        norms, same, by_row, by_column = all_norms(mx.from_tiles({}, [m], [n], comm=comm))
        assert norms == same == (0.0, 0.0, 0.0, 0.0)
        assert (len(by_row), len(by_column)) == (m, n)


def check_mistakes(comm: Any) -> None:
    """Check that an error on the last rank ends the call on all ranks."""
    rank, size = comm.Get_rank(), comm.Get_size()
    last = rank == size - 1
    with pytest.raises(UsageError) as error:
        mx.from_tiles({(rank, 0): np.ones((3 if last else 2, 2))}, [2] * size, [2], comm=comm)
    assert str(error.value).startswith(f"rank {size - 1}: ")
    local = np.ones((1, 1) if last else (2, 2))
    with pytest.raises(UsageError) as error:
        mx.from_scalapack(local, [1, 0, 2 * size, 2, 2, 2, 0, 0, 2], grid=(size, 1), comm=comm)
    assert str(error.value).startswith(f"rank {size - 1}: ")
    with pytest.raises(UsageError, match=f"the communicator has {size}"):
        mx.from_scalapack(np.ones((2, 2)), [1, 0, 2, 2, 2, 2, 0, 0, 2], grid=(size, 2), comm=comm)


def check_many(comm: Any) -> None:
    """Create more matrices than MPI has communicators, which are a few thousand."""
    size = comm.Get_size()
    for _ in range(700):
        M = mx.from_scalapack(np.ones((2, 2)), [1, 0, 2 * size, 2, 2, 2, 0, 0, 2], grid=(size, 1), comm=comm)
        assert mx.norm(M, "one", threads=1) == 2 * size
        T = mx.from_tiles({(comm.Get_rank(), 0): np.ones((1, 3))}, [1] * size, [3], comm=comm)
        assert mx.norm(T, "inf", threads=1) == 3.0


CHECKS = {
    function.__name__: function
    for function in (check_scalapack, check_tiles, check_ends_of_the_range, check_mistakes, check_many)
}


def main(*names: str) -> None:
    """Run checks as one rank of MPI's world."""
    from mpi4py import MPI

    for name in names:
        CHECKS[name](MPI.COMM_WORLD)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compile for all types once, so that the ranks need not do so."""
    for dtype in TYPES.values():
        all_norms(np.ones((2, 2), dtype), structure="hermitian")


@pytest.mark.parametrize("size", [2, 4])
def test_distributed_matrices_have_the_norms_of_the_whole_and_mistakes_reach_all_ranks(
    standing: dict[int, StandingRanks], size: int
) -> None:
    standing[size].call(__name__, "main", "check_scalapack", "check_tiles", "check_ends_of_the_range", "check_mistakes")


def test_matrices_do_not_use_up_mpis_communicators(standing: dict[int, StandingRanks]) -> None:
    standing[2].call(__name__, "main", "check_many")


def test_the_benchmark_measures_the_norms_of_one_process(tmp_path: Path, standing: dict[int, StandingRanks]) -> None:
    command = [
        "run",
        "norms",
        "-N",
        "60",
        "--nb",
        "8",
        "--structure",
        "general,hermitian",
        "--dtype",
        "complex128",
        "--kind",
        "all",
    ]
    command += ["--threads", "1", "--warmup", "none", "--json", "-", "--quiet"]
    single = commands_here({"one": command}, tmp_path)["one"]
    two = standing[2].run({"two": [*command, "--layout", "tiles"]}, tmp_path)["two"]
    for ended in (single, two):
        ended.check(0)
    for a, b in zip(single.body["results"], two.body["results"], strict=True):
        assert a["status"] == b["status"] == "valid"
        assert (b["problem"]["P"], b["problem"]["Q"]) == (1, 2)
        assert set(b["result"]["values"]) == set(KINDS)
        for kind, value in a["result"]["values"].items():  # sums of up to n·n terms, each rounded
            assert b["result"]["values"][kind] == pytest.approx(value, rel=60 * 60 * U)


@pytest.mark.parametrize("size", [2, 4])
def test_the_options_of_the_benchmark_work_under_mpi(
    tmp_path: Path, standing: dict[int, StandingRanks], size: int
) -> None:
    """Columns, rows, transposes, tiles of several sizes, and NaN and infinity; a prime size."""
    command = ["run", "norms", "-N", "61", "-m", "53", "--layout", "tiles", "--tiles", "8+3+1,100", "--kind", "one,fro"]
    command += ["--scope", "matrix,columns,rows", "--trans", "n,t", "--extended", "--threads", "1", "--warmup", "none"]
    command += ["--json", "-", "--quiet"]
    single = commands_here({"one": command}, tmp_path)["one"]
    many = standing[size].run({"many": command}, tmp_path)["many"]
    for ended in (single, many):
        ended.check(0)
    for a, b in zip(single.body["results"], many.body["results"], strict=True):
        assert a["status"] == b["status"] == "valid"
        assert b["problem"]["P"] * b["problem"]["Q"] == size
        assert all(check["passed"] for check in b["validation"]["extended"])
        exact = a["problem"]["scope"] != "matrix"  # norms of vectors are bitwise identical on every grid
        assert b["result"]["value"] == pytest.approx(a["result"]["value"], rel=0 if exact else 61 * 61 * U, abs=0)


@pytest.mark.parametrize("ranks", [2, 4])
def test_norms_are_those_of_an_installed_scalapack_or_the_result_states_why_not(tmp_path: Path, ranks: int) -> None:
    """SCALAPACK_FOLDER names a folder with a library; a link gives MPICH's library the name that Debian's has."""
    mpi = Path(sys.prefix) / "lib" / "libmpi.so.12"
    if mpi.exists():
        (tmp_path / "libmpich.so.12").symlink_to(mpi)
    folders = [str(tmp_path), os.environ.get("SCALAPACK_FOLDER", ""), os.environ.get("LD_LIBRARY_PATH", "")]
    command = [
        "run",
        "norms",
        "-N",
        "61",
        "-m",
        "53",
        "--nb",
        "8",
        "--layout",
        "F",
        "--kind",
        "all",
        "--warmup",
        "none",
    ]
    command += ["--dtype", "float64,float32,complex128,complex64", "--threads", "1", "--json", "-", "--quiet"]
    ended = subprocess.run(
        [str(MPIEXEC), "-n", str(ranks), *PYTHON, *command, "--scalapack", "auto"],
        cwd=tmp_path,
        env={**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, folders))},
        capture_output=True,
        text=True,
        timeout=300.0,
    )
    assert ended.returncode == 0, ended.stderr
    for result in json.loads(ended.stdout)["results"]:
        compared = result["result"]["scalapack"]
        if "missing" in compared:
            assert "is not installed" in compared["missing"] or "was built for" in compared["missing"]
            assert not os.environ.get("SCALAPACK_FOLDER"), compared["missing"]
            continue
        assert compared["rate_bytes"] > 0
        assert set(compared["values"]) == set(KINDS)
        u = U if result["problem"]["dtype"] in ("float64", "complex128") else 2.0**-24
        for kind, value in compared["values"].items():
            assert value == pytest.approx(result["result"]["values"][kind], rel=4 * 61 * u)

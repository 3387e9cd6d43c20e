"""Test the command that repeats the best case of a sweep on the same grid."""

from __future__ import annotations

import shlex

import pytest

from mxpeak.cli.main import parsed
from mxpeak.records import Result
from mxpeak.report.command import repeat


def result(argv: str, launcher: str = "shell", ranks: int = 1, P: int = 1, Q: int = 1) -> Result:
    return Result(
        benchmark="hpl",
        status="valid",
        run={"argv": shlex.split(argv)},
        problem={"n": 2000, "nb": 64, "P": P, "Q": Q},
        launch={"launcher": launcher, "ranks": ranks},
    )


@pytest.mark.parametrize(
    ("best", "names", "command"),
    [
        (result("run hpl -N 1000,2000"), ["n"], "mxpeak run hpl -N 2000"),
        (
            result("run hpl -N 1000,2000", "mpiexec (PMI)", 2, 1, 2),
            ["n"],
            "mpiexec -n 2 mxpeak run hpl -N 2000 --grid 1x2",
        ),
        (
            result("run hpl -N 2000 --grid 1x2,2x1 --nb 64,96", "mpiexec (Open MPI)", 2, 2, 1),
            ["grid", "nb"],
            "mpiexec -n 2 mxpeak run hpl -N 2000 --grid 2x1 --nb 64",
        ),
        (
            result("run hpl -N 1000,2000 -P 2 -Q 1", "srun", 2, 2, 1),
            ["n"],
            "srun -n 2 mxpeak run hpl -P 2 -Q 1 -N 2000",
        ),
        (
            result("run hpl -N1000,2000 -P 1,2 -Q 2,1", "srun", 2, 2, 1),
            ["n", "grid"],
            "srun -n 2 mxpeak run hpl -N 2000 --grid 2x1",
        ),
        (
            result("run hpl --n=1000,2000 --ranks 2", "mpiexec (PMI)", 2, 1, 2),
            ["n"],
            "mxpeak run hpl --ranks 2 -N 2000 --grid 1x2",
        ),
        (
            result("run hpl --dat 'my HPL.dat'", "torchrun", 4, 2, 2),
            ["n", "nb"],
            "torchrun --nproc-per-node 4 -m mxpeak run hpl --dat 'my HPL.dat' -N 2000 --nb 64 --grid 2x2",
        ),
        (
            result("run hpl -N 1000,2000 --out a --json b.json --events c --trace=d --submit e --quiet"),
            ["n"],
            "mxpeak run hpl --quiet -N 2000",
        ),
    ],
)
def test_the_best_case_is_repeated_on_its_ranks_and_grid(best: Result, names: list[str], command: str) -> None:
    assert repeat(best, names) == command
    words = shlex.split(command)
    parsed(words[words.index("mxpeak") + 1 :])

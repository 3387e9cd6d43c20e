"""Run whole benchmarks with torch's kernels on MPI ranks."""

from __future__ import annotations

import pytest

from tests.support.ranks import Ended, StandingRanks, needs_mpi
from tests.support.torch_benchmarks import CASES, check_two, command

pytestmark = needs_mpi

#: HPG-MxP runs on ranks of torch.distributed: one of HPG-MxP and HPCG is enough per transport.
ON_TWO = [name for name in CASES if name != "hpg-mxp"]


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory, standing: dict[int, StandingRanks]) -> dict[str, Ended]:
    """Run the commands on two ranks."""
    commands, folder = {name: command(name, "mpi") for name in ON_TWO}, tmp_path_factory.mktemp("two")
    return standing[2].run(commands, folder, "tests.support.hpcg_steps")


@pytest.mark.parametrize("name", ON_TWO)
def test_two_ranks_give_what_the_host_gives(on_two: dict[str, Ended], name: str) -> None:
    check_two(name, on_two[name])

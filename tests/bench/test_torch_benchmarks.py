"""Run every benchmark with torch's kernels, on one rank and on ranks of torch.distributed."""

from __future__ import annotations

import pytest

from tests.support.ranks import Ended, commands_of_torch
from tests.support.torch_benchmarks import CASES, check_alike, check_two, command, on_host, run

#: HPCG and HPG-MxP both have one box per rank and its halo, so HPG-MxP is enough. HPCG sends thousands of small
#: messages, each of which is slowest over Gloo.
ON_TWO = [name for name in CASES if name != "hpcg"]


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """Run the benchmarks on two ranks."""
    return commands_of_torch(2, {name: command(name, "torch") for name in ON_TWO}, tmp_path_factory.mktemp("two"))


@pytest.mark.parametrize("name", CASES)
def test_one_rank_gives_what_the_host_gives(name: str) -> None:
    for found, same in zip(run(name, "torch"), on_host(name), strict=True):
        check_alike(name, found.as_dict(), same.as_dict())


@pytest.mark.parametrize("name", ON_TWO)
def test_two_ranks_give_what_the_host_gives(on_two: dict[str, Ended], name: str) -> None:
    check_two(name, on_two[name])

"""Test the order of work that hides panels and messages, and where the host waits."""

from __future__ import annotations

from functools import cache

import pytest

from mxpeak.solvers.lu.pivoted_lu import PivotedLuOptions
from tests.support.queues import runs
from tests.support.queues.log import Log
from tests.support.queues.order import beside, host_waits

N = 72
SPLIT = PivotedLuOptions(split=0.5)


@cache
def hpl(P: int, Q: int, transport: str, split: bool = False) -> list[Log]:
    """Return the logs of the ranks of HPL."""
    return runs.hpl((P, Q), transport, SPLIT if split else PivotedLuOptions(), N)[1]


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("transport", ["mpi", "nccl"])
def test_panels_are_factored_on_the_host_while_the_update_is_under_way(transport: str, split: bool) -> None:
    for log in hpl(2, 2, transport, split):
        factored = [wait for wait in beside(log, "rfact") if wait.op.kind == "factored"]  # FACT, at its end
        assert len(factored) in (4, 5)
        for wait in factored:
            updates = [op for op in wait.under_way if op.kind == "gemm" and op.actor == "main 0"]
            first_or_last = wait is factored[0] or wait is factored[-1]
            assert updates or first_or_last


def test_with_a_split_update_panels_go_to_the_host_before_the_update_of_the_step_before_has_ended() -> None:
    """Then FACT may take as long as both parts of an update together."""
    for log in runs.hpl((2, 1), "mpi", SPLIT, 96)[1]:
        down = [one for one in beside(log, "transfer") if one.op.kind == "down" and one.op.bytes > 8 * 64]
        updates = [[op for op in one.under_way if op.kind == "gemm" and op.actor == "main 0"] for one in down]
        assert sum(map(bool, updates)) >= 3


#: The largest number of host waits per step in the middle of a run, with the reason.
WAITS = {
    # for the pivots, which determine the row swaps
    ("hpl", 1, 1, "nccl"): 1,
    ("hpl", 1, 2, "nccl"): 1,
}


@pytest.mark.parametrize(("P", "Q", "transport", "limit"), [(1, 1, "nccl", 1), (1, 2, "nccl", 1), (1, 2, "mpi", 3)])
def test_a_step_waits_for_nothing_but_its_pivots_and_messages(P: int, Q: int, transport: str, limit: int) -> None:
    for log in hpl(P, Q, transport):
        waits = host_waits(log)
        for step in range(2, N // 8 - 2):
            found = waits.get(step, [])
            assert len(found) <= limit, [wait.place[:3] for wait in found]

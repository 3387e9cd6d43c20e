"""Test communication algorithms as tasks: several at a time, nested waits, and the work of a waiting rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest

from mxpeak.comm import base
from mxpeak.comm.base import LATER, LOOK_S, NAP_S, Idling, Steps, Task, all_of, behind, together
from mxpeak.comm.broadcast import BROADCASTS, broadcast
from mxpeak.comm.transports.threads import run_ranks


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no threads")
def test_virtual_ranks_are_bound_to_one_core_and_the_caller_is_not() -> None:
    before = os.sched_getaffinity(0)
    first, second = run_ranks(2, lambda comm: os.sched_getaffinity(0))
    assert first == second
    assert len(first) == 1
    assert first <= before
    assert run_ranks(1, lambda comm: os.sched_getaffinity(0)) == [before]
    assert os.sched_getaffinity(0) == before


def test_virtual_ranks_run_where_they_cannot_be_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int, cores: set[int]) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", refused, raising=False)
    assert run_ranks(3, lambda comm: comm.rank) == [0, 1, 2]


class Bell:
    """A request that is complete after `ring`, or after `looks` tests."""

    def __init__(self, name: str, looks: int = 10**9):
        self.name, self.looks = name, looks

    def ring(self) -> None:
        self.looks = 0

    def test(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def wait(self) -> None:
        self.ring()


def waits_for(bells: list[Bell], log: list[str]) -> Steps:
    for bell in bells:
        log.append(f"before {bell.name}")
        yield bell
        log.append(f"after {bell.name}")


def test_together_begins_all_and_each_goes_on_when_its_own_request_is_complete() -> None:
    for order in permutations("abc"):
        log: list[str] = []
        bells = {name: Bell(name) for name in "abc"}
        task = Task(together(*(waits_for([bell], log) for bell in bells.values())))
        assert log == ["before a", "before b", "before c"]
        for name in order:
            assert not task.test()
            bells[name].ring()
            done = task.test()
            assert log[-1] == f"after {name}"
        assert done
        assert task.done


def test_behind_begins_an_algorithm_once_a_request_is_complete_and_drives_that_until_then() -> None:
    log: list[str] = []
    first, last = Bell("a"), Bell("b")
    task = Task(behind(Task(waits_for([first], log)), waits_for([last], log)))
    assert not task.test()
    assert log == ["before a"]
    first.ring()
    assert not task.test()
    assert log == ["before a", "after a", "before b"]
    task.wait()
    assert log[-1] == "after b"


class InStream(Bell):
    """A request for which the stream of a device waits."""

    in_stream = True
    looked = 0

    def test(self) -> bool:
        self.looked += 1
        return super().test()


def test_what_a_stream_waits_for_is_left_to_it_and_not_looked_at_until_it_is_complete() -> None:
    log: list[str] = []
    bells = [InStream(name) for name in "abcd"]
    task = Task(together(waits_for(bells[:1], log), waits_for(bells[1:], log)))
    assert not task.test()
    task.wait()
    assert task.done
    assert [line for line in log if line.startswith("after")] == [f"after {name}" for name in "abcd"]
    assert all(bell.looked <= 5 for bell in bells)


def test_one_task_is_waited_for_while_another_progresses() -> None:
    """The task does not test requests for which a stream waits."""
    log: list[str] = []
    task, other = Task(waits_for([Bell("a", 3), Bell("b", 3)], log)), Task(waits_for([Bell("c", 2)], log))
    task.wait_polling(other.test)
    assert task.done
    assert other.done
    assert log.index("after c") < log.index("after b")
    Task(waits_for([InStream("d")], log)).wait_polling(lambda: pytest.fail("nobody looks"))
    assert log[-1] == "after d"


def test_together_of_nothing_has_ended_and_nested_ones_are_driven_too() -> None:
    assert Task(together()).done
    log: list[str] = []
    a, b, c = (Bell(name) for name in "abc")
    task = Task(together(waits_for([a], log), together(waits_for([b, c], log), all_of([]))))
    b.ring()
    c.ring()
    assert not task.test()
    assert log == ["before a", "before b", "after b", "before c", "after c"]
    a.ring()
    assert task.test()


def test_a_task_is_a_request_that_another_algorithm_waits_for() -> None:
    log: list[str] = []
    a = Bell("a")
    first = Task(waits_for([a], log))

    def second() -> Steps:
        yield first
        log.append("second")

    task = Task(together(second(), all_of([first])))
    assert not task.test()
    a.ring()
    assert task.test()
    assert log == ["before a", "after a", "second"]


@pytest.mark.parametrize("combine", [together, lambda *steps: together(together(*steps), all_of([]))])
def test_what_algorithms_do_between_requests_is_outside_of_waiting(combine: Callable[..., Steps]) -> None:
    log: list[str] = []

    @contextmanager
    def waiting() -> Iterator[None]:
        log.append("(")
        yield
        log.append(")")

    steps = [waits_for([Bell(f"{name}{i}", 3 * i) for i in range(3)], log) for name in "abc"]
    task = Task(combine(*steps))
    task.wait(waiting)
    assert task.done
    assert len([word for word in log if word.startswith("after")]) == 9
    assert "(" in log
    assert all(after == ")" for before, after in pairwise(log) if before == "(")


@pytest.mark.parametrize("name", list(BROADCASTS))
def test_a_rank_passes_on_one_broadcast_while_it_waits_for_another(name: str) -> None:
    """This happens to L_row and U_col of a step: two groups contain the same ranks in opposite orders."""

    def body(comm: Any) -> None:
        groups = [comm.split(0, comm.rank), comm.split(0, -comm.rank)]
        messages = [np.full(7, float(group.rank)) for group in groups]
        for root in range(comm.size):
            for group, message in zip(groups, messages):
                message[:] = 100.0 * root + group.rank
            Task(together(*(broadcast(name, *both, root) for both in zip(groups, messages)))).wait()
            assert all((message == 101.0 * root).all() for message in messages)

    for size in (1, 2, 5):
        run_ranks(size, body)


@pytest.mark.parametrize(("yield_s", "sleeps"), [(1e-6, False), (1e-3, True)])
def test_a_waiting_rank_sleeps_only_if_others_need_its_core_and_not_for_long(
    monkeypatch: pytest.MonkeyPatch, yield_s: float, sleeps: bool
) -> None:
    """Use a simulated clock, which advances by yields and sleeps."""
    now_s, naps = 0.0, []

    def passes(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def nap(seconds: float) -> None:
        naps.append((now_s, seconds))
        passes(seconds)

    monkeypatch.setattr(base, "perf_counter", lambda: now_s)
    monkeypatch.setattr(base, "sched_yield", lambda: passes(yield_s))
    monkeypatch.setattr(base, "sleep", nap)
    idle = Idling()
    while now_s < 0.5:
        idle()
    assert bool(naps) == sleeps
    for waited_s, seconds in naps:
        assert NAP_S < seconds <= min(LATER * waited_s, LOOK_S)

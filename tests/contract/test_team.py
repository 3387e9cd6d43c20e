"""Test that each thread of a rank does its part of every piece of work once."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from itertools import permutations

import pytest

from mxpeak.kernels.host.engine import blas
from mxpeak.kernels.host.engine.team import APART, Team

CORES = sorted(os.sched_getaffinity(0))[:2] if hasattr(os, "sched_getaffinity") else [0, 1]


def reached(count: int, team: Team) -> bool:
    """Return whether the other thread has completed so many pieces within 20 seconds."""
    until = time.monotonic() + 20.0
    while team._counts[APART] != count and time.monotonic() < until:
        time.sleep(0.001)
    return bool(team._counts[APART] == count)


@pytest.mark.skipif(len(CORES) < 2, reason="two threads have one core")
def test_threads_that_are_alone_on_their_cores_say_what_they_have_done_and_others_do_not() -> None:
    alone, shared, one_core = Team(2, CORES, alone=True), Team(2, CORES), Team(2, CORES[:1] * 2, alone=True)
    for team, count in ((alone, 2), (shared, 0), (one_core, 0)):
        for _ in range(2):
            team.run(lambda tid: None)
        assert reached(count, team)


@pytest.mark.skipif(len(CORES) < 2, reason="two threads have one core")
def test_an_interrupted_piece_leaves_no_thread_behind_or_ahead() -> None:
    """The piece has been counted, but no thread has received it."""
    team = Team(2, CORES, alone=True)
    team.run(lambda tid: None)
    work, team._work = team._work, [Interrupted()]  # type: ignore[list-item]
    with pytest.raises(KeyboardInterrupt):
        team.run(lambda tid: None)
    team._work = work
    team.run(lambda tid: None)
    assert reached(3, team)
    assert team._counts[0] == 3


class Interrupted:
    """A queue that raises KeyboardInterrupt instead of storing an item."""

    def put(self, item: object) -> None:
        raise KeyboardInterrupt


def test_threads_do_each_piece_once_whether_they_poll_or_sleep() -> None:
    """Threads with their own cores poll for some time after each piece, also after one that failed."""
    for team in (Team(2), Team(2, CORES, alone=True)):
        done: list[tuple[int, int]] = []

        def work(tid: int, piece: int, done: list[tuple[int, int]] = done) -> None:
            done.append((piece, tid))
            if piece == 1 and tid == 1:
                raise ValueError("piece 1")

        team.run(work, 0)
        with pytest.raises(ValueError, match="piece 1"):
            team.run(work, 1)
        team.run(work, 2)
        time.sleep(0.02)  # the threads sleep by now
        team.run(work, 3)
        assert sorted(done) == [(piece, tid) for piece in range(4) for tid in range(2)]


def test_a_team_that_is_dropped_ends_its_threads() -> None:
    """This holds for threads that poll and for threads that sleep, also after a piece that failed."""
    teams = [Team(2, CORES, alone=True), Team(3)]
    theirs: set[threading.Thread] = set()

    def work(tid: int) -> None:
        if tid > 0:
            theirs.add(threading.current_thread())
            raise ValueError("of another thread")

    for team in teams:
        with pytest.raises(ValueError, match="of another thread"):
            team.run(work)
    assert len(theirs) == 3
    assert all(thread.is_alive() for thread in theirs)
    del team, teams
    gc.collect()
    for thread in theirs:
        thread.join(20.0)
    assert not any(thread.is_alive() for thread in theirs)


def counts() -> list[int]:
    return [controller.num_threads for controller in blas._controllers()]


@pytest.fixture
def three_blas_threads() -> Iterator[list[int]]:
    before = counts()
    blas.set_threads(3)
    yield counts()
    for controller, count in zip(blas._controllers(), before):
        controller.set_num_threads(count)


def test_blas_has_its_threads_again_once_all_have_left(three_blas_threads: list[int]) -> None:
    """Three threads of the process overlap, and leave in every order."""
    for order in permutations(range(3)):
        inside = [blas.one_thread() for _ in order]
        for one in inside:
            one.__enter__()
        for number in order:
            assert set(counts()) == {1}, order
            assert blas.own_threads() == max(three_blas_threads)
            inside[number].__exit__(None, None, None)
        assert counts() == three_blas_threads, order
    with pytest.raises(ValueError, match="inside"), blas.one_thread():
        raise ValueError("inside")
    assert counts() == three_blas_threads
    assert blas.own_threads() == max(three_blas_threads)


def test_what_is_set_inside_holds_after_another_has_been_inside_of_that(three_blas_threads: list[int]) -> None:
    with blas.one_thread():
        blas.set_threads(2)
        two = counts()
        with blas.one_thread():
            assert set(counts()) == {1}
        assert counts() == two
    assert counts() == three_blas_threads

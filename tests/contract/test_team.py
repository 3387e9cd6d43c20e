"""A rank's threads: each does its part of every piece of work, once."""

from __future__ import annotations

import os
import time

import pytest

from mxpeak.kernels.host.team import Team


def test_threads_do_each_piece_once_whether_they_still_look_out_or_sleep() -> None:
    """With cores of their own they look out for a while after each piece, which may have failed."""
    bound = Team(2, sorted(os.sched_getaffinity(0))[:2]) if hasattr(os, "sched_getaffinity") else Team(2, (0, 1))
    for team in (Team(2), bound):
        done: list[tuple[int, int]] = []

        def work(tid: int, piece: int, done: list[tuple[int, int]] = done) -> None:
            done.append((piece, tid))
            if piece == 1 and tid == 1:
                raise ValueError("piece 1")

        team.run(work, 0)
        with pytest.raises(ValueError, match="piece 1"):
            team.run(work, 1)
        team.run(work, 2)
        time.sleep(0.02)  # by now they sleep
        team.run(work, 3)
        assert sorted(done) == [(piece, tid) for piece in range(4) for tid in range(2)]

"""Test norms with interrupts, threads, and read-only arrays."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mxpeak as mx
from mxpeak.errors import UsageError
from mxpeak.kernels.host.norms import norms as host_norms
from mxpeak.kernels.host.norms import small

TYPES = [np.float64, np.float32, np.complex128, np.complex64, np.float16, ml_dtypes.bfloat16]


def test_read_only_arrays_are_accepted() -> None:
    for dtype, (m, n) in product(TYPES, ((3, 5), (700, 500))):
        A = np.ones((m, n), dtype)
        A.flags.writeable = False
        assert mx.norm(A, "one") == m
        assert mx.norms(A)[:3] == (1.0, m, n)
        assert mx.norm(np.broadcast_to(A[:1], (m, n)), "inf") == n


def test_an_interrupted_norm_leaves_the_next_ones_right() -> None:
    def interrupt(signum: int, frame: Any) -> None:
        raise KeyboardInterrupt

    A, seen = np.ones((4000, 1500)), 0
    for deterministic in (False, True):  # also compiles everything
        assert mx.norm(A, "one", threads=2, deterministic=deterministic) == 4000.0
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for k in range(20):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.0005 * k)
                mx.norm(A, "one", threads=2, deterministic=True)
                signal.setitimer(signal.ITIMER_REAL, 0.0)
            except KeyboardInterrupt:
                seen += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert seen, "no interrupt came while a norm was computed"
    assert [mx.norm(A, "one", threads=2) for _ in range(10)] == [4000.0] * 10


def _at_once(works: list[Callable[[], None]]) -> list[BaseException]:
    """Return the exceptions of functions that start at the same time, each in a thread."""
    begin, failures = threading.Barrier(len(works)), []

    def run(work: Callable[[], None]) -> None:
        begin.wait()
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def test_first_norms_of_all_types_may_come_at_once() -> None:
    def first(dtype: Any) -> Callable[[], None]:
        def work() -> None:
            assert mx.norm(np.ones((5, 5), dtype), "one") == 5.0

        return work

    host_norms._ready.clear()
    small.small_norm.disable_compile(False)
    assert _at_once([first(dtype) for dtype in TYPES]) == []


def test_threads_of_a_program_may_share_a_team() -> None:
    A = np.ones((600, 500))

    def work() -> None:
        for _ in range(20):
            assert mx.norm(A, "one", threads=2) == 600.0

    assert _at_once([work] * 3) == []


def test_sums_that_overflow_are_infinite_and_say_nothing() -> None:
    A = np.full((60, 60), 1e307)
    with np.errstate(all="raise"):
        for deterministic in (False, True):
            found = mx.norms(A, structure="symmetric", deterministic=deterministic)
            assert found == (1e307, np.inf, np.inf, pytest.approx(6e308 / 10))


def test_subnormal_numbers_alone_have_their_norm() -> None:
    tiny = 5e-324
    for deterministic in (False, True):
        assert mx.norm(np.full((2, 10000), tiny), deterministic=deterministic) == 141 * tiny  # sqrt(20000) = 141.4


def test_showing_a_band_matrix_reads_nothing_of_it() -> None:
    M = mx.from_band(np.ones((6, 200_000)), 3, 2)
    assert repr(M) == "TileMatrix(200000x200000, 1 of its tiles here)"
    assert "A=" not in repr(M.tiles[0])


def test_what_is_not_a_communicator_is_refused() -> None:
    with pytest.raises(UsageError, match="comm = 3 is not a communicator"):
        mx.from_tiles([[np.ones((2, 2))]], [2], [2], comm=3)


def test_ragged_rows_of_tiles_are_refused() -> None:
    A = np.ones((2, 2))
    with pytest.raises(UsageError, match="block rows have different lengths"):
        mx.from_tiles([[A, A], [A]])

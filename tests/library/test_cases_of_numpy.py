"""Run the test cases of numpy.linalg.solve and lstsq of NumPy 2.4, with stricter checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from tests.support.peer_cases import Check, Peer, cases, least_squares, raises, solves
from tests.support.systems import TYPES

SOLVE = Peer("numpy.linalg.solve", "mx.solve")
LSTSQ = Peer("numpy.linalg.lstsq", "mx.lstsq")
PEERS = [SOLVE, LSTSQ]

RNG = np.random.RandomState(1234)
REAL, COMPLEX = [[1.0, 2], [3, 4]], [[1 + 2j, 2 + 3j], [3 + 4j, 4 + 5j]]
#: The square cases: A and b.
SQUARE: dict[str, tuple[Any, Any]] = {
    "single": (np.array(REAL, np.float32), np.array([2, 1], np.float32)),
    "double": (np.array(REAL), np.array([2.0, 1])),
    "double_2": (np.array(REAL), np.array([[2.0, 1, 4], [3, 4, 6]])),
    "csingle": (np.array(COMPLEX, np.complex64), np.array([2 + 1j, 1 + 2j], np.complex64)),
    "cdouble": (np.array(COMPLEX), np.array([2 + 1j, 1 + 2j])),
    "cdouble_2": (np.array(COMPLEX), np.array([[2 + 1j, 1 + 2j, 1 + 3j], [1 - 2j, 1 - 3j, 1 - 6j]])),
    "8x8": (RNG.random_sample((8, 8)), RNG.random_sample(8)),
    "1x1": (RNG.random_sample((1, 1)), RNG.random_sample(1)),
    "nonarray": ([[1, 2], [3, 4]], [2, 1]),
}
WIDE, TALL = [[1.0, 2, 3], [3, 4, 6]], [[1.0, 2], [3, 4], [5, 6]]
COMPLEX_WIDE = [[1 + 1j, 2 + 2j, 3 - 3j], [3 - 5j, 4 + 9j, 6 + 2j]]
COMPLEX_TALL = [[1 + 1j, 2 + 2j], [3 - 3j, 4 - 9j], [5 - 4j, 6 + 8j]]
#: The cases with other shapes.
OTHER: dict[str, tuple[Any, Any]] = {
    "single_nsq_1": (np.array(WIDE, np.float32), np.array([2, 1], np.float32)),
    "single_nsq_2": (np.array(TALL, np.float32), np.array([2, 1, 3], np.float32)),
    "double_nsq_1": (np.array(WIDE), np.array([2.0, 1])),
    "double_nsq_2": (np.array(TALL), np.array([2.0, 1, 3])),
    "csingle_nsq_1": (np.array(COMPLEX_WIDE, np.complex64), np.array([2 + 1j, 1 + 2j], np.complex64)),
    "csingle_nsq_2": (np.array(COMPLEX_TALL, np.complex64), np.array([2 + 1j, 1 + 2j, 3 - 3j], np.complex64)),
    "cdouble_nsq_1": (np.array(COMPLEX_WIDE), np.array([2 + 1j, 1 + 2j])),
    "cdouble_nsq_2": (np.array(COMPLEX_TALL), np.array([2 + 1j, 1 + 2j, 3 - 3j])),
    "cdouble_nsq_1_2": (np.array(COMPLEX_WIDE), np.array([[2 + 1j, 1 + 2j], [1 - 1j, 2 - 2j]])),
    "cdouble_nsq_2_2": (np.array(COMPLEX_TALL), np.array([[2 + 1j, 1 + 2j], [1 - 1j, 2 - 2j], [1 - 1j, 2 - 2j]])),
    "8x11": (RNG.random_sample((8, 11)), RNG.random_sample(8)),
    "1x5": (RNG.random_sample((1, 5)), RNG.random_sample(1)),
    "5x1": (RNG.random_sample((5, 1)), RNG.random_sample(5)),
}
EMPTY_OTHER = {"0x4": (np.empty((0, 4)), np.empty(0)), "4x0": (np.empty((4, 0)), RNG.random_sample(4))}


def strided(x: Any) -> Iterator[Any]:
    """Return the same numbers with strides of 1, 3 and -4 in the last two axes, and of 0 in axes of length 1."""
    if not isinstance(x, np.ndarray):
        yield x
        return
    steps = [(1,)] * (x.ndim - 2) + [(1, 3, -4)] * min(x.ndim, 2)
    for step in product(*steps):
        view = np.full([n * abs(s) for n, s in zip(x.shape, step)], 9, x.dtype)[
            tuple(slice(None, None, s) for s in step)
        ]
        view[...] = x
        yield view
    if x.ndim and x.shape[-1] == 1:
        yield np.lib.stride_tricks.as_strided(x, strides=(*x.strides[:-1], 0))


def stacked(A: Any, b: Any) -> Iterator[tuple[Any, Any]]:
    """Yield stacks of three matrices, and of three by two."""
    if isinstance(A, np.ndarray):
        yield np.stack([A, 2 * A, 3 * A]), b if b.ndim == 1 else np.stack([b, 7 * b, 6 * b])
        tiles = np.broadcast_to(A, (3, 2, *A.shape)).copy()
        columns = b if b.ndim > 1 else np.broadcast_to(b[:, None], (*b.shape, A.shape[-1]))
        yield tiles, np.broadcast_to(columns, (3, 2, *columns.shape)).copy()


def every_stride(systems: Any) -> Iterator[tuple[Any, Any]]:
    for A, b in systems:
        yield from product(strided(A), strided(b))


# --- solve --------------------------------------------------------------------------------------------------------

PLAIN = "a subclass of ndarray is solved as an array, and x is an ndarray"


@SOLVE.test("test_sq_cases")
def square() -> Iterator[Check]:
    for A, b in every_stride(SQUARE.values()):
        yield solves(A, b)


@SOLVE.test("test_empty_sq_cases")
def empty() -> Iterator[Check]:
    yield solves(np.empty((0, 0)), np.empty(0))


@SOLVE.test("test_generalized_sq_cases")
def stacks() -> Iterator[Check]:
    for A, b in every_stride(pair for system in SQUARE.values() for pair in stacked(*system)):
        yield solves(A, b)


@SOLVE.test("test_generalized_empty_sq_cases")
def empty_stacks() -> Iterator[Check]:
    yield solves(np.empty((3, 0, 0)), np.empty(0))
    yield solves(np.empty((3, 2, 0, 0)), np.empty((3, 2, 0, 0)))


@SOLVE.test("test_types")
def types() -> Iterator[Check]:
    for dtype in TYPES:
        yield solves(np.array([[1, 0.5], [0.5, 1]], dtype), np.array([[1, 0.5], [0.5, 1]], dtype), np.eye(2), 1e-6)


class Subclass(np.ndarray[Any, Any]):
    """Arrays of a library that extends NumPy."""


@SOLVE.test("test_1_d", PLAIN)
def vectors() -> Iterator[Check]:
    A = np.arange(8).reshape(2, 2, 2)
    yield solves(A, np.arange(2).view(Subclass))
    yield solves(A, np.arange(4).reshape(2, 2).view(Subclass))
    yield raises(ValueError, "b has shape", lambda: mx.solve(A, np.arange(2).reshape(1, 2).view(Subclass)))


@SOLVE.test("test_0_size", f"{PLAIN}; the error for a matrix that is not square is a `ValueError`, not a `LinAlgError`")
def matrices_of_order_zero() -> Iterator[Check]:
    A, b = np.arange(8).reshape(2, 2, 2), np.arange(6).reshape(1, 2, 3).view(Subclass)
    yield solves(A[:, :0, :0], b[:, :0])
    yield solves(A[:, :0, :0], np.arange(2).view(Subclass)[:0])
    for M, c, error in (
        (A[:, :0, :1], b, "square"),
        (A, b[:, :0], "b has shape"),
        (A, np.arange(6).reshape(1, 3, 2), "b has shape"),
        (A[:0], np.arange(6).reshape(1, 3, 2)[:0], "b has shape"),
        (A, np.arange(3).reshape(1, 3), "b has shape"),
        (A[:0], np.arange(3).reshape(1, 3)[:0], "b has shape"),
        (A[:, :0, :0], np.arange(3).reshape(1, 3), "b has shape"),
    ):
        yield raises(ValueError, error, partial(mx.solve, M, c))


@SOLVE.test("test_0_size_k", PLAIN)
def no_right_hand_sides() -> Iterator[Check]:
    A, b = np.arange(4).reshape(1, 2, 2), np.arange(6).reshape(3, 2, 1).view(Subclass)
    yield solves(A, b[:, :, :0])
    yield solves(A[:, :0, :0], b[:, :0, :0])


# --- least squares ------------------------------------------------------------------------------------------------


@LSTSQ.test("test_sq_cases", "singular values are returned only if they were computed")
def square_problems() -> Iterator[Check]:
    for A, b in every_stride(SQUARE.values()):
        yield least_squares(A, b, len(A))


@LSTSQ.test("test_empty_sq_cases")
def empty_square_problems() -> Iterator[Check]:
    yield least_squares(np.empty((0, 0)), np.empty(0), 0)


@LSTSQ.test("test_nonsq_cases", "`info.residual` is the vector b - A x, not the square of its norm")
def other_problems() -> Iterator[Check]:
    for A, b in every_stride(OTHER.values()):
        yield least_squares(A, b, min(A.shape))


@LSTSQ.test("test_empty_nonsq_cases")
def empty_problems() -> Iterator[Check]:
    for A, b in EMPTY_OTHER.values():
        yield least_squares(A, b, 0)


@LSTSQ.test("test_rcond", "no argument `rcond`: the rank is that of NumPy's default")
def rank_of_numpy() -> Iterator[Check]:
    A = np.array([[0.0, 1, 0, 1, 2, 0], [0, 2, 0, 0, 1, 0], [1, 0, 1, 0, 0, 4], [0, 0, 0, 2, 3, 0]]).T
    yield least_squares(A, np.array([1, 0, 0, 0, 0, 0]), 3)


@LSTSQ.test("test_empty_a_b", "an A without rows or columns has no singular values in `info`")
def empty_matrices_and_right_hand_sides() -> Iterator[Check]:
    for m, n, k in ((4, 2, 2), (0, 4, 1), (0, 4, 2), (4, 0, 1), (4, 0, 2), (4, 2, 0), (0, 0, 0)):
        yield least_squares(np.arange(m * n).reshape(m, n), np.ones((m, k)), min(m, n))


@LSTSQ.test("test_incompatible_dims", "the error is a `ValueError`, not a `LinAlgError`")
def shapes_that_do_not_match() -> Iterator[Check]:
    A = np.vstack([np.arange(4), np.ones(4)]).T
    yield raises(ValueError, "A is 4x2, but b has shape", lambda: mx.lstsq(A, [-1, 0.2, 0.9, 2.1, 3.3]))


@LSTSQ.test("test_lstsq_complex_larger_rhs")
def more_right_hand_sides_than_rows() -> Iterator[Check]:
    rng = np.random.RandomState(5)
    G, x = (rng.standard_normal(s) + 1j * rng.standard_normal(s) for s in ((20, 20), (20, 70)))
    yield least_squares(G, G @ x, 20)


@pytest.mark.parametrize("checks", cases(PEERS))
def test_inputs_of_numpy(checks: Callable[[], Iterator[Check]]) -> None:
    for check in checks():
        check()

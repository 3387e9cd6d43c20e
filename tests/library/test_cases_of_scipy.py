"""Run the test cases of scipy.linalg of SciPy 1.17 for functions that mxpeak shares, with stricter checks."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
import scipy.linalg

import mxpeak as mx
from tests.support.peer_cases import Check, Peer, cases, check_solution, least_squares, meant, raises, random, solves
from tests.support.systems import TYPES

SOLVE = Peer("scipy.linalg.solve", "mx.solve")
CHO = Peer("scipy.linalg.cho_factor, cho_solve", "mx.cho_factor")
LU = Peer("scipy.linalg.lu_factor, lu_solve", "mx.lu_factor")
LSTSQ = Peer("scipy.linalg.lstsq", "mx.lstsq")
PEERS = [SOLVE, CHO, LU, LSTSQ]

DTYPES = (int, float, np.float32, complex, np.complex64)
#: The types of SciPy's batch tests, which include extended precision.
FLOATING = TYPES
#: Structures of `assume_a` that mxpeak supports, in both spellings.
STRUCTURES = ("gen", "general", "pos", "positive definite", "sym", "symmetric", "her", "hermitian")
RIGHT_SIDES = ([[1, 0], [0, 1]], [1, 0], [[2, 1], [-30, 4]])


def by_cholesky(A: Any, b: Any, *, lower: bool = False, **_: Any) -> Any:
    return mx.cho_factor(A, lower=lower).solve(b)


def by_lu(A: Any, b: Any, *, transposed: Any = False, **_: Any) -> Any:
    return mx.lu_factor(A).solve(b, transposed=transposed)


# --- solve --------------------------------------------------------------------------------------------------------


@SOLVE.test("test_20Feb04_bug")
def real_matrices_with_complex_right_hand_sides() -> Iterator[Check]:
    for first in (1.0, 1.2):
        yield solves([[1, 1], [first, 0]], [1, 0j])


@SOLVE.test("test_simple")
def simple() -> Iterator[Check]:
    for b in RIGHT_SIDES:
        yield solves([[1, 20], [-30, 4]], b)


@SOLVE.test("test_simple_complex")
def simple_complex() -> Iterator[Check]:
    for b in ([1j, 0], [[1j, 1j], [0, 2]], [1, 0j], np.array([1, 0], complex)):
        yield solves(np.array([[5, 2], [2j, 4]], complex), b)


@SOLVE.test("test_simple_pos")
def simple_definite() -> Iterator[Check]:
    for lower, b in product((False, True), RIGHT_SIDES[:2]):
        yield solves([[2, 3], [3, 5]], b, assume_a="pos", lower=lower)


@SOLVE.test("test_simple_pos_complexb")
def definite_matrices_with_complex_right_hand_sides() -> Iterator[Check]:
    for b in ([1j, 0], [[1j, 1j], [0, 2]]):
        yield solves([[5, 2], [2, 4]], b, assume_a="pos")


@SOLVE.test("test_simple_sym")
def simple_symmetric() -> Iterator[Check]:
    for lower, b in product((False, True), RIGHT_SIDES[:2]):
        yield solves([[2, 3], [3, -5]], b, assume_a="sym", lower=lower)


@SOLVE.test("test_simple_sym_complexb")
def symmetric_matrices_with_complex_right_hand_sides() -> Iterator[Check]:
    for b in ([1j, 0], [[1j, 1j], [0, 2]]):
        yield solves([[5, 2], [2, -4]], b, assume_a="sym")


@SOLVE.test("test_simple_sym_complex")
def complex_symmetric() -> Iterator[Check]:
    for b in ([1j, 0], [1, 0], [[1j, 1j], [0, 2]]):
        yield solves([[5, 2 + 1j], [2 + 1j, -4]], b, assume_a="sym")


@SOLVE.test("test_simple_her_actuallysym")
def real_hermitian() -> Iterator[Check]:
    for lower, b in product((False, True), ([[1, 0], [0, 1]], [1, 0], [1j, 0])):
        yield solves([[2, 3], [3, -5]], b, assume_a="her", lower=lower)


@SOLVE.test("test_simple_her")
def hermitian() -> Iterator[Check]:
    for b in ([1j, 0], [1, 0], [[1j, 1j], [0, 2]]):
        yield solves([[5, 2 + 1j], [2 - 1j, -4]], b, assume_a="her")


@SOLVE.test("test_nils_20Feb04")
def columns_of_an_inverse() -> Iterator[Check]:
    rng = np.random.default_rng(1234)
    A = rng.random([2, 2]) + rng.random([2, 2]) * 1j
    for r in np.eye(2, dtype=complex):
        yield solves(A, r, np.linalg.inv(A) @ r, 1e-14)


@SOLVE.test("test_random")
def random_matrices() -> Iterator[Check]:
    rng = np.random.default_rng(1234)
    A = rng.random([20, 20])
    A[np.diag_indices(20)] = 20 * (0.1 + A.diagonal())
    for _ in range(4):
        yield solves(A, rng.random([20, 3]))


@SOLVE.test("test_random_complex")
def random_complex_matrices() -> Iterator[Check]:
    rng = np.random.default_rng(1234)
    A = rng.random([20, 20]) + 1j * rng.random([20, 20])
    A[np.diag_indices(20)] = 20 * (0.1 + A.diagonal())
    for _ in range(2):
        yield solves(A, rng.random([20, 3]))


@SOLVE.test("test_random_sym")
def random_definite_matrices() -> Iterator[Check]:
    rng = np.random.default_rng(1234)
    A = np.tril(rng.random([20, 20]))
    A = A + np.tril(A, -1).T
    A[np.diag_indices(20)] = abs(20 * (0.1 + A.diagonal()))
    for _ in range(4):
        yield solves(A, rng.random(20), assume_a="pos")


@SOLVE.test("test_random_sym_complex")
def random_complex_definite_matrices() -> Iterator[Check]:
    rng = np.random.default_rng(1234)
    A = rng.random([20, 20]) + 1j * rng.random([20, 20])
    A = np.tril(A, -1) + np.tril(A, -1).conj().T + np.diag(abs(20 * (0.1 + A.diagonal())))
    yield solves(A, rng.random(20) + 2j * rng.random(20), assume_a="pos")


@SOLVE.test("test_simple2")
def known_solution() -> Iterator[Check]:
    A = [[1.80, 2.88, 2.05, -0.89], [525.00, -295.00, -95.00, -380.00], [1.58, -2.69, -2.90, -1.04]]
    A = np.array([*A, [-1.11, -0.66, -0.59, 0.80]])
    b = np.array([[9.52, 18.47], [2435.00, 225.00], [0.77, -13.28], [-6.22, -6.21]])
    yield solves(A, b, np.array([[1.0, -1, 3, -5], [3, 2, 4, 1]]).T, 1e-12)


@SOLVE.test("test_simple_complex2")
def known_complex_solution() -> Iterator[Check]:
    A = [
        [-1.34 + 2.55j, 0.28 + 3.17j, -6.39 - 2.20j, 0.72 - 0.92j],
        [-1.70 - 14.10j, 33.10 - 1.50j, -1.50 + 13.40j, 12.90 + 13.80j],
        [-3.29 - 2.39j, -1.91 + 4.42j, -0.14 - 1.35j, 1.72 + 1.35j],
        [2.41 + 0.39j, -0.56 + 1.47j, -0.83 - 0.69j, -1.96 + 0.67j],
    ]
    b = [[26.26 + 51.78j, 31.32 - 6.70j], [64.30 - 86.80j, 158.60 - 14.20j]]
    b += [[-5.75 + 25.31j, -2.15 + 30.19j], [1.16 + 2.57j, -2.56 + 7.55j]]
    x = np.array([[1 + 1j, -1 - 2j], [2 - 3j, 5 + 1j], [-4 - 5j, -3 + 4j], [6j, 2 - 3j]])
    yield solves(np.array(A), np.array(b), x, 1e-12)


@SOLVE.test("test_symmetric_hermitian")
def symmetric_and_hermitian_matrices_in_one_triangle() -> Iterator[Check]:
    A = np.zeros((4, 4), complex)
    A[0] = [-1.84, 0.11 - 0.11j, -1.78 - 1.18j, 3.91 - 1.50j]
    A[1, 1:] = [-4.63, -1.84 + 0.03j, 2.21 + 0.21j]
    A[2, 2:] = [-8.87, 1.58 - 0.90j]
    A[3, 3] = -1.36
    b = [[2.98 - 10.18j, 28.68 - 39.89j], [-9.58 + 3.88j, -24.79 - 8.40j]]
    b += [[-0.77 - 16.05j, 4.23 - 70.02j], [7.79 + 5.48j, -35.39 + 18.01j]]
    for assume_a in ("her", "sym"):
        across = A.T if assume_a == "sym" else A.conj().T
        full = A + across - np.diag(A.diagonal())
        reference = np.linalg.solve(full, b)
        yield solves(A, b, reference, 1e-12, assume_a=assume_a)
        yield solves(across, b, reference, 1e-12, assume_a=assume_a, lower=True)


@SOLVE.test("test_pos_and_sym")
def only_one_triangle_is_read() -> Iterator[Check]:
    A = np.tril(np.arange(1, 10).reshape(3, 3)) / 9
    for assume_a in ("pos", "sym"):
        yield solves(A, np.ones(3), [9.0, 1.8, 1.0], 1e-14, assume_a=assume_a)


@SOLVE.test("test_singularity")
def singular_by_equal_rows() -> Iterator[Check]:
    A = np.zeros((9, 9))
    A[[0, 1, 1, 1, 2, 2], [0, 0, 1, 2, 1, 2]] = 1
    A[:3, [6, 8]] = 1
    A[3:7] = [1, 0, 1, 1, 1, 1, 0, 0, 0]
    A[7:] = 1

    yield raises(mx.SingularMatrixError, "exactly zero", lambda: mx.solve(A, np.arange(9)[:, None]))


@SOLVE.test("test_ill_condition_warning", "no warning, because x is accurate after scaling; `info.condition` is 1e50")
def an_ill_conditioned_diagonal() -> Iterator[Check]:
    A = np.diag(np.logspace(0, 50, 10))
    b = np.random.default_rng(234859349452).random(size=10)

    def check(assume_a: str) -> None:
        x, info = mx.solve(A, b, assume_a=assume_a)
        assert info.solved
        assert np.abs(x - b / A.diagonal()).max() <= 4 * 2.0**-53 * np.abs(x).max()
        assert info.condition == pytest.approx(1e50)

    for assume_a in STRUCTURES:
        yield partial(check, assume_a)


@SOLVE.test("test_exactly_singular_gh22263", "structures that `assume_a` does not have are passed as general matrices")
def exactly_singular() -> Iterator[Check]:
    A, b = np.zeros((10, 10)), np.ones(10)
    for assume_a in (*STRUCTURES, "auto"):
        call = partial(mx.solve, A, b, assume_a=assume_a)
        yield raises(np.linalg.LinAlgError, "zero|not positive definite", call)


@SOLVE.test("test_singular_scalar", "A is a matrix of order 1; scalars are refused")
def singular_of_order_one() -> Iterator[Check]:
    for A in (np.zeros((1, 1)), [[0]]):
        yield raises(mx.SingularMatrixError, "zero", partial(mx.solve, A, [1]))


@SOLVE.test("test_multiple_rhs")
def many_right_hand_sides() -> Iterator[Check]:
    b = np.random.default_rng(1234).random((2, 12))
    yield solves(np.eye(2), b, b, 0.0)


@SOLVE.test("test_transposed_keyword")
def transposed() -> Iterator[Check]:
    A = np.tril(np.arange(9).reshape(3, 3) + 1) / 9
    yield solves(A, np.ones(3), [1.2, 0.2, 1], 1e-14, transposed=True)
    yield solves(A, np.ones(3), [9, -5.4, -1.2], 1e-14, transposed=False)


@SOLVE.test("test_nonsquare_a")
def not_square() -> Iterator[Check]:
    yield raises(ValueError, "square", lambda: mx.solve([1, 2], 1))


@SOLVE.test("test_size_mismatch_with_1D_b")
def sizes_that_do_not_match() -> Iterator[Check]:
    yield solves(np.eye(3), np.ones(3), np.ones(3), 0.0)
    yield raises(ValueError, "A is 3x3, but b has shape", lambda: mx.solve(np.eye(3), np.ones(4)))


@SOLVE.test("test_assume_a_keyword")
def an_unknown_structure() -> Iterator[Check]:
    yield raises(ValueError, "unknown assume_a 'zxcv'", lambda: mx.solve(1, 1, assume_a="zxcv"))


@SOLVE.test("test_all_type_size_routine_combinations", "tridiagonal matrices are passed as general matrices")
def all_types_sizes_and_structures() -> Iterator[Check]:
    for n, dtype, assume_a in product((10, 100), TYPES, ("gen", "sym", "pos", "her", "tridiagonal")):
        rng = np.random.default_rng(1234)
        A, b = rng.standard_normal((n, n)).astype(dtype), rng.standard_normal(n).astype(dtype)
        if np.dtype(dtype).kind == "c":
            A += (1j * rng.standard_normal((n, n))).astype(dtype)
        if assume_a == "sym":
            A = A + A.T
        elif assume_a == "her":
            A = A + A.T.conj()
        elif assume_a == "pos":
            A = (A.T.conj() @ A + 0.1 * np.eye(n)).astype(dtype)
        elif assume_a == "tridiagonal":
            A, assume_a = np.triu(np.tril(A, 1), -1), "gen"
        yield solves(A, b, assume_a=assume_a)
        if assume_a == "sym" and np.dtype(dtype).kind != "c":
            yield solves(A, b, assume_a=assume_a, transposed=True)


@SOLVE.test("test_empty")
def empty() -> Iterator[Check]:
    for dt_a, dt_b in product(DTYPES, DTYPES):
        yield solves(np.empty((0, 0), dt_a), np.empty(0, dt_b))
        yield solves(np.ones((3, 0, 2, 2), dt_a), np.ones((2, 4), dt_b))


@SOLVE.test("test_empty_rhs")
def no_right_hand_side() -> Iterator[Check]:
    yield solves(np.eye(2), [[], []])


@SOLVE.test(
    "test_structure_detection",
    "structures that `assume_a` does not have are passed as general matrices; transposed complex systems, which SciPy "
    "refuses, are solved",
)
def all_structures_and_orders() -> Iterator[Check]:
    other = ("diagonal", "tridiagonal", "banded", "lower triangular", "upper triangular")
    for dtype, name, nrhs, turned, fortran in product(
        (float, complex), (*STRUCTURES, *other), ((), (5,)), (True, False), (True, False)
    ):
        rng = np.random.default_rng(982345982439826)
        n = 20 if name == "banded" else 5
        b, A = rng.random(size=(n, *nrhs)), rng.random(size=(n, n))
        if dtype is complex:
            b, A = b + rng.random(size=(n, *nrhs)) * 1j, A + rng.random(size=(n, n)) * 1j
        A = {
            "diagonal": lambda A: np.diag(np.diag(A)),
            "lower triangular": np.tril,
            "upper triangular": np.triu,
            "tridiagonal": lambda A: np.triu(np.tril(A, 1), -1),
            "banded": lambda A: np.triu(np.tril(A, 2), -1),
            "sy": lambda A: A + A.T,
            "he": lambda A: A + A.conj().T,
            "po": lambda A: A @ A.T.conj(),
            "ge": lambda A: A,
        }[name if name in other else name[:2]](A)
        A = np.asfortranarray(A) if fortran else A
        for assume_a in {name if name not in other else "gen", "auto"}:
            yield solves(A, b, assume_a=assume_a, transposed=turned)


@SOLVE.test("test_vs_np_solve", "structures that `assume_a` does not have are passed as general matrices")
def stacks_of_order_two() -> Iterator[Check]:
    A = np.arange(1, 25).reshape((4, 3, 2, 1, 1)) * np.eye(2)
    for assume_a, b in product(("auto", "gen", "pos"), (np.ones(2), np.ones((2, 1)), np.ones((2, 2)) * [1, 2])):
        yield solves(A, b, assume_a=assume_a)


@SOLVE.test("test_pos_lower")
def the_lower_triangle_of_a_definite_matrix() -> Iterator[Check]:
    rng = np.random.default_rng(0)
    A = rng.normal(size=(4, 4))
    A = np.tril(A @ A.T)
    b = rng.normal(size=(4, 2))
    expected = np.linalg.solve(A + np.tril(A, -1).T, b)
    yield solves(A, b, expected, 1e-13 * np.abs(expected).max(), assume_a="pos", lower=True)
    yield solves(A.T, b, expected, 1e-13 * np.abs(expected).max(), assume_a="pos", lower=False)


@SOLVE.test("test_pos_fails_sym_complex")
def a_complex_symmetric_matrix_is_not_hermitian() -> Iterator[Check]:
    a, b = 182.56985285 - 64.28859483j, -177.24879835 + 11.0780499j
    A = np.array([[a, b], [b, -b]])
    expected = np.linalg.inv(A)
    for assume_a in ("gen", "sym", "auto"):
        yield solves(A, np.eye(2), expected, 1e-14, assume_a=assume_a)
    yield solves(A, np.eye(2), assume_a="pos")  # the Hermitian matrix of the upper triangle


@SOLVE.test("test_readonly")
def read_only() -> Iterator[Check]:
    A = np.eye(3)
    A.flags.writeable = False
    yield solves(A, np.ones(3), np.ones(3), 0.0)


@SOLVE.test("test_batch_negative_stride")
def stacks_with_negative_strides() -> Iterator[Check]:
    A = np.arange(24).reshape(2, 3, 2, 2)[:, ::-1]
    yield solves(A, np.ones(2))
    yield solves(A, np.ones((2, 4))[:, ::-1])


@SOLVE.test("test_core_negative_stride")
def matrices_with_negative_strides() -> Iterator[Check]:
    A = np.arange(24).reshape(2, 3, 2, 2)[:, :, ::-1]
    yield solves(A, np.ones(2))
    yield solves(A, np.ones((2, 4))[::-1])


@SOLVE.test("test_core_non_contiguous")
def strided_matrices() -> Iterator[Check]:
    A = np.arange(48).reshape(2, 3, 2, 4)[..., ::2]
    yield solves(A, np.ones(2))
    yield solves(A, np.ones(4)[::2])


@SOLVE.test("test_batch_non_contiguous")
def strided_stacks() -> Iterator[Check]:
    A = np.arange(48).reshape(2, 6, 2, 2)[:, ::2]
    yield solves(A, np.ones(2))
    yield solves(A, np.ones((2, 6))[:, ::2])


@SOLVE.test("test_batch_weird_strides")
def stacks_with_permuted_axes() -> Iterator[Check]:
    yield solves(np.arange(48).reshape(2, 3, 2, 2, 2).transpose(1, 3, 4, 0, 2), np.ones(2))


@SOLVE.test("test_overwrite_args", "`mx.solve` never overwrites its arguments, so there is no such option")
def types_and_orders_of_arguments() -> Iterator[Check]:
    for of_A, of_b, order_A, order_b, columns, turned in product(
        (int, float), (int, float), "CF", "CF", (1, 2), (True, False)
    ):
        A = (np.arange(1, 10).reshape(3, 3) + np.eye(3)).astype(of_A, order=order_A)
        b = np.arange(3) if columns == 1 else np.stack([np.arange(3) * j for j in range(2)]).T
        yield solves(A, b.astype(of_b, order=order_b), transposed=turned)


@SOLVE.test("test_posdef_not_posdef")
def an_indefinite_matrix() -> Iterator[Check]:
    A = np.arange(9).reshape(3, 3)
    A = A + A.T + np.eye(3)
    for assume_a in ("gen", "auto"):
        yield solves(A, np.ones(3), assume_a=assume_a)
    yield raises(np.linalg.LinAlgError, "minor of order", lambda: mx.solve(A, np.ones(3), assume_a="pos"))


@SOLVE.test("test_diagonal", "diagonal matrices are passed as general matrices; for 1e30, x is accurate after scaling")
def diagonal_matrices_of_a_stack() -> Iterator[Check]:
    A = np.stack([np.triu(np.ones((3, 3))), np.diag(np.arange(1, 4))])
    yield solves(A, np.ones(3), np.stack([[0, 0, 1], 1 / np.arange(1, 4)]), 1e-15)
    yield solves([[1e30, 0], [0, 1]], np.ones(2), [1e-30, 1.0], 1e-45)
    yield raises(np.linalg.LinAlgError, "zero", lambda: mx.solve(np.array([[0, 0], [0, 1]]), np.ones(2)))


@SOLVE.test(
    "test_tridiagonal", "tridiagonal matrices are passed as general matrices; for 1e20, x is accurate after scaling"
)
def tridiagonal_matrices_of_a_stack() -> Iterator[Check]:
    T = np.diag(np.full(4, -2.0)) + np.diag(np.ones(3), 1) + np.diag(np.ones(3), -1)
    A = np.stack([np.triu(np.ones((4, 4))), T])
    yield solves(A, np.ones(4), np.stack([[0, 0, 0, 1], [-2.0, -3.0, -3.0, -2.0]]), 1e-14)
    large, singular = A.copy(), A.copy()
    large[1, 0, 0] = 1e20
    singular[1, 0, :2] = 0
    yield solves(large, np.ones(4))
    yield raises(np.linalg.LinAlgError, r"A\[1\]", lambda: mx.solve(singular, np.ones(4)))


@SOLVE.test("TestOverwrite.test_solve")
def arguments_of_order_three() -> Iterator[Check]:
    rng = np.random.default_rng(3)
    for dtype, order in product(TYPES, "CF"):
        yield solves(np.asarray(random(rng, (3, 3), dtype), order=order), random(rng, 3, dtype))


@SOLVE.test("TestBatch.test_solve", "`longdouble` is refused")
def batches() -> Iterator[Check]:
    for shape, dtype in product(((5,), (5, 4), (2, 3, 5, 4)), FLOATING):
        rng = np.random.default_rng(8342310302941288912051)
        yield solves(random(rng, (2, 3, 5, 5), dtype), random(rng, shape, dtype))
    A = np.eye(2, dtype=np.longdouble)
    yield raises(TypeError, "longdouble|float128", lambda: mx.solve(A, np.ones(2)))


SOLVE.reasons |= {
    "test_check_finite": "no argument `check_finite`: `mx.solve` always checks A and b",
    "test_scalar_a_and_1D_b": "A must be a matrix, not a scalar",
    "test_transposed_notimplemented": "SciPy skips this test",
}

# --- Cholesky factors ---------------------------------------------------------------------------------------------


@CHO.test("TestCholesky.test_empty")
def empty_factors_and_right_hand_sides() -> Iterator[Check]:
    for dt, dt_b in product(DTYPES, DTYPES):
        for shape in ((0,), (0, 0)):
            yield solves(np.empty((0, 0), dt), np.empty(shape, dt_b), solver=by_cholesky, assume_a="pos")


@CHO.test("TestChoFactor.test_empty", "factors are an object, whose `solve` is called")
def empty_factors() -> Iterator[Check]:
    for dt in DTYPES:
        yield solves(np.empty((0, 0), dt), np.empty(0, dt), solver=by_cholesky, assume_a="pos")
        yield solves(np.eye(2, dtype=dt), np.ones(2, dt), np.ones(2), 0.0, solver=by_cholesky, assume_a="pos")


@CHO.test("TestOverwrite.test_cho_factor")
def cho_factor_does_not_overwrite() -> Iterator[Check]:
    for dtype, order in product(TYPES, "CF"):
        A = random(np.random.default_rng(3), (3, 3), dtype)
        A = np.asarray(A @ A.conj().T + np.eye(3), dtype, order=order)
        yield solves(A, np.ones(3, dtype), solver=by_cholesky, assume_a="pos")


@CHO.test("TestOverwrite.test_cho_solve")
def cho_solve_does_not_overwrite() -> Iterator[Check]:
    for dtype in TYPES:
        A = np.array([[2, -1, 0], [-1, 2, -1], [0, -1, 2]])
        yield solves(A, random(np.random.default_rng(3), 3, dtype), solver=by_cholesky, assume_a="pos")


@CHO.test(
    "TestBatch.test_cho_solve", 'stacks are solved by `mx.solve(assume_a="pos")`; `mx.cho_factor` factors one matrix'
)
def batches_of_definite_matrices() -> Iterator[Check]:
    for shape, dtype in product(((5,), (5, 4), (2, 3, 5, 4)), FLOATING):
        rng = np.random.default_rng(8342310302941288912051)
        A = random(rng, (2, 3, 5, 5), dtype)
        A = ((A + np.swapaxes(A, -1, -2).conj()) / 2 + 5 * np.eye(5)).astype(dtype)
        yield solves(A, random(rng, shape, dtype), assume_a="pos")


CHO.reasons |= {"TestBatch.test_ldl_cholesky": "`mx.cho_factor` factors one matrix, and does not return its entries"}

# --- LU factors ---------------------------------------------------------------------------------------------------


@LU.test("TestLUFactor.test_simple_known", "factors are an object; the solution is compared instead of its entries")
def known_factors() -> Iterator[Check]:
    for order in "CF":
        A = np.array([[2, 1], [0, 1.0]], order=order)
        yield solves(A, np.array([3.0, 1.0]), [1.0, 1.0], 0.0, solver=by_lu)


@LU.test("TestLUFactor.test_shape_dtype", "rectangular matrices are refused")
def shapes_and_types() -> Iterator[Check]:
    for m, n, dtype in product(range(3), range(3), TYPES):
        A = np.eye(m, n, dtype=dtype)
        if m == n:
            yield solves(A, np.ones(n, dtype), np.ones(n), 0.0, solver=by_lu)
        else:
            yield raises(ValueError, "square", partial(mx.lu_factor, A))


@LU.test("TestLUFactor.test_empty", "rectangular matrices are refused")
def empty_lu() -> Iterator[Check]:
    yield solves(np.zeros((0, 0)), np.empty(0), solver=by_lu)
    for shape in ((0, 2), (2, 0)):
        yield raises(ValueError, "square", partial(mx.lu_factor, np.zeros(shape)))


@LU.test("TestLUSolve.test_lu")
def factors_solve_as_solve() -> Iterator[Check]:
    rng = np.random.default_rng(1682281250228846)
    A, b = rng.random((10, 10)), rng.random((10,))
    for order in "CF":
        expected = np.linalg.solve(A, b)
        yield solves(np.array(A, order=order), b, expected, 1e-12 * np.abs(expected).max(), solver=by_lu)


@LU.test("TestLUSolve.test_empty")
def empty_lu_and_right_hand_sides() -> Iterator[Check]:
    for dt, dt_b in product(DTYPES, DTYPES):
        for shape in ((0,), (0, 0)):
            yield solves(np.empty((0, 0), dt), np.empty(shape, dt_b), solver=by_lu)


@LU.test("TestBatch.test_lu_solve", "stacks are solved by `mx.solve`; `mx.lu_factor` factors one matrix")
def batches_of_lu() -> Iterator[Check]:
    for shape, dtype in product(((5,), (5, 4), (2, 3, 5, 4)), FLOATING):
        rng = np.random.default_rng(8342310302941288912051)
        yield solves(random(rng, (2, 3, 5, 5), dtype), random(rng, shape, dtype))


RECTANGULAR = [f"{name}{kind}" for name in ("hrectangular", "vrectangular", "medium1") for kind in ("", "_complex")]
LU.reasons |= {
    **{
        f"TestLUFactor.test_{name}": "`mx.lu_factor` factors square matrices only"
        for name in ("hrectangular", "vrectangular", "hrectangular_complex", "vrectangular_complex")
    },
    **{
        f"TestLUFactor.test_{name}": "`mx.lu_factor` factors square matrices only"
        for name in ("medium1", "medium1_complex")
    },
    "TestLUFactor.test_check_finite": "tests `scipy.linalg.lu`",
    "TestLUSolve.test_check_finite": "no argument `check_finite`: A and b are always checked",
}

# --- least squares ------------------------------------------------------------------------------------------------

OVERDETERMINED = ([[1, 2], [4, 5], [3, 4]], [1, 2, 3], [-3 / 7, 6 / 7])
COMPLEX = (
    [[1 + 2j, 2], [4, 5], [3, 4]],
    [1, 2 + 4j, 3],
    [-0.4831460674157303 + 0.258426966292135j, 0.921348314606741 + 0.292134831460674j],
)
UNDERDETERMINED = ([[1, 2, 3], [4, 5, 6]], [1, 2], [-1 / 18, 1 / 9, 5 / 18])
REAL, COMPLEX_TYPES = TYPES[:2], TYPES[2:]


def checks_of(problem: tuple[Any, Any, Any], types: Any) -> Iterator[Check]:
    for dtype in types:
        A, b, x = problem
        atol = 25 * float(np.finfo(dtype).eps)  # SciPy's tolerance
        yield least_squares(np.array(A, dtype), np.array(b, dtype), 2, np.array(x), atol)


@LSTSQ.test("test_simple_exact", "no argument `lapack_driver`")
def exact() -> Iterator[Check]:
    for dtype, b in product(REAL, RIGHT_SIDES):
        yield least_squares(np.array([[1, 20], [-30, 4]], dtype), np.array(b, dtype), 2)


LSTSQ.test("test_simple_overdet", "no argument `lapack_driver`")(lambda: checks_of(OVERDETERMINED, REAL))
LSTSQ.test("test_simple_overdet_complex", "no argument `lapack_driver`")(lambda: checks_of(COMPLEX, COMPLEX_TYPES))
LSTSQ.test("test_simple_underdet", "no argument `lapack_driver`")(lambda: checks_of(UNDERDETERMINED, REAL))


def random_problems(shapes: Any, types: Any, count: int) -> Iterator[Check]:
    for (m, n), dtype in product(shapes, types):
        rng = np.random.RandomState(1234)
        A = rng.random_sample([m, n])
        A = A + 1j * rng.random_sample([m, n]) if np.dtype(dtype).kind == "c" else A
        A[range(n), range(n)] = 20 * (0.1 + A[range(n), range(n)])
        for _ in range(count):
            yield least_squares(A.astype(dtype), rng.random_sample([m, 3]).astype(dtype), n)


SQUARE, TALL = ((20, 20), (200, 200)), ((20, 15), (200, 2))
LSTSQ.test("test_random_exact", "no argument `lapack_driver`")(lambda: random_problems(SQUARE, REAL, 4))
LSTSQ.test("test_random_complex_exact", "no argument `lapack_driver`")(
    lambda: random_problems(SQUARE, COMPLEX_TYPES, 2)
)
LSTSQ.test("test_random_overdet", "no argument `lapack_driver`")(lambda: random_problems(TALL, REAL, 4))
LSTSQ.test("test_random_complex_overdet", "no argument `lapack_driver`")(
    lambda: random_problems(TALL, COMPLEX_TYPES, 2)
)


@LSTSQ.test("test_empty")
def empty_problems() -> Iterator[Check]:
    for of_A, of_b in (((0, 2), (0,)), ((0, 4), (0, 2)), ((4, 0), (4,)), ((4, 0), (4, 2))):
        yield least_squares(np.zeros(of_A), np.ones(of_b), 0)


@LSTSQ.test("test_empty_dtype")
def types_of_empty_problems() -> Iterator[Check]:
    for dt_a, dt_b in product(DTYPES, DTYPES):
        yield least_squares(np.empty((0, 0), dt_a), np.empty(0, dt_b), 0)


@LSTSQ.test("TestOverwrite.test_lstsq")
def lstsq_does_not_overwrite() -> Iterator[Check]:
    rng = np.random.default_rng(3)
    for dtype in TYPES:
        yield least_squares(random(rng, (3, 2), dtype), random(rng, 3, dtype), 2)


LSTSQ.reasons |= {
    "test_check_finite": "no argument `check_finite`: A and b are always checked",
    "TestBatch.test_lstsq": "`mx.lstsq` solves problems with one matrix",
}

# --- the tests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checks", cases(PEERS))
def test_inputs_of_scipy(checks: Callable[[], Iterator[Check]]) -> None:
    for check in checks():
        check()


def names_in(file: Path, classes: dict[str, str]) -> set[str]:
    """Return the names of the tests of some classes in a file, with the prefix of each class in this file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {
        classes[node.name] + item.name
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name in classes
        for item in node.body
        if isinstance(item, ast.FunctionDef) and item.name.startswith("test_")
    }


@pytest.mark.skipif(not scipy.__version__.startswith("1.17."), reason="the lists are those of SciPy 1.17")
@pytest.mark.skipif(find_spec("scipy.linalg.tests") is None, reason="SciPy is installed without its tests")
def test_no_test_of_scipy_is_missing() -> None:
    place = Path(scipy.linalg.__file__).parent / "tests"
    basic = names_in(place / "test_basic.py", {"TestSolve": ""})
    assert basic == {name for name in SOLVE.names if "." not in name}
    basic = names_in(place / "test_basic.py", {"TestLstsq": ""})
    assert basic == {name for name in LSTSQ.names if "." not in name}
    lu = names_in(place / "test_decomp_lu.py", {name: f"{name}." for name in ("TestLUFactor", "TestLUSolve")})
    assert lu == {name for name in LU.names if not name.startswith("TestBatch")}


def test_the_checks_can_fail() -> None:
    A = np.array([[2.0, 1.0], [0.0, 4.0]])
    x = np.linalg.solve(A, np.ones(2)) * (1 + 1e-12)
    with pytest.raises(AssertionError):
        check_solution(A, x, np.ones(2))
    with pytest.raises(AssertionError):
        solves(A, np.ones(2), solver=lambda A, b, **_: (x, mx.solve(A, b)[1]))()
    with pytest.raises(AssertionError):
        solves(A, np.ones(2), transposed=True, solver=lambda A, b, **_: mx.solve(A, b))()
    assert np.array_equal(meant([[2, 3j], [9, 5]], assume_a="her"), [[2, 3j], [-3j, 5]])

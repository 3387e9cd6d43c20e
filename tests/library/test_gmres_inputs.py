"""Test the inputs that `mxpeak.gmres` accepts, does not modify, and refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import mxpeak as mx
from mxpeak.errors import ExitCode, ResourceError, SingularError, UsageError
from mxpeak.library.sparse.inputs import matrix
from mxpeak.runtime import calls
from tests.support.sparse_systems import line, parts, poisson, random, reached, vector

# --- accepted inputs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dia", "bsr", "lil", "dok"])
def test_every_format_of_scipy_is_taken(form: str) -> None:
    A, b = random(40), vector(40)
    for of_kind in (A, sparse.csr_matrix(A)):
        x, info = mx.gmres(of_kind.asformat(form), b)
        assert info.converged
        assert x.dtype == np.float64
        assert reached(A, x, b, 1e-9)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "i4", "i8", "u2", "?", "f2", ">f4", ">f8", ">i4"])
def test_every_real_type_is_taken(dtype: str) -> None:
    """This includes types that SciPy only stores: half precision, and the other byte order."""
    A = line(30, -1, 4) if dtype not in ("u2", "?") else sparse.csr_array(sparse.eye_array(30) * 3)
    b = np.arange(1, 31).astype(dtype)
    for form in ("csr", "csc", "coo", *(() if dtype in ("f2", ">f4", ">f8", ">i4") else ("dia", "lil"))):
        B = A.asformat(form, copy=True)
        if form in ("dia", "lil"):
            B = B.astype(dtype)
        else:
            B.data = B.data.astype(dtype)
        x, info = mx.gmres(B, b)
        assert info.converged
        assert B.dtype == dtype
        exact = A if dtype != "?" else sparse.csr_array(sparse.eye_array(30))
        assert reached(exact, x, b.astype(float), 1e-9)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 9),
    seed=st.integers(0, 2**31),
    form=st.sampled_from(["csr", "csc", "coo", "bsr"]),
    dtype=st.sampled_from([np.float64, np.float32, np.int16]),
    wide=st.booleans(),
    twice=st.booleans(),
    columns=st.integers(0, 3),
)
def test_any_input_gives_numpys_solution_and_is_not_modified(
    n: int, seed: int, form: str, dtype: Any, wide: bool, twice: bool, columns: int
) -> None:
    rng = np.random.default_rng(seed)
    i, j = rng.integers(0, n, (2, 3 * n))
    value = rng.integers(-4, 5, 3 * n)
    i, j = np.concatenate([i, np.arange(n)]), np.concatenate([j, np.arange(n)])
    value = np.concatenate([value, np.full(n, 4 * 3 * n + 1)])
    A = sparse.coo_array((value.astype(dtype), (i, j)), shape=(n, n))  # unsorted, with duplicate entries
    if not twice:
        A.sum_duplicates()
    A = unsorted(A) if form == "csr" and twice else A.asformat(form)
    if wide:
        for name in {"indices", "indptr", "coords"} & set(dir(A)):
            old = getattr(A, name)
            setattr(A, name, tuple(c.astype(np.int64) for c in old) if name == "coords" else old.astype(np.int64))
    b = rng.integers(-9, 10, (n, columns) if columns else n).astype(dtype)
    before = parts(A)
    x, info = mx.gmres(A, b, rtol=1e-12)
    for old, new in zip(before, parts(A), strict=True):
        assert old.dtype == new.dtype
        assert np.array_equal(old, new)
    assert info.converged
    assert x.shape == b.shape
    # Dominance bounds ||A^-1||_inf by 1, so the error is at most tol·||b||_2, and NumPy's is of size n·u·||b||.
    assert np.abs(x - np.linalg.solve(A.toarray().astype(float), b)).max() <= 2e-12 * max(np.linalg.norm(b), 1)


def unsorted(A: Any) -> Any:
    """Return the entries by rows, in their original order within rows."""
    order = np.argsort(A.coords[0], kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(A.coords[0], minlength=A.shape[0]))])
    return sparse.csr_array((A.data[order], A.coords[1][order], indptr), shape=A.shape)


def test_read_only_and_strided_inputs_are_taken() -> None:
    A = random(30)
    b = np.zeros(60)[::2]
    b[:] = vector(30)
    for array in (A.data, A.indices, A.indptr, b):
        array.flags.writeable = False
    x, info = mx.gmres(A, b)
    assert info.converged
    assert reached(A, x, b, 1e-9)


def test_a_matrix_by_rows_in_fp64_is_not_copied() -> None:
    A = random(30)
    ours = matrix(A)
    for mine, theirs in ((ours.data, A.data), (ours.indices, A.indices), (ours.indptr, A.indptr)):
        assert np.shares_memory(mine, theirs)


def test_the_right_hand_side_may_be_anything_that_is_an_array() -> None:
    A, b = random(20), vector(20)
    for convert in (list, np.float32, lambda b: b.reshape(-1, 1), np.asfortranarray):
        array = np.asarray(convert(b))
        x, _ = mx.gmres(A, convert(b))
        assert x.shape == array.shape
        assert reached(A, x.ravel(), array.ravel().astype(float), 1e-9)


def test_small_orders_are_solved(solve: Any) -> None:
    for n in (1, 2, 3, 65, 130):
        A, b = random(n), vector(n)
        x, info = solve(A, b)
        assert info.converged
        assert reached(A, x, b, 1e-9)


def test_many_right_hand_sides_are_solved_individually(solve: Any) -> None:
    A, B = poisson(12, 12), np.stack([vector(144, 3), np.zeros(144), vector(144, 4)], axis=1)
    X, info = solve(A, B, preconditioner="gs")
    assert info.rhs == 3
    assert X.shape == B.shape
    assert np.array_equal(X[:, 1], np.zeros(144))
    single, alone = solve(A, B[:, 0], preconditioner="gs", threads=1)
    assert np.array_equal(X[:, 0], single)
    assert info.iterations >= alone.iterations
    assert info.residual == max(alone.residual, solve(A, B[:, 2], preconditioner="gs")[1].residual)
    assert "3 right-hand sides" in str(info)


# --- refused inputs ------------------------------------------------------------------------------------------------

NAN = sparse.csr_array(np.array([[1.0, 0], [np.nan, 1]]))
REFUSED = {
    "dense": (np.eye(2), [1, 1], "A is ndarray, not a SciPy sparse matrix"),
    "path": ("A.mtx", [1, 1], "A is str, not a SciPy sparse matrix"),
    "rectangular": (sparse.csr_array((2, 3)), [1, 1], r"A has shape \(2, 3\).*lsqr"),
    "vector": (sparse.coo_array(np.ones(3)), [1, 1, 1], r"A has shape \(3,\)"),
    "long double": (sparse.eye_array(2, dtype=np.longdouble), [1, 1], r"A has dtype .*A\.astype\(float\)"),
    "NaN in A": (NAN, [1, 1], r"A\[1, 0\] is nan: 1 of 3 entries of A are not finite"),
    "NaN in b": (sparse.eye_array(2), [1, np.inf], r"b\[1\] is inf: 1 of 2 entries"),
    "long b": (sparse.eye_array(2), [1, 1, 1], r"A is 2x2, but b has shape \(3,\); use 2 rows"),
    "deep b": (sparse.eye_array(2), np.ones((2, 1, 1)), r"b has shape \(2, 1, 1\); use shape \(n,\) for one vector"),
    "sparse b": (sparse.eye_array(2), sparse.csr_array(np.ones((2, 1))), "b is sparse"),
    "words": (sparse.eye_array(2), ["a", "b"], "b has dtype"),
}


def test_what_cannot_be_solved_is_refused() -> None:
    for A, b, message in REFUSED.values():
        with pytest.raises(UsageError, match=message):
            mx.gmres(A, b)


def test_broken_arrays_are_refused() -> None:
    A = random(5)
    A.indices[3] = 7
    with pytest.raises(UsageError, match="A is not a valid sparse matrix"):
        mx.gmres(A, np.ones(5))


@pytest.mark.parametrize("stored", [False, True])
def test_a_row_or_column_of_zeros_is_singular(stored: bool) -> None:
    dense = np.array([[1.0, 2, 3], [0, 0, 0], [4, 5, 6]])
    A = sparse.csr_array(np.ones((3, 3)))
    A.data[:] = dense.ravel()
    A = A if stored else sparse.csr_array(dense)
    with pytest.raises(SingularError, match=r"because row 1 contains only zeros \(one of 1 such rows\)") as caught:
        mx.gmres(A, np.ones(3))
    assert caught.value.exit_code == ExitCode.FAILED
    with pytest.raises(SingularError, match="because column 1 contains only zeros"):
        mx.gmres(A.T, np.ones(3))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"precision": "half"}, "unknown precision 'half'; use one of mixed, fp64"),
    ({"storage": "csr"}, "unknown storage 'csr'"),
    ({"smoother": "red-black"}, "unknown smoother 'red-black'"),
    ({"rtol": -1e-9}, "rtol=-1e-09 is not valid; use a number of at least 0"),
    ({"rtol": float("nan")}, "rtol=nan"),
    ({"atol": float("nan")}, "atol=nan"),
    ({"restart": 0}, "restart=0 is not valid; use an integer of at least 1"),
    ({"maxiter": 2.5}, "maxiter=2.5"),
    ({"threads": 0}, "threads=0"),
    ({"device": "tpu"}, 'unknown device "tpu"'),
    ({"preconditioner": "ilu"}, "preconditioner='ilu' is unknown; use one of auto, stencil"),
    ({"preconditioner": np.eye(3)}, "preconditioner=an object of type ndarray"),
    ({"preconditioner": "stencil"}, "A is another matrix"),
    ({"x0": [1.0, 2.0]}, "x0 has shape"),
    ({"x0": [1.0, 2.0, np.nan]}, r"x0\[2\] is nan"),
    ({"x0": np.ones((3, 1))}, r"x0 has shape \(3, 1\), but b has shape \(3,\)"),
]


def test_wrong_options_are_named() -> None:
    for options, message in WRONG:
        with pytest.raises(UsageError, match=message):
            mx.gmres(line(3), np.ones(3), **options)


def test_more_threads_than_cores_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "allowed_cores", lambda: [0, 1])
    with pytest.raises(
        UsageError, match=r"threads=100000 is too large, because this process has 2 cores .* use at most 2, or None"
    ):
        mx.gmres(line(3), np.ones(3), threads=100_000)


def test_a_gpu_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ResourceError, match="device cuda:99 "):
        mx.gmres(line(3), np.ones(3), device="cuda:99")

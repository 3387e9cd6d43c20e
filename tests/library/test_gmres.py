"""`mxpeak.gmres`: what it takes, what it leaves alone, which way it goes, and what it says."""

from __future__ import annotations

import subprocess
import sys
import threading
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
import scipy.sparse.linalg as linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mxpeak as mx
from mxpeak.errors import ExitCode, Outcome, ResourceError, SingularError, UsageError
from mxpeak.kernels.choose import sparse as sparse_kernels
from mxpeak.kernels.torch.device import Device
from mxpeak.library.sparse import choosing, solving
from mxpeak.library.sparse.amg import hierarchy
from mxpeak.library.sparse.inputs import matrix
from mxpeak.library.sparse.scaling import Scaling, balanced, equilibration
from mxpeak.library.sparse.solver import Column, Solver
from mxpeak.library.sparse.solving import Options, solve_on
from mxpeak.runtime import calls
from mxpeak.runtime import compile as compiling
from tests.support.sparse_systems import (
    PRECISIONS,
    SWEEPS,
    line,
    needs_pyamg,
    parts,
    poisson,
    random,
    reached,
    residual,
    stencil,
    vector,
)

#: Where a system is solved: on the host, and on torch's CPU, whose kernels are a device's in all but speed.
DEVICES = {"host": None, "device": Device(torch.device("cpu"), triton=False, poison=True)}


@pytest.fixture(params=DEVICES)
def solve(request: pytest.FixtureRequest) -> Any:
    """`mx.gmres` on the host, and on a device."""
    device = DEVICES[request.param]

    def solved(A: Any, b: Any, precision: str = "mixed", *, x0: Any = None, **options: Any) -> Any:
        return solve_on(device, A, b, x0, Options(precision, **options))

    return mx.gmres if device is None else solved


# --- what comes in -------------------------------------------------------------------------------------------------


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
    """Also those that SciPy keeps and does not compute with: half precision, and the other order of bytes."""
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
    A = sparse.coo_array((value.astype(dtype), (i, j)), shape=(n, n))  # unsorted, and some places twice
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
    """The entries by rows, otherwise as they come."""
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


def test_many_right_hand_sides_are_solved_one_by_one(solve: Any) -> None:
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


# --- what is refused -----------------------------------------------------------------------------------------------

NAN = sparse.csr_array(np.array([[1.0, 0], [np.nan, 1]]))
REFUSED = {
    "dense": (np.eye(2), [1, 1], "A is ndarray, not a sparse matrix"),
    "path": ("A.mtx", [1, 1], "A is str, not a sparse matrix"),
    "rectangular": (sparse.csr_array((2, 3)), [1, 1], r"A has shape \(2, 3\).*lsqr"),
    "vector": (sparse.coo_array(np.ones(3)), [1, 1, 1], r"A has shape \(3,\)"),
    "empty": (sparse.csr_array((0, 0)), [], r"A is empty, of shape \(0, 0\)"),
    "complex": (sparse.eye_array(2, dtype=complex), [1, 1], r"A is complex \(complex128\).*Re A, -Im A"),
    "long double": (sparse.eye_array(2, dtype=np.longdouble), [1, 1], r"A has dtype .*A\.astype\(float\)"),
    "NaN in A": (NAN, [1, 1], r"A\[1, 0\] is nan: 1 of 3 entries of A are not finite"),
    "NaN in b": (sparse.eye_array(2), [1, np.inf], r"b\[1\] is inf: 1 of 2 entries"),
    "complex b": (sparse.eye_array(2), [1, 1j], r"b is complex"),
    "long b": (sparse.eye_array(2), [1, 1, 1], r"A is 2x2, but b has shape \(3,\): it needs 2 rows"),
    "deep b": (sparse.eye_array(2), np.ones((2, 1, 1)), r"b has shape \(2, 1, 1\); give one vector as \(n,\)"),
    "no b": (sparse.eye_array(2), np.ones((2, 0)), "b is empty"),
    "sparse b": (sparse.eye_array(2), sparse.csr_array(np.ones((2, 1))), "b is sparse"),
    "words": (sparse.eye_array(2), ["a", "b"], "b has dtype"),
}  # fmt: skip


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
    with pytest.raises(SingularError, match="row 1 has no entry other than zero, as have 1 of 3 rows") as caught:
        mx.gmres(A, np.ones(3))
    assert caught.value.exit_code == ExitCode.FAILED
    with pytest.raises(SingularError, match="column 1 has no entry other than zero"):
        mx.gmres(A.T, np.ones(3))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"precision": "half"}, "unknown precision 'half'; choose one of mixed, fp64"),
    ({"storage": "csr"}, "unknown storage 'csr'"),
    ({"smoother": "red-black"}, "unknown smoother 'red-black'"),
    ({"rtol": 0.0}, "rtol=0.0: give a relative residual between 0 and 1"),
    ({"rtol": float("nan")}, "rtol=nan"),
    ({"restart": 0}, "restart=0: give a whole number from 1 on"),
    ({"maxiter": 2.5}, "maxiter=2.5"),
    ({"threads": 0}, "threads=0"),
    ({"device": "tpu"}, 'unknown device "tpu"'),
    ({"preconditioner": "ilu"}, "preconditioner='ilu' is unknown; choose one of auto, stencil"),
    ({"preconditioner": np.eye(3)}, "preconditioner=an object of type ndarray"),
    ({"preconditioner": "stencil"}, "A is none of them"),
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
    with pytest.raises(UsageError, match=r"threads=100000, but there are 2 cores .* give at most 2, or None"):
        mx.gmres(line(3), np.ones(3), threads=100_000)


def test_a_gpu_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ResourceError, match="device cuda:99: "):
        mx.gmres(line(3), np.ones(3), device="cuda:99")


# --- precisions and storage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_with_every_sweep_reaches_the_tolerance(precision: str) -> None:
    A = poisson(12, 13)
    A.data *= np.pi  # nothing is exact in a low precision
    b = vector(A.shape[0])
    for preconditioner in SWEEPS:
        x, info = mx.gmres(A, b, precision=precision, preconditioner=preconditioner, rtol=1e-11)
        assert info.converged
        assert reached(A, x, b, 1e-11)
        assert info.preconditioner == preconditioner
        assert info.residual <= 1e-11
        if not info.fallback:
            assert info.values == ("fp32" if precision == "mixed" else precision)
            assert info.vectors == ("fp64" if precision == "fp64" else "fp32")


def test_mixed_takes_the_narrowest_format_that_holds_every_value() -> None:
    for factor, values in ((1.0, "bf16"), (1 + 2.0**-8, "fp16"), (1 + 2.0**-20, "fp32"), (1 + 2.0**-40, "fp32")):
        A = poisson(9, 9)
        A.data[7] *= factor
        x, info = mx.gmres(A, np.ones(81))
        assert (info.values, info.vectors) == (values, "fp32")
        assert reached(A, x, np.ones(81), 1e-9)


def test_values_out_of_range_of_a_16_bit_format_are_scaled_into_it() -> None:
    for size in (1e-9, 1e7):
        A, b = poisson(9, 9) * size, vector(81)
        x, info = mx.gmres(A, b, precision="fp16")
        assert info.converged
        assert info.values == "fp16"
        assert info.scaled
        assert reached(A, x, b, 1e-9)


def test_what_overflows_a_format_even_so_is_kept_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxpeak.library.sparse.solver.equilibration", lambda A, everybody: Scaling())
    A, b = poisson(9, 9) * 1e5, vector(81)
    x, info = mx.gmres(A, b, precision="fp16")
    assert info.values == "fp32"
    assert "fp16 ends at 65504, values at 4e+05: they are kept in fp32" in info.message
    assert reached(A, x, b, 1e-9)


@pytest.mark.parametrize("smoother", ["coloured", "natural"])
def test_every_storage_and_order_gives_the_same_solution(solve: Any, smoother: str) -> None:
    A, b = poisson(7, 4, 5), vector(140)
    for storage, preconditioner in product(("ell", "sell", "packed"), ("gs", "sgs")):
        x, info = solve(A, b, storage=storage, smoother=smoother, preconditioner=preconditioner, rtol=1e-12)
        assert info.storage == storage
        levels = 7 + 4 + 5 - 2 if storage == "ell" or solve is not mx.gmres else None
        assert info.colours == (2 if smoother == "coloured" else levels)
        assert reached(A, x, b, 1e-12)


def test_rows_are_taken_one_after_the_other_in_the_natural_order() -> None:
    A, b = poisson(7, 4, 5), vector(140)
    for asked, preconditioner in product(
        ({"smoother": "natural"}, {"storage": "rows", "smoother": "natural"}), ("gs", "sgs", "amg")
    ):
        x, info = mx.gmres(A, b, preconditioner=preconditioner, rtol=1e-12, **asked)
        assert (info.storage, info.colours) == ("rows", None)
        assert "  storage         rows, row after row, " in str(info)
        assert reached(A, x, b, 1e-12)
    x, info = mx.gmres(A, b, storage="rows", preconditioner="gs", rtol=1e-12)
    assert (info.storage, info.colours) == ("rows", 2)
    assert reached(A, x, b, 1e-12)


def test_storage_follows_the_pattern() -> None:
    assert mx.gmres(poisson(20, 20), np.ones(400), preconditioner="gs")[1].storage == "packed"
    rng = np.random.default_rng(1)
    A = sparse.random_array((1500, 1500), density=0.01, rng=rng) + sparse.eye_array(1500) * 30
    assert mx.gmres(A, np.ones(1500))[1].storage == "sell"


FREE = "mxpeak.library.sparse.preconditioners.available_memory_bytes"


@pytest.mark.parametrize(
    ("storage", "advice"), [("auto", "free; use scipy"), ("sell", "free; use scipy"), ("ell", 'type storage="auto"')]
)
def test_rows_too_unlike_to_be_stored_side_by_side_are_refused(
    storage: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrow = sparse.eye_array(900, format="lil") * 1000
    arrow[0, :], arrow[:, 0] = 1, 1
    arrow[0, 0] = 1000
    A, b = sparse.csr_array(arrow), vector(900)
    assert reached(A, mx.gmres(A, b, storage=storage)[0], b, 1e-9)
    monkeypatch.setattr(FREE, lambda: 200_000)
    assert reached(A, mx.gmres(A, b, storage="rows", restart=5, preconditioner="gs")[0], b, 1e-9)
    says = "the longest row of A has 900 entries, the mean 3: storing 64 rows side.*" + advice
    with pytest.raises(ResourceError, match=says):
        mx.gmres(A, b, storage=storage)


def test_what_fits_is_not_refused_and_a_basis_that_does_not_is(monkeypatch: pytest.MonkeyPatch) -> None:
    A, b = stencil(8, 8, 8), np.ones(512)
    _, info = mx.gmres(A, b)
    monkeypatch.setattr(FREE, lambda: info.bytes)  # packed columns take next to nothing
    assert mx.gmres(A, b)[1].converged
    with pytest.raises(ResourceError, match=r"the basis 1 MiB, but .* is free; give a smaller restart"):
        mx.gmres(A, b, restart=512)


@pytest.mark.parametrize("smoother", ["coloured", "natural"])
def test_a_pattern_that_cannot_be_made_symmetric_for_lack_of_memory_is_refused_before(
    smoother: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    A, b = random(400), vector(400)
    monkeypatch.setattr(FREE, lambda: 47 * A.nnz)
    with pytest.raises(ResourceError, match=f'filling up that of {A.nnz} entries .*preconditioner="jacobi"'):
        mx.gmres(A, b, preconditioner="gs", smoother=smoother)
    x, info = mx.gmres(A, b, preconditioner="jacobi", restart=5)
    assert info.converged
    assert reached(A, x, b, 1e-9)


def test_the_number_of_threads_changes_rounding_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "allowed_cores", lambda: [0, 1, 2])
    A, b = poisson(15, 15), vector(225)
    for threads in (1, 3, np.int64(2)):
        x, info = mx.gmres(A, b, threads=threads, preconditioner="gs", rtol=1e-12)
        assert info.converged
        assert reached(A, x, b, 1e-12)


# --- preconditioners -----------------------------------------------------------------------------------------------


def test_the_benchmarks_matrix_is_recognised() -> None:
    for nonsymmetric, precision in product((False, True), ("mixed", "fp64")):
        A = stencil(8, 16, 4, nonsymmetric=nonsymmetric)
        b = vector(A.shape[0])
        x, info = mx.gmres(A, b, precision=precision)
        assert info.preconditioner == "stencil"
        assert "27-point matrix of a 8x16x4 box" in info.reason
        assert info.levels == 3
        assert info.colours == 8
        assert reached(A, x, b, 1e-9)


def test_multigrid_needs_fewer_steps_than_a_sweep() -> None:
    A = stencil(16, 16, 8)
    b = A @ np.ones(A.shape[0])
    steps = {name: mx.gmres(A, b, preconditioner=name)[1].iterations for name in ("stencil", *SWEEPS)}
    assert steps["stencil"] < steps["sgs"] < steps["gs"] < steps["jacobi"]


@pytest.mark.parametrize("change", ["value", "pattern", "odd side", "scaled"])
def test_what_is_almost_the_benchmarks_matrix_is_not_taken_for_it(change: str) -> None:
    A = stencil(4, 4, 5 if change == "odd side" else 4)
    if change == "value":
        A.data[200] = -1.0000001
    elif change == "pattern":
        A = sparse.csr_array(A - sparse.coo_array(([0.5], ([9], [63])), shape=A.shape))
    elif change == "scaled":
        A.data *= 2
    x, info = mx.gmres(A, np.ones(A.shape[0]))
    assert info.preconditioner != "stencil"
    assert reached(A, x, np.ones(A.shape[0]), 1e-9)
    with pytest.raises(UsageError, match='preconditioner="stencil" is for the 27-point matrices'):
        mx.gmres(A, np.ones(A.shape[0]), preconditioner="stencil")


@needs_pyamg
@pytest.mark.parametrize("precision", PRECISIONS)
def test_algebraic_multigrid_solves_poisson_in_a_few_steps(precision: str) -> None:
    A = poisson(24, 25)
    A.data *= np.pi
    b = vector(A.shape[0])
    x, info = mx.gmres(A, b, precision=precision, preconditioner="amg", rtol=1e-11)
    assert info.levels >= 2
    assert info.iterations <= 20  # sweeps alone take some 80
    assert reached(A, x, b, 1e-11)


@needs_pyamg
@pytest.mark.parametrize("size", [1e-310, 1e300])
def test_algebraic_multigrid_solves_matrices_at_both_ends_of_fp64(size: float) -> None:
    A, b = poisson(18, 18) * size, vector(324) * size
    x, info = mx.gmres(A, b, preconditioner="amg")
    assert (info.converged, info.preconditioner) == (True, "amg")
    assert info.iterations <= 20
    _, k = np.frexp(size)
    assert reached(sparse.csr_array((np.ldexp(A.data, -k), A.indices, A.indptr)), x, np.ldexp(b, -k), 1e-9)


@needs_pyamg
def test_what_leads_to_coarser_levels_has_to_be_finite() -> None:
    A = poisson(18, 18)
    n = A.shape[0]
    grids, why = hierarchy(A, A, Scaling(np.full(n, -1100), np.zeros(n, int)))
    assert (grids, why) == ([], "PyAMG's level 1 has entries that are not finite")


@pytest.mark.parametrize("preconditioner", ["stencil", pytest.param("amg", marks=needs_pyamg)])
def test_a_problem_that_starts_over_adds_no_tables_to_its_matrix(preconditioner: str) -> None:
    A = stencil(8, 8, 8)
    solver = Solver(sparse_kernels(None, 1), A, "mixed", preconditioner, "auto", "coloured", 30)
    for seed in range(3):
        assert solver.solve(vector(512, seed), np.zeros(512), 1e-9, 100).residual <= 1e-9
        solver.problem.start_over()
    assert len(solver.problem.inner.A.coarse) == 1  # type: ignore[attr-defined]


@needs_pyamg
def test_auto_takes_algebraic_multigrid_where_it_suits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "FACTORED_ROWS", 0)
    assert mx.gmres(poisson(18, 18), np.ones(324))[1].preconditioner == "amg"
    dense_looking = mx.gmres(random(2000), np.ones(2000))[1]
    assert dense_looking.preconditioner == "gs"
    assert "of what is beside the diagonal has the other sign" in dense_looking.reason


@needs_pyamg
def test_algebraic_multigrid_says_where_it_cannot_be_had() -> None:
    wild = sparse.csr_array(sparse.diags_array(np.logspace(-30, 30, 324)) @ poisson(18, 18))
    with pytest.raises(UsageError, match='"amg" is not possible for this matrix: the scales of its rows or columns'):
        mx.gmres(wild, np.ones(324), preconditioner="amg")
    diagonal = sparse.csr_array(sparse.diags_array(np.arange(1.0, 400)))
    with pytest.raises(UsageError, match='"amg" is not possible for this matrix'):
        mx.gmres(diagonal, np.ones(399), preconditioner="amg")


def test_without_pyamg_auto_takes_a_sweep_and_says_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "has_pyamg", lambda: False)
    monkeypatch.setattr(choosing, "FACTORED_ROWS", 0)
    info = mx.gmres(poisson(9, 9), np.ones(81))[1]
    assert info.preconditioner == "gs"
    assert 'pip install "mxpeak[amg]"' in info.reason
    with pytest.raises(UsageError, match=r'needs PyAMG, which is not installed; type: pip install "mxpeak\[amg\]"'):
        mx.gmres(poisson(9, 9), np.ones(81), preconditioner="amg")


@pytest.mark.parametrize("precision", ["mixed", "fp64"])
def test_a_function_of_ones_own_is_a_preconditioner(precision: str) -> None:
    A, b = poisson(14, 15), vector(210)
    ilu = linalg.spilu(A.tocsc(), drop_tol=1e-3)
    types = set()

    def apply(r: Any) -> Any:
        types.add(r.dtype.name)
        r *= 1.0  # the vector is the function's own
        return ilu.solve(r.astype(np.float64))

    x, info = mx.gmres(A, b, precision=precision, preconditioner=apply)
    assert types == {"float32" if precision == "mixed" else "float64"}
    assert info.preconditioner == "user"
    assert info.times["preconditioner"] > 0
    assert info.iterations <= 12  # far fewer than with a sweep
    assert reached(A, x, b, 1e-9)


def test_a_linear_operator_is_a_preconditioner() -> None:
    A, b = poisson(9, 9), vector(81)
    inverse = linalg.LinearOperator((81, 81), linalg.splu(A.tocsc()).solve, dtype=float)
    x, info = mx.gmres(A, b, precision="fp64", preconditioner=inverse)
    assert info.iterations <= 2
    assert reached(A, x, b, 1e-9)


def test_a_preconditioner_may_itself_solve_with_gmres(solve: Any) -> None:
    A, b = poisson(9, 9), vector(81)
    x, info = solve(A, b, preconditioner=lambda r: solve(A, r, precision="fp32", rtol=1e-4, preconditioner="gs")[0])
    assert info.iterations <= 4
    assert reached(A, x, b, 1e-9)


def test_what_a_preconditioner_returns_is_checked() -> None:
    for function, message in (
        (lambda r: r[:-1], r"returned float32 of shape \(80,\) for a vector of shape \(81,\)"),
        (lambda r: r * 1j, "returned complex64"),
        (lambda r: np.where(np.arange(81) == 5, np.nan, r), r"returned nan at \[5\] for a finite vector"),
        (lambda r: None, "returned object of shape"),
    ):
        with pytest.raises(UsageError, match=message):
            mx.gmres(poisson(9, 9), np.ones(81), preconditioner=function)


def test_a_factorization_is_told_to_pass_its_method() -> None:
    with pytest.raises(UsageError, match=r"pass its method: preconditioner=ilu\.solve"):
        mx.gmres(poisson(9, 9), np.ones(81), preconditioner=linalg.spilu(poisson(9, 9).tocsc()))


@pytest.mark.parametrize("stored", [False, True])
def test_a_zero_on_the_diagonal_leaves_auto_with_factors_or_nothing(
    stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    A = sparse.csr_array(np.array([[0.0, 2, 0], [1, 3, 1], [0, 1, 4]]))
    if stored:
        A = sparse.csr_array((np.append(A.data, 0.0), (np.append(A.nonzero()[0], 0), np.append(A.nonzero()[1], 0))))
    b = np.array([1.0, 2, 3])
    assert mx.gmres(A, b)[1].preconditioner == "lu"
    monkeypatch.setattr(choosing, "NARROW_GRAPH", 0.0)
    x, info = mx.gmres(A, b)
    assert info.preconditioner == "none"
    assert "1 diagonal entries are zero" in info.reason
    assert reached(A, x, b, 1e-9)
    for name in ("gs", "sgs", "jacobi", "amg"):
        with pytest.raises(UsageError, match=r"A\[0, 0\] is zero, one of 1 such diagonal entries"):
            mx.gmres(A, b, preconditioner=name)


# --- how it ends ---------------------------------------------------------------------------------------------------


def test_a_right_hand_side_of_zeros_gives_zeros_at_once(solve: Any) -> None:
    x, info = solve(poisson(5, 5), np.zeros(25), x0=np.ones(25))
    assert np.array_equal(x, np.zeros(25))
    assert info.converged
    assert (info.iterations, info.cycles, info.residual, info.history) == (0, 0, 0.0, (0.0,))


def test_a_start_that_is_the_solution_is_returned(solve: Any) -> None:
    A, x0 = poisson(9, 9), vector(81)
    x, info = solve(A, A @ x0, x0=x0)
    assert info.iterations == 0
    assert np.array_equal(x, x0)


def test_a_good_start_saves_steps(solve: Any) -> None:
    A, exact = poisson(12, 12), vector(144)
    b = A @ exact
    near, _ = solve(A, b, x0=exact + 1e-6 * vector(144, 5), preconditioner="gs")
    steps = [solve(A, b, x0=x0, preconditioner="gs")[1].iterations for x0 in (None, exact + 1e-6 * vector(144, 5))]
    assert steps[1] < steps[0]
    assert reached(A, near, b, 1e-9)


def test_history_falls_to_the_residual_and_counts_the_cycles() -> None:
    A, b = poisson(20, 20), vector(400)
    _, info = mx.gmres(A, b, restart=10, preconditioner="gs")
    assert len(info.history) == info.cycles + 1
    assert info.history[0] == pytest.approx(1.0)
    assert info.history[-1] == pytest.approx(info.residual, rel=1e-6)  # sums in another order
    assert all(later < earlier for earlier, later in zip(info.history, info.history[1:]))
    assert info.iterations <= 10 * info.cycles


def test_running_out_of_iterations_is_an_outcome_and_no_error(solve: Any) -> None:
    A, b = poisson(30, 30), vector(900)
    x, info = solve(A, b, preconditioner="gs", maxiter=7)
    assert not info.converged
    assert info.outcome is Outcome.UNREACHED
    assert info.iterations == 7
    assert "maxiter=7 were used up" in info.message
    assert info.residual == pytest.approx(residual(A, x, b), rel=1e-6)
    assert info.residual < 1
    text = str(info)
    assert text.startswith("NOT CONVERGED: n = 900, 4380 entries, 7 iterations in 1 cycle")
    assert "Raise maxiter and restart" in text


def test_a_tolerance_below_roundoff_is_said_to_be_so(solve: Any) -> None:
    A, b = poisson(12, 12), vector(144)
    x, info = solve(A, b, rtol=1e-17)
    assert not info.converged
    assert "as small as fp64 makes it" in info.message
    assert reached(A, x, b, 0.0)


def test_where_a_low_precision_does_not_do_fp64_takes_over(solve: Any) -> None:
    L = poisson(15, 15)
    least = linalg.eigsh(L, k=1, sigma=0, return_eigenvectors=False)[0]
    A = sparse.csr_array(L - (least - 1e-5) * sparse.eye_array(225)) * np.pi  # rounding to bf16 is 100 times 1e-5
    b = vector(225)
    x, info = solve(A, b, precision="bf16", preconditioner="gs", restart=225)
    assert info.converged
    assert info.fallback
    assert (info.values, info.vectors) == ("fp64", "fp64")
    assert "values in bf16 and vectors in fp32 it went no further" in info.message
    assert "fp64 took over" in str(info)
    assert reached(A, x, b, 1e-9)


def test_with_a_preconditioner_beyond_fp32_fp64_takes_over(solve: Any) -> None:
    A, b = poisson(9, 9), vector(81)
    x, info = solve(A, b, preconditioner=lambda r: (r.double() if hasattr(r, "double") else r.astype(float)) * 1e60)
    assert info.converged
    assert info.fallback
    assert reached(A, x, b, 1e-9)


@pytest.mark.parametrize("first", [0, 1])
def test_a_start_beyond_fp64_spoils_its_own_column_alone_and_is_said_not_to_converge(solve: Any, first: int) -> None:
    A, B, X0 = poisson(9, 9), np.stack([vector(81, 3), vector(81, 4)], axis=1), np.zeros((81, 2))
    X0[:, first] = 1e300
    X, info = solve(A, B, x0=X0, preconditioner="gs")
    assert not info.converged
    assert not info.residual <= 1e-9
    assert "beyond the range of fp64" in info.message
    assert np.array_equal(X[:, first], X0[:, first])
    assert reached(A, X[:, 1 - first], B[:, 1 - first], 1e-9)


@pytest.mark.parametrize("residuals", [(1e-10, np.nan), (np.nan, 1e-10)])
def test_one_residual_that_is_no_number_is_the_worst(residuals: tuple[float, float]) -> None:
    solver = Solver(sparse_kernels(None, 1), line(3), "fp64", "gs", "auto", "coloured", 3)
    info = solving._info(solver, [Column(np.ones(3), residual) for residual in residuals], [1e-9] * 2)
    assert np.isnan(info.residual)
    assert not info.converged


def test_a_solution_beyond_fp64_is_said_to_be_so(solve: Any) -> None:
    A = sparse.eye_array(5, format="csr") * 1e-200
    _, info = solve(A, np.full(5, 1e200))
    assert not info.converged
    assert "x is beyond the range of fp64" in info.message


def test_info_reads_well() -> None:
    A = stencil(8, 8, 8)
    info = mx.gmres(A, A @ np.ones(512))[1]
    lines = str(info).splitlines()
    assert lines[0] == f"converged: n = 512, 10648 entries, {info.iterations} iterations in {info.cycles} cycles"
    assert lines[1].strip().startswith("residual        ")
    assert lines[1].endswith("(asked for: 1e-09)")
    assert lines[2] == "  precision       values bf16, vectors fp32, residuals fp64"
    assert lines[3] == "  preconditioner  stencil, 4 levels (A is the 27-point matrix of a 8x8x8 box)"
    assert lines[4].startswith("  storage         packed, 8 colours, ")
    assert lines[5].startswith("  time            set-up ")
    assert {"gs", "spmv", "ortho", "restriction", "prolongation"} <= info.times.keys()
    assert info.bytes > 2 * info.nnz
    assert info.setup_s > 0


def test_mixed_keeps_less_than_fp64() -> None:
    A = stencil(8, 8, 8)
    mixed, double = (mx.gmres(A, np.ones(512), precision=name)[1].bytes for name in ("mixed", "fp64"))
    assert mixed < 0.6 * double


# --- scaling -------------------------------------------------------------------------------------------------------


def test_a_balanced_matrix_is_not_scaled() -> None:
    assert balanced(poisson(5, 5))
    assert not balanced(poisson(5, 5) * 2.0**100)
    assert not balanced(sparse.csr_array(sparse.diags_array([1.0, 2.0**11])))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 12), power=st.integers(0, 300))
def test_scaling_brings_the_largest_of_each_row_and_column_near_one_without_rounding(
    seed: int, n: int, power: int
) -> None:
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(-power, power + 1, (2, n))
    A = sparse.csr_array(
        sparse.diags_array(np.ldexp(1.0, rows)) @ random(n, seed) @ sparse.diags_array(np.ldexp(1.0, columns))
    )
    scaling = equilibration(A)
    scaled = scaling.matrix(A)
    assert np.array_equal(np.frexp(scaled.data)[0], np.frexp(A.data)[0])  # the same digits
    largest = abs(scaled).max(axis=1).toarray(), abs(scaled).max(axis=0).toarray()
    assert max(part.max() for part in largest) < 1
    assert largest[1].min() >= 0.5  # columns came last
    b, k = scaling.right_hand_side(rng.standard_normal(n))
    assert 0.5 <= np.abs(b).max() < 1
    x = rng.standard_normal(n)
    assert np.array_equal(scaling.solution(scaling.start(x, k), k), x)


# --- many callers --------------------------------------------------------------------------------------------------


def test_callers_in_several_threads_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "allowed_cores", lambda: [0, 1])
    A, found = poisson(15, 15), {}

    def call(seed: int) -> None:
        b = vector(225, seed)
        found[seed] = residual(A, mx.gmres(A, b, threads=2, preconditioner="gs")[0], b)

    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(found) == 4
    assert max(found.values()) <= 1.0001e-9  # sums in another order


def test_a_preconditioner_that_fails_leaves_the_next_call_unharmed() -> None:
    def fail(r: Any) -> Any:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        mx.gmres(poisson(5, 5), np.ones(25), preconditioner=fail)
    assert mx.gmres(poisson(5, 5), np.ones(25))[1].converged


def test_compiling_is_announced_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(compiling, "SILENT_S", 0.0)
    waited = threading.Event()
    for _ in range(2):
        calls.compile_once("first use of a test", ("a key of its own",), lambda: waited.wait(0.2))
    assert capsys.readouterr().err.count("first use of a test: compiling its kernels") == 1


def test_the_docstrings_example_is_right_and_loads_no_mpi() -> None:
    code = (
        "import sys, mxpeak as mx, scipy.sparse as sp; "
        "x, info = mx.gmres(sp.csr_array([[2.0, 0.0], [0.0, 4.0]]), [2.0, 4.0]); "
        "print(x, info.converged, 'mpi4py' in sys.modules, 'gmres' in dir(mx))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[1. 1.] True False True"

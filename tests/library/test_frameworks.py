"""Test arrays of CuPy and JAX: results of the same kind, no copies, and no import of other libraries."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import mxpeak as mx
from mxpeak.library import frameworks
from mxpeak.library.inputs import read
from tests.support import invented_cupy
from tests.support.invented_cupy import Ndarray

RNG = np.random.default_rng(6)
N = 40
A = RNG.standard_normal((N, N)) + 4 * np.eye(N)
LAPLACE = scipy.sparse.diags_array([-1.0, 4.0, -1.0], offsets=[-1, 0, 1], shape=(N, N), format="csr")


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Use the fake CuPy, as if the user had imported it."""
    module = invented_cupy.module()
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


@pytest.fixture
def jax() -> Any:
    """Use JAX on the CPU, in its 64-bit mode."""
    jax = pytest.importorskip("jax")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield jax
    jax.config.update("jax_enable_x64", before)


Make = Callable[[Any], Any]


@pytest.fixture(params=["cupy", "jax"])
def library(request: pytest.FixtureRequest) -> tuple[type, Make, Make]:
    """Return the type of a library's arrays, and the functions that convert a NumPy array to it and back."""
    module = request.getfixturevalue(request.param)
    if request.param == "cupy":
        return Ndarray, Ndarray, Ndarray.get
    return module.Array, module.numpy.asarray, np.asarray


def test_solutions_come_in_the_library_of_b(library: tuple[type, Make, Make]) -> None:
    kind, make, back = library
    for dtype in ("float64", "float32", "complex128", "int64"):
        M, b = A.astype(dtype), np.arange(N).astype(dtype)
        if dtype == "int64":
            M = M + 50 * np.eye(N, dtype=int)
        expected, _ = mx.solve(M, b)
        x, info = mx.solve(make(M), make(b))
        assert isinstance(x, kind)
        assert info.solved
        assert x.dtype == expected.dtype
        assert np.array_equal(back(x), expected)
        assert isinstance(mx.solve(M, make(b))[0], kind)
        assert isinstance(mx.solve(make(M), b)[0], np.ndarray)
        x, _ = mx.solve(make(M), make(b[:, None]), transposed="H")
        assert isinstance(x, kind)
        assert np.array_equal(back(x), mx.solve(M, b[:, None], transposed="H")[0])
    x, _ = mx.lu_factor(make(A)).solve(make(np.ones(N)))
    assert isinstance(x, kind)
    x, _ = mx.solve(make(np.stack([A, 2 * A])), make(np.ones(N)))
    assert isinstance(x, kind)
    assert np.allclose(back(x)[0], 2 * back(x)[1])
    assert isinstance(mx.solve(make(np.zeros((0, 0))), make(np.zeros(0)))[0], kind)


def test_sparse_solutions_and_norms_too(library: tuple[type, Make, Make]) -> None:
    kind, make, back = library
    b = LAPLACE @ np.ones(N)
    x, info = mx.gmres(LAPLACE, make(b), make(np.zeros(N)))
    assert info.converged
    assert isinstance(x, kind)
    assert np.allclose(back(x), 1.0)
    assert mx.norm(make(A), "one") == mx.norm(A, "one")
    assert mx.norms(make(A)) == mx.norms(A)
    sums = mx.row_norms(make(A), "one")
    assert isinstance(sums, kind)
    assert np.array_equal(back(sums), mx.row_norms(A, "one"))


def test_numbers_are_not_copied(library: tuple[type, Make, Make]) -> None:
    _, make, _ = library
    values = make(A)
    address = values.numbers.ctypes.data if isinstance(values, Ndarray) else values.unsafe_buffer_pointer()
    assert read(values, "A").array.ctypes.data == address
    assert read(values, "A").device == "cpu"


def test_errors_name_the_argument(library: tuple[type, Make, Make]) -> None:
    _, make, _ = library
    bad = A.copy()
    bad[1, 2] = np.nan
    with pytest.raises(mx.UsageError, match=r"A\[1, 2\] is nan"):
        mx.solve(make(bad), make(np.ones(N)))
    with pytest.raises(mx.UsageError, match="A has shape"):
        mx.solve(make(A[1:]), make(np.ones(N)))
    with pytest.raises(mx.SingularMatrixError):
        mx.solve(make(np.zeros((3, 3))), make(np.ones(3)))


def test_sparse_matrices_of_cupy(cupy: Any) -> None:
    x, info = mx.gmres(invented_cupy.SparseMatrix(LAPLACE), Ndarray(LAPLACE @ np.ones(N)))
    assert info.converged
    assert np.allclose(x.get(), 1.0)
    with pytest.raises(mx.UsageError, match=r"A is sparse; use A\.toarray\(\), or mxpeak\.gmres"):
        mx.solve(invented_cupy.SparseMatrix(LAPLACE), Ndarray(np.ones(N)))


def test_arrays_on_a_gpu_become_tensors_and_results_return_by_dlpack(
    cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The invented GPU is host memory that only torch imports, as CUDA memory is."""
    torch = pytest.importorskip("torch")
    from mxpeak.kernels.torch.engine import tensors

    returned = []
    monkeypatch.setattr(Ndarray, "__dlpack_device__", lambda _: (2, 3))
    monkeypatch.setattr(tensors, "from_dlpack", lambda values: torch.from_numpy(values.numbers), raising=True)
    monkeypatch.setattr(cupy, "from_dlpack", lambda x: returned.append(x) or Ndarray(x.numpy()))
    assert frameworks.device_of(Ndarray(A)) == "cuda:3"
    x, info = mx.solve(Ndarray(A), Ndarray(np.ones(N)))
    assert isinstance(x, Ndarray)
    assert isinstance(returned[0], torch.Tensor)
    assert info.solved
    assert np.allclose(A @ x.get(), 1.0)


def test_sparse_matrices_of_jax(jax: Any) -> None:
    from jax.experimental import sparse

    b = jax.numpy.asarray(LAPLACE @ np.ones(N))
    dense = jax.numpy.asarray(LAPLACE.toarray())
    for M in (sparse.BCOO.fromdense(dense), sparse.BCOO.fromdense(dense, nse=300), sparse.BCSR.fromdense(dense)):
        x, info = mx.gmres(M, b)
        assert isinstance(x, jax.Array)
        assert info.converged
        assert info.nnz == LAPLACE.nnz
        assert np.allclose(x, 1.0)
    with pytest.raises(mx.UsageError, match=r"A is sparse; use A\.todense\(\), or mxpeak\.gmres"):
        mx.solve(sparse.BCOO.fromdense(dense), b)
    with pytest.raises(mx.UsageError, match="0 batch and 1 dense dimensions"):
        mx.gmres(sparse.BCOO.fromdense(dense, n_dense=1), b)


def test_types_of_jax(jax: Any) -> None:
    jnp = jax.numpy
    assert read(jnp.ones((2, 2), jnp.bfloat16), "A").dtype.name == "bfloat16"
    x, _ = mx.solve(jnp.asarray(A).astype(jnp.bfloat16), jnp.ones(N, jnp.bfloat16))
    assert x.dtype == jnp.float32
    with pytest.raises(mx.UnknownTypeError, match="float8"):
        mx.solve(jnp.eye(3).astype(jnp.float8_e4m3fn), jnp.ones(3))
    jax.config.update("jax_enable_x64", False)
    x, _ = mx.gmres(LAPLACE, jnp.ones(N))
    assert x.dtype == jnp.float32
    assert np.allclose(LAPLACE @ np.asarray(x, float), 1.0, atol=1e-5)


def test_placeholders_of_jax_are_refused_in_words(jax: Any) -> None:
    with pytest.raises(mx.UsageError, match=r"A is a placeholder of jax\.jit"):
        jax.jit(mx.row_norms)(jax.numpy.eye(3))


def test_no_library_is_imported() -> None:
    """Neither mxpeak nor a solve with NumPy arrays imports one."""
    program = (
        "import sys, numpy, mxpeak\n"
        "mxpeak.solve(numpy.eye(3), numpy.ones(3)); mxpeak.norm(numpy.eye(3))\n"
        "print([name for name in ('torch', 'jax', 'cupy') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"

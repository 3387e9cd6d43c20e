"""Test how Numba compiles the host's functions: entry points contain the code of all functions that they call."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from typing import Any

import numba
import numpy as np
import pytest
from numba import types
from numba.core.compiler import CompilerBase
from numba.core.compiler_lock import global_compiler_lock

from mxpeak.kernels import arrays
from mxpeak.kernels.host.engine.jit import VECTOR, _njit, by_type, inner, jit
from mxpeak.kernels.host.kernels import HostKernels


@inner()
def _twice(x):
    return x + x


@by_type
def square(x):
    """Return x²."""
    return lambda x: x * x


@inner()
def _twice_squared(x):
    return _twice(square(x))


def test_functions_that_compiled_code_alone_calls_are_made_machine_code_in_their_callers() -> None:
    _twice_squared.compile((types.float64,))
    compiled = _twice_squared.overloads[types.float64,]
    name = compiled.fndesc.llvm_func_name
    assert not compiled.library._codegen._engine.is_symbol_defined(name), "Numba has made machine code of it by itself"
    assert name in compiled.library.get_llvm_str()

    @jit(VECTOR)
    def entry(x):
        for i in range(x.shape[0]):
            x[i] = _twice_squared(x[i])

    x = np.array([1.0, -3.0])
    entry(x)
    np.testing.assert_array_equal(x, [2.0, 18.0])


def test_garbage_collection_is_off_while_a_function_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, compile_extra = [], CompilerBase.compile_extra

    def watched(self: Any, function: Any) -> Any:
        looks.append(gc.isenabled())
        return compile_extra(self, function)

    monkeypatch.setattr(CompilerBase, "compile_extra", watched)
    _twice_squared.compile((types.float32,))
    entry = _njit()(lambda x: x + 1)
    entry.compile((types.float32,))
    with pytest.raises(numba.TypingError):
        entry.compile((types.unicode_type,))
    assert set(looks) == {False}
    assert gc.isenabled()


def test_while_one_thread_compiles_another_leaves_its_folder_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    requested = threading.Event()

    def kept(function: Any) -> Any:
        requested.set()
        return function

    monkeypatch.setattr("mxpeak.kernels.host.engine.jit._njit", lambda *args, **options: kept)
    monkeypatch.setattr(numba.config, "CACHE_DIR", "of the first")
    with global_compiler_lock:
        second = threading.Thread(target=lambda: jit()(lambda: None))
        second.start()
        assert not requested.wait(0.1)
        assert numba.config.CACHE_DIR == "of the first"
    second.join()
    assert requested.is_set()


def test_a_start_from_cached_code_does_not_load_the_compiler() -> None:
    """If the code that every process needs is in the cache, a process starts without loading the compiler."""
    HostKernels(1)
    code = "import sys; from mxpeak.kernels.host.kernels import HostKernels; HostKernels(1); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "mxpeak.kernels.host.lu.lu" in loaded
    assert not {"numba.np.arraymath", "numba.cpython.mathimpl", "scipy.linalg"} & set(loaded)
    assert arrays.xp is not np or "numpy.f2py" not in loaded


def test_scipys_pointers_to_blas_are_those_that_others_import_later() -> None:
    code = """
import mxpeak.kernels.host.engine.lapack
import scipy.linalg.cython_blas, scipy.linalg.cython_lapack
from mxpeak.kernels.host.engine import blas, lapack
assert blas.cython_blas is scipy.linalg.cython_blas and lapack.cython_lapack is scipy.linalg.cython_lapack
scipy.linalg.lu_factor([[1.0]])
"""
    subprocess.run([sys.executable, "-c", code], check=True)

"""SciPy's BLAS, called through the pointers of its Cython interface: in place, with leading dimensions, no copies.

A is always column-major: element (i, j) lies at address + (i + j·ld)·itemsize, so every block A[i0:i1, j0:j1] is one.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.linalg.cython_blas as cython_blas
from threadpoolctl import ThreadpoolController

Array = np.ndarray[Any, np.dtype[Any]]

_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype, _capsule_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def address(routine: str) -> int:
    """The address of a BLAS routine such as dgemm."""
    capsule = cython_blas.__pyx_capi__[routine]
    return int(_capsule_pointer(capsule, _capsule_name(capsule)))


#: The letter and the scalar type of each type that BLAS knows.
TYPES = {np.dtype(np.float64): ("d", ctypes.c_double), np.dtype(np.float32): ("s", ctypes.c_float)}

_routines: dict[str, Any] = {}


def _routine(name: str, arguments: int) -> Any:
    """The BLAS routine `name` as a ctypes function of so many pointers; calling it releases the interpreter lock."""
    if name not in _routines:
        _routines[name] = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(address(name))
    return _routines[name]


_N, _L, _U, _R = (ctypes.c_char_p(letter) for letter in (b"N", b"L", b"U", b"R"))


def _int(value: int) -> Any:
    return ctypes.byref(ctypes.c_int(value))


def leading(A: Array) -> int:
    """The leading dimension of a column-major block; a block of another order is a mistake of the caller."""
    rows, columns = A.shape
    step = A.strides[1] // A.itemsize if columns > 1 else max(rows, 1)
    column_major = (rows <= 1 or A.strides[0] == A.itemsize) and step >= max(rows, 1)
    assert column_major, f"a block of shape {A.shape} with strides {A.strides} is not column-major"
    return step


def gemm(alpha: float, A: Array, B: Array, C: Array) -> None:
    """C += alpha · A · B, in place; 2·m·n·k flops."""
    (m, k), n = A.shape, B.shape[1]
    if m == 0 or n == 0 or k == 0:
        return
    letter, real = TYPES[C.dtype]
    _routine(f"{letter}gemm", 13)(
        _N, _N, _int(m), _int(n), _int(k), ctypes.byref(real(alpha)), A.ctypes.data, _int(leading(A)),
        B.ctypes.data, _int(leading(B)), ctypes.byref(real(1.0)), C.ctypes.data, _int(leading(C)),
    )  # fmt: skip


def trsm_unit_lower(L: Array, B: Array) -> None:
    """B = L^-1 · B in place, L the unit lower triangle of a square block; m²·n flops."""
    m, n = B.shape
    if m == 0 or n == 0:
        return
    letter, real = TYPES[B.dtype]
    _routine(f"{letter}trsm", 11)(
        _L, _L, _N, _U, _int(m), _int(n), ctypes.byref(real(1.0)), L.ctypes.data, _int(leading(L)), B.ctypes.data,
        _int(leading(B)),
    )  # fmt: skip


def trsv_upper(U: Array, x: Array) -> None:
    """x = U^-1 · x in place, U the upper triangle of a square block; n² flops."""
    if x.shape[0] == 0:
        return
    letter, _ = TYPES[x.dtype]
    _routine(f"{letter}trsv", 8)(
        _U, _N, _N, _int(x.shape[0]), U.ctypes.data, _int(leading(U)), x.ctypes.data, _int(1)
    )  # fmt: skip


def gemv(alpha: float, A: Array, x: Array, y: Array) -> None:
    """y += alpha · A · x in place, x and y contiguous; 2·m·n flops."""
    m, n = A.shape
    if m == 0 or n == 0:
        return
    letter, real = TYPES[y.dtype]
    _routine(f"{letter}gemv", 11)(
        _N, _int(m), _int(n), ctypes.byref(real(alpha)), A.ctypes.data, _int(leading(A)), x.ctypes.data, _int(1),
        ctypes.byref(real(1.0)), y.ctypes.data, _int(1),
    )  # fmt: skip


@lru_cache(maxsize=1)
def _controllers() -> tuple[Any, ...]:
    """The loaded BLAS libraries (SciPy's, and NumPy's own); looked for once, since that reads the process's map."""
    return tuple(c for c in ThreadpoolController().lib_controllers if c.user_api == "blas")


def set_threads(threads: int) -> None:
    """Let BLAS use so many threads from now on."""
    for controller in _controllers():
        controller.set_num_threads(threads)


def blas_facts() -> dict[str, Any]:
    """What `doctor` and results say about BLAS: library, version, which of its kernels run, threads."""
    for controller in _controllers():
        info = controller.info()
        if "scipy.libs" in info["filepath"] or len(_controllers()) == 1:
            return {
                "library": info["internal_api"],
                "version": info["version"],
                "architecture": info.get("architecture"),
                "threads": info["num_threads"],
            }
    return {"library": None, "version": None, "architecture": None, "threads": None}

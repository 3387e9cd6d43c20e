"""SciPy's BLAS, called through the pointers of its Cython interface: in place, with leading dimensions, no copies.

BLAS knows column-major blocks; matrices here are row-major, so it gets their transposes.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import scipy
from threadpoolctl import ThreadpoolController

from mxpeak.errors import ResourceError

Array = np.ndarray[Any, np.dtype[Any]]

_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype, _capsule_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def pointers(name: str) -> Any:
    """SciPy's module of pointers to BLAS or LAPACK, without all else of scipy.linalg: that takes 0.1 s to load.

    It is left to whoever imports scipy.linalg to make it known; the module will be the same.
    """
    whole = f"scipy.linalg.{name}"
    if whole in sys.modules:
        return sys.modules[whole]
    spec = PathFinder.find_spec(whole, [str(Path(folder) / "linalg") for folder in scipy.__path__])
    if spec is None or spec.loader is None:
        raise ResourceError(
            f"SciPy in {scipy.__file__} does not provide {whole}; use the SciPy from `pip install scipy`"
        )
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules.pop(whole, None)  # Cython has put it there
    return module


cython_blas = pointers("cython_blas")


def address(routine: str, interface: Any = cython_blas) -> int:
    """The address of a routine of BLAS, such as dgemm, or of another of SciPy's interfaces; its integers have 32 bits.

    The signature in its capsule says so.  A routine that takes longer ones would read and write beyond ours.
    """
    capsule = interface.__pyx_capi__[routine]
    signature = _capsule_name(capsule)
    if not re.search(rb"\bint \*", signature):
        raise ResourceError(
            f"{routine} in this SciPy does not accept 32-bit integers: {signature.decode()}; use a SciPy "
            "whose BLAS has 32-bit integers, such as the one from `pip install scipy`"
        )
    return int(_capsule_pointer(capsule, signature))


#: The letter and the scalar type of each type that BLAS knows.
TYPES = {np.dtype(np.float64): ("d", ctypes.c_double), np.dtype(np.float32): ("s", ctypes.c_float)}

_routines: dict[str, Any] = {}


def _routine(name: str, arguments: int) -> Any:
    """The BLAS routine `name` as a ctypes function of so many pointers; calling it releases the interpreter lock."""
    if name not in _routines:
        _routines[name] = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(address(name))
    return _routines[name]


_LEFT, _RIGHT, _LOWER, _UPPER, _TRANSPOSED, _PLAIN, _UNIT = (ctypes.c_char_p(c.encode()) for c in "LRLUTNU")


#: The transpose of a transpose: how BLAS reads a block itself, where `order` says how it reads its transpose.
_OTHER = {b"N": b"T", b"T": b"N"}


def _int(value: int) -> Any:
    return ctypes.byref(ctypes.c_int(value))


def order(A: Array) -> tuple[bytes, int]:
    """How BLAS reads the transpose of a block: N and its leading dimension if row-major, T if column-major."""
    (rows, columns), (down, across) = A.shape, (stride // A.itemsize for stride in A.strides)
    if columns == 1 or across == 1:
        return b"N", max(down, columns, 1) if rows > 1 else max(columns, 1)
    assert down == 1 or rows == 1, f"a block of shape {A.shape} with strides {A.strides} is in neither order"
    return b"T", max(across, rows, 1)


#: Columns of a product that is tried in parts: more than libraries take in one block, no multiple of a tile.
TRIED = 1011


def gemm(alpha: float, A: Array, B: Array, C: Array) -> None:
    """C += alpha · A · B, in place, each in either order; 2·m·n·k flops.

    A row-major C is the column-major C^T, so BLAS forms C^T += alpha · B^T · A^T; a column-major C is formed as it is.
    """
    (m, k), n = A.shape, B.shape[1]
    if m == 0 or n == 0 or k == 0:
        return
    letter, real = TYPES[C.dtype]
    (of_A, lda), (of_B, ldb), (of_C, ldc) = order(A), order(B), order(C)
    left, right = (of_B, n, B, ldb), (of_A, m, A, lda)
    if of_C == b"T":
        left, right = (_OTHER[of_A], m, A, lda), (_OTHER[of_B], n, B, ldb)
    _routine(f"{letter}gemm", 13)(
        ctypes.c_char_p(left[0]),
        ctypes.c_char_p(right[0]),
        _int(left[1]),
        _int(right[1]),
        _int(k),
        ctypes.byref(real(alpha)),
        left[2].ctypes.data,
        _int(left[3]),
        right[2].ctypes.data,
        _int(right[3]),
        ctypes.byref(real(1.0)),
        C.ctypes.data,
        _int(ldc),
    )


@cache
def cuts_show(letter: str, threads: int) -> bool:
    """Whether sgemm (dgemm) gives an entry of C other bits where C is multiplied in parts; tried on a few products.

    OpenBLAS's for AVX2 do: a tile's sums are taken in another order at the end of a block than in its midst, SGEMM's
    everywhere, DGEMM's where rows are cut.  Those for AVX-512 do: small products have kernels of their own, which sum
    columns behind the last whole tile differently.  Threads cut anywhere, and an update at whole lines of tiles.
    """
    dtype = {"s": np.float32, "d": np.float64}[letter]
    numbers = np.random.default_rng(1)
    columns, rows = ((64, 192, 448, 704), ()) if threads == 1 else ((61, 192, 435, 704), (7, 24, 33))
    whole = slice(None)
    blocks = [(whole, side) for cut in columns for side in (slice(cut), slice(cut, None))]
    blocks += [(side, whole) for cut in rows for side in (slice(cut), slice(cut, None))]
    for m, k in ((39, 64), (39, 100), (301, 400)):
        A, B, C = (numbers.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, TRIED), (m, TRIED)))
        all_at_once = C.copy()
        gemm(-1.0, A, B, all_at_once)
        for i, j in blocks:
            parts = C.copy()  # whose rows lie as far apart as those of a matrix
            gemm(-1.0, A[i], B[:, j], parts[i, j])
            if not np.array_equal(parts[i, j], all_at_once[i, j]):
                return True
    return False


def trsm_unit_lower(L: Array, B: Array) -> None:
    """B = L^-1 · B in place, L the unit lower triangle of a column-major block: B^T = B^T · L^-T; m²·n flops."""
    _trsm((_RIGHT, _LOWER, _TRANSPOSED, _UNIT), L, B)


def trsm_right_upper(B: Array, U: Array) -> None:
    """B = B · U^-1 in place, U the upper triangle of a column-major block: B^T = U^-T · B^T; m·n² flops."""
    _trsm((_LEFT, _UPPER, _TRANSPOSED, _PLAIN), U, B)


def solve_triangle(T: Array, B: Array, *, lower: bool, transposed: bool) -> None:
    """B = T^-1 · B (T^-T · B) in place, T the unit lower or the upper triangle of a row-major block; m²·n flops.

    B^T = B^T · T^-T, and BLAS reads the block as T^T, whose triangle is the other one.
    """
    triangle, diagonal = (_UPPER, _UNIT) if lower else (_LOWER, _PLAIN)
    _trsm((_RIGHT, triangle, _TRANSPOSED if transposed else _PLAIN, diagonal), T, B, by_rows=True)


def _trsm(how: tuple[Any, ...], T: Array, B: Array, *, by_rows: bool = False) -> None:
    """xTRSM on the transpose of a row-major B, with a column-major triangle T, or one by rows."""
    m, n = B.shape
    if m == 0 or n == 0:
        return
    letter, real = TYPES[B.dtype]
    (of_T, ldt), (of_B, ldb) = order(T), order(B)
    wanted = b"N" if by_rows else b"T"
    assert of_B == b"N" and (of_T == wanted or T.shape[0] == 1), "T must lie as it is said to, B by rows"  # noqa: PT018
    _routine(f"{letter}trsm", 11)(
        *how, _int(n), _int(m), ctypes.byref(real(1.0)), T.ctypes.data, _int(ldt), B.ctypes.data, _int(ldb)
    )


@lru_cache(maxsize=1)
def _controllers() -> tuple[Any, ...]:
    """The loaded BLAS libraries (SciPy's, and NumPy's own); looked for once, since that reads the process's map."""
    return tuple(c for c in ThreadpoolController().lib_controllers if c.user_api == "blas")


def set_threads(threads: int) -> None:
    """Let BLAS use so many threads from now on."""
    for controller in _controllers():
        controller.set_num_threads(threads)


@dataclass(eq=False, slots=True)
class _Inside:
    """Somebody in `one_thread`, and how many threads BLAS had before: none is known yet."""

    before: list[int] = field(default_factory=list)


_turn = Lock()
_inside: list[_Inside] = []


@contextmanager
def one_thread() -> Iterator[None]:
    """BLAS on one thread inside: for what is done sooner than more threads are woken, or by threads of our own.

    Its own go on spinning for some 30 ms after a call, and take cores from ours.  Whoever came in last gives back what
    there was before; another leaves that to the one who came in next, whichever thread of the process it is.
    """
    mine = _Inside()
    try:
        with _turn:
            mine.before = _thread_counts()
            _inside.append(mine)
            set_threads(1)
        yield
    finally:
        with _turn:
            _leave(mine)


def _leave(mine: _Inside) -> None:
    if mine not in _inside:
        return  # interrupted before it was in
    at = _inside.index(mine)
    if mine is _inside[-1]:
        for controller, threads in zip(_controllers(), mine.before):
            controller.set_num_threads(threads)
    else:
        _inside[at + 1].before = mine.before
    del _inside[at]


def own_threads() -> int:
    """How many threads BLAS has where nobody is in `one_thread`, 1 if that is not known."""
    with _turn:
        before = _inside[0].before if _inside else _thread_counts()
    return next((threads for controller, threads in zip(_controllers(), before) if _is_scipys(controller)), 1)


def _forked() -> None:
    """Nobody is inside in a new process but the thread that made it, which has left."""
    global _turn
    _turn = Lock()
    _inside.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _thread_counts() -> list[int]:
    """How many threads each library has now."""
    return [controller.num_threads for controller in _controllers()]


def _is_scipys(controller: Any) -> bool:
    return "scipy.libs" in controller.filepath or len(_controllers()) == 1


def blas_facts() -> dict[str, Any]:
    """What `doctor` and results say about BLAS: library, version, which of its kernels run, threads."""
    for controller in _controllers():
        if _is_scipys(controller):
            info = controller.info()
            return {
                "library": info["internal_api"],
                "version": info["version"],
                "architecture": info.get("architecture"),
                "threads": info["num_threads"],
            }
    return {"library": None, "version": None, "architecture": None, "threads": None}

"""Call BLAS in place, without copies: SciPy's, through the pointers that it exports for Cython, or another library.

BLAS expects column-major blocks. Matrices here are row-major, so BLAS receives their transposes.
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
from mxpeak.kernels.host.engine.blas_library import BlasLibrary, open_blas

Array = np.ndarray[Any, np.dtype[Any]]

_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype, _capsule_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def pointers(name: str) -> Any:
    """Return SciPy's module of BLAS or LAPACK pointers without loading the rest of scipy.linalg, which takes 0.1 s.

    The function does not leave the module in `sys.modules`. Therefore a later import of scipy.linalg registers the
    module as usual.
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
    sys.modules.pop(whole, None)  # Cython has registered the module
    return module


cython_blas = pointers("cython_blas")


#: The library that replaces SciPy's BLAS, or None.
_selected: BlasLibrary | None = None


def select(name: str) -> None:
    """Use a BLAS library in all host kernels: "scipy", a name in `blas_library.FILES`, or a path.

    A library whose products are wrong is refused with ResourceError.
    """
    current = _selected
    if name in ("scipy" if current is None else current.name, current and current.path):
        return
    _use(None if name == "scipy" else open_blas(name))
    try:
        _check_products()
    except ResourceError:
        _use(current)
        raise


def _use(library: BlasLibrary | None) -> None:
    """Replace the library, and forget addresses and properties of the one before."""
    global _selected
    _selected = library
    _routines.clear()
    _controllers.cache_clear()
    cuts_show.cache_clear()


def _check_products() -> None:
    """Compare products and triangular solves of integers, which fp32 represents exactly, with their exact values."""
    numbers = np.random.default_rng(3)
    A, B = (numbers.integers(-8, 9, shape) for shape in ((37, 41), (41, 29)))
    L = np.tril(numbers.integers(-1, 2, (6, 6)), -1) + np.eye(6, dtype=int)
    X = numbers.integers(-8, 9, (6, 29))
    for letter, dtype in (("d", np.float64), ("s", np.float32)):
        C, Y = np.zeros((37, 29), dtype), (L @ X).astype(dtype)
        gemm(1.0, A.astype(dtype), B.astype(dtype), C)
        trsm_unit_lower(np.asfortranarray(L.astype(dtype)), Y)
        for routine, value, exact in (("gemm", C, A @ B), ("trsm", Y, X)):
            if not np.array_equal(value, exact):
                i, j = np.argwhere(value != exact)[0]
                path = _selected.path if _selected else "SciPy"
                raise ResourceError(
                    f"{letter}{routine} of {path} gives wrong results: {value[i, j]:g} instead of {exact[i, j]} in row "
                    f"{i}, column {j}; use another library, or --blas scipy"
                )


def address(routine: str, interface: Any = cython_blas) -> int:
    """Return the address of a routine such as dgemm, in the selected library or from a SciPy interface.

    The function raises ResourceError unless the signature in the routine's capsule shows 32-bit integers. A routine
    with 64-bit integers would read and write beyond the arguments.
    """
    if _selected is not None and (interface is cython_blas or _selected.has_lapack):
        if (place := _selected.address(routine)) is None:
            raise ResourceError(f"{_selected.path} lacks {routine}; use a complete library, or --blas scipy")
        return place
    capsule = interface.__pyx_capi__[routine]
    signature = _capsule_name(capsule)
    if not re.search(rb"\bint \*", signature):
        raise ResourceError(
            f"{routine} in this SciPy does not accept 32-bit integers: {signature.decode()}; use a SciPy "
            "whose BLAS has 32-bit integers, such as the one from `pip install scipy`"
        )
    return int(_capsule_pointer(capsule, signature))


#: The BLAS letter and the C scalar type of each type that BLAS supports.
TYPES = {np.dtype(np.float64): ("d", ctypes.c_double), np.dtype(np.float32): ("s", ctypes.c_float)}

_routines: dict[str, Any] = {}


def call(routine: str, *arguments: Any, interface: Any = cython_blas) -> None:
    """Call a BLAS or LAPACK routine and pass all arguments by reference.

    The arguments are integers, letters, arrays and C numbers. The call releases the GIL.
    """
    if routine not in _routines:
        prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(arguments))
        _routines[routine] = prototype(address(routine, interface))
    _routines[routine](*map(_reference, arguments))


def _reference(value: Any) -> Any:
    """Return a pointer to an integer, letter, array or C number, for a Fortran routine."""
    if isinstance(value, int):
        return ctypes.byref(ctypes.c_int(value))
    if isinstance(value, bytes):
        return ctypes.c_char_p(value)
    return value.ctypes.data if isinstance(value, np.ndarray) else ctypes.byref(value)


_LEFT, _RIGHT, _LOWER, _UPPER, _TRANSPOSED, _PLAIN, _UNIT = (letter.encode() for letter in "LRLUTNU")


#: The opposite of each flag that `order` returns: `order` describes the transpose of a block, and the opposite flag
#: describes the block itself.
_OTHER = {b"N": b"T", b"T": b"N"}


def order(A: Array) -> tuple[bytes, int]:
    """Return the transpose flag and the leading dimension with which BLAS reads the transpose of a block.

    The flag is N if the block is row-major, and T if it is column-major.
    """
    (rows, columns), (down, across) = A.shape, (stride // A.itemsize for stride in A.strides)
    if columns == 1 or across == 1:
        return b"N", max(down, columns, 1) if rows > 1 else max(columns, 1)
    assert down == 1 or rows == 1, f"a block of shape {A.shape} with strides {A.strides} is in neither order"
    return b"T", max(across, rows, 1)


#: Number of columns of the test products in `cuts_show`. The number exceeds one block of a BLAS library and is not a
#: multiple of a tile's width.
TRIED = 1011


def gemm(alpha: float, A: Array, B: Array, C: Array) -> None:
    """Add alpha · A · B to C in place; 2·m·n·k flops. Each matrix is row-major or column-major.

    A row-major C is the column-major C^T, so BLAS computes C^T += alpha · B^T · A^T. A column-major C is updated
    directly.
    """
    (m, k), n = A.shape, B.shape[1]
    if m == 0 or n == 0 or k == 0:
        return
    letter, real = TYPES[C.dtype]
    (of_A, lda), (of_B, ldb), (of_C, ldc) = order(A), order(B), order(C)
    if of_C == b"T":
        forms, sizes, operands = (_OTHER[of_A], _OTHER[of_B]), (m, n, k), (A, lda, B, ldb)
    else:
        forms, sizes, operands = (of_B, of_A), (n, m, k), (B, ldb, A, lda)
    call(f"{letter}gemm", *forms, *sizes, real(alpha), *operands, real(1.0), C, ldc)


@cache
def cuts_show(letter: str, threads: int) -> bool:
    """Test whether sgemm or dgemm rounds entries of C differently if C is computed in parts.

    OpenBLAS's kernels for AVX2 sum a tile at the end of a block in a different order than other tiles. SGEMM does so
    for rows and columns, DGEMM only for rows. The kernels for AVX-512 use separate code for small products, which sums
    the columns after the last complete tile in a different order. Threads cut C anywhere; updates cut C at multiples
    of a tile.
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
            parts = C.copy()  # a copy with the same distance between rows as in a matrix
            gemm(-1.0, A[i], B[:, j], parts[i, j])
            if not np.array_equal(parts[i, j], all_at_once[i, j]):
                return True
    return False


def trsm_unit_lower(L: Array, B: Array) -> None:
    """Overwrite the row-major m×n matrix B with L^-1 · B; m²·n flops.

    L is the unit lower triangle of a column-major m×m block. BLAS computes B^T · L^-T for the column-major matrix B^T.
    """
    _trsm((_RIGHT, _LOWER, _TRANSPOSED, _UNIT), L, B)


def trsm_right_upper(B: Array, U: Array) -> None:
    """Overwrite the row-major m×n matrix B with B · U^-1; m·n² flops.

    U is the upper triangle of a column-major n×n block. BLAS computes U^-T · B^T for the column-major matrix B^T.
    """
    _trsm((_LEFT, _UPPER, _TRANSPOSED, _PLAIN), U, B)


def solve_triangle(T: Array, B: Array, *, lower: bool, transposed: bool) -> None:
    """Overwrite the row-major m×n matrix B with T^-1 · B, or with T^-T · B if `transposed`; m²·n flops.

    T is the unit lower triangle of a row-major m×m block if `lower`, otherwise the upper triangle. BLAS receives the
    transposes of B and of the block, which are column-major, so its flags name the opposite triangle.
    """
    triangle, diagonal = (_UPPER, _UNIT) if lower else (_LOWER, _PLAIN)
    _trsm((_RIGHT, triangle, _TRANSPOSED if transposed else _PLAIN, diagonal), T, B, by_rows=True)


def _trsm(how: tuple[bytes, ...], T: Array, B: Array, *, by_rows: bool = False) -> None:
    """Call xTRSM on the transpose of a row-major B. T is column-major, or row-major if `by_rows`."""
    m, n = B.shape
    if m == 0 or n == 0:
        return
    letter, real = TYPES[B.dtype]
    (of_T, ldt), (of_B, ldb) = order(T), order(B)
    wanted = b"N" if by_rows else b"T"
    assert of_B == b"N", "B must be row-major"
    assert of_T == wanted or T.shape[0] == 1, "T must have the declared order"
    call(f"{letter}trsm", *how, n, m, real(1.0), T, ldt, B, ldb)


@lru_cache(maxsize=1)
def _controllers() -> tuple[Any, ...]:
    """Return controllers of the loaded BLAS libraries, cached because the search reads the process's memory map.

    If the selected library is unknown to the controllers, those of OpenMP are added, because it may use OpenMP.
    """
    loaded = ThreadpoolController().lib_controllers
    of_blas = [c for c in loaded if c.user_api == "blas"]
    if _selected is not None and not any(map(_is_selected, of_blas)):
        of_blas += [c for c in loaded if c.user_api == "openmp"]
    return tuple(of_blas)


def set_threads(threads: int) -> None:
    """Set the number of threads of all loaded BLAS libraries."""
    for controller in _controllers():
        controller.set_num_threads(threads)


@dataclass(eq=False, slots=True)
class _Inside:
    """One active `one_thread` context, with the thread counts of the BLAS libraries at its entry."""

    before: list[int] = field(default_factory=list)


_turn = Lock()
_inside: list[_Inside] = []


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS to one thread inside the context.

    Use the context for small operations, which finish before more threads wake up, and for code that runs on mxpeak's
    own threads. Otherwise, BLAS's threads spin for about 30 ms after each call and take cores from mxpeak's threads.
    Several threads may enter the context at the same time. The context that was entered last restores the thread
    counts at its exit. Any other context passes its saved counts to the context that was entered next.
    """
    context = _Inside()
    try:
        with _turn:
            context.before = _thread_counts()
            _inside.append(context)
            set_threads(1)
        yield
    finally:
        with _turn:
            _leave(context)


def _leave(context: _Inside) -> None:
    """Restore the thread counts that a context saved, or pass these counts to the context that was entered next."""
    if context not in _inside:
        return  # interrupted before it was entered
    at = _inside.index(context)
    if context is _inside[-1]:
        for controller, threads in zip(_controllers(), context.before):
            controller.set_num_threads(threads)
    else:
        _inside[at + 1].before = context.before
    del _inside[at]


def own_threads() -> int:
    """Return the number of threads that BLAS has outside all `one_thread` contexts, or 1 if it is unknown."""
    with _turn:
        before = _inside[0].before if _inside else _thread_counts()
    return next((threads for controller, threads in zip(_controllers(), before) if _is_selected(controller)), 1)


def _forked() -> None:
    """Clear the active contexts in a forked process, because their threads do not exist there."""
    global _turn
    _turn = Lock()
    _inside.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _thread_counts() -> list[int]:
    """Return the current number of threads of each loaded BLAS library."""
    return [controller.num_threads for controller in _controllers()]


def _is_selected(controller: Any) -> bool:
    """Return whether this is the controller of the selected BLAS."""
    if _selected is not None:
        return bool(os.path.realpath(controller.filepath) == os.path.realpath(_selected.path))
    return "scipy.libs" in controller.filepath or len(_controllers()) == 1


def blas_facts() -> dict[str, Any]:
    """Return the library, version, kernel architecture and threads of BLAS, for `doctor` and results.

    A value is None if it is not known. For a library that was selected, `path` and the source of LAPACK are added.
    """
    names = ("library", "version", "architecture", "threads")
    facts: dict[str, Any] = dict.fromkeys(names)
    for controller in _controllers():
        if _is_selected(controller):
            info = controller.info()
            of_info = ("internal_api", "version", "architecture", "num_threads")
            facts = {name: info.get(of) for name, of in zip(names, of_info)}
            break
    if _selected is None:
        return facts
    known = {"library": _selected.name, "version": _selected.file_version, "architecture": _selected.instructions}
    lapack = "of this library" if _selected.has_lapack else "of SciPy"
    return {name: fact or known.get(name) for name, fact in facts.items()} | {"path": _selected.path, "lapack": lapack}

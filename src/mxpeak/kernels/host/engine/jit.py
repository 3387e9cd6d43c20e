"""Numba with the settings of the host kernels: no GIL, and a disk cache in mxpeak's own folder."""

from __future__ import annotations

import fcntl
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core.caching import FunctionCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime import rtsys
from numba.extending import overload

from mxpeak.kernels.host.engine.cache import cache_directory

MATRIX = types.Array(types.float64, 2, "A")
MATRIX32 = types.Array(types.float32, 2, "A")
VECTOR = types.float64[::1]
INTEGERS = types.int64[::1]
TABLE = types.int64[:, ::1]
WORDS = types.uint64[::1]
INT = types.int64
FLAG = types.boolean

#: Typed constants. For a literal argument, Numba would compile another version of the called function.
ZERO, ONE = np.int64(0), np.int64(1)
FALSE, TRUE = np.bool_(False), np.bool_(True)


class _InnerLibrary(JITCodeLibrary):
    """The machine code of a function that only compiled code calls, optimized and compiled with its callers.

    Otherwise, Numba would optimize and compile each function separately, link it into its callers and compile it there
    again. The passes over single functions remain, because they shorten the functions before linking.
    """

    def _optimize_final_module(self):
        pass

    def _finalize_final_module(self):
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name):
        return 0  # the address of an undefined name

    @property
    def codegen(self):
        return self  # Numba calls `set_env` on it

    def set_env(self, name, environment):
        """Do nothing, because no inner function needs the environment that Numba sets for the interpreter."""


class _Compiler(Compiler):
    """Numba's compiler without garbage collection, which takes 10 % of the compile time and frees little memory."""

    def compile_extra(self, func):
        enabled = gc.isenabled()
        gc.disable()
        try:
            return super().compile_extra(func)
        finally:
            if enabled:
                gc.enable()


class _InnerCompiler(_Compiler):
    """The compiler of inner functions, which puts their code into an `_InnerLibrary`."""

    def define_pipelines(self):
        self.state.library = _InnerLibrary(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        return super().define_pipelines()


class _DiskCache(FunctionCache):
    """The disk cache of the machine code of a function, with one entry per combination of argument types.

    To add an entry, Numba rewrites the complete index of a function. Without a lock, two processes that add entries at
    the same time would lose one of them.
    """

    def load_overload(self, sig, target_context):
        """Load cached code without loading Numba's compiler modules, which would take a third of a second."""
        rtsys.initialize(target_context)  # the reference-counting functions that cached code may call
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)

    def save_overload(self, sig, data):
        with _locked():
            super().save_overload(sig, data)

    def holds(self, sig, codegen) -> bool:
        """Return whether the cache has machine code for the argument types `sig`."""
        return self._index_key(sig, codegen) in self._cache_file._load_index()


@contextmanager
def _locked() -> Iterator[None]:
    """Lock the cache folder against other processes.

    If the file system does not support locks, two simultaneous writers are not detected, and the entry of the last
    writer remains.
    """
    with (cache_directory() / "lock").open("a") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


#: Numba's decorator that releases the GIL and omits the unused wrapper for calls from C.
_njit = partial(numba.njit, nogil=True, error_model="numpy", no_cfunc_wrapper=True, pipeline_class=_Compiler)


class _Lazy:
    """An entry point that is compiled, or loaded from disk, at its first call or at the first call of `compiled`."""

    def __init__(self, compile_it: Callable[[], Any]):
        self.compiled = cache(compile_it)

    def __call__(self, *args: Any) -> Any:
        return self.compiled()(*args)


def jit(
    *signature: Any, also: tuple[Any, ...] = (), fastmath: Any = False, allocates: bool = False, later: bool = False
) -> Callable[[Callable[..., Any]], Any]:
    """Declare an entry point with a disk cache. It is compiled now if types are given, otherwise at its first call.

    `also` gives the argument types of a second version of the function. `later` postpones the compilation to the first
    call of the function or of its method `compiled`. Set `allocates` only for functions that allocate arrays or call a
    function that returns new arrays. All other functions are compiled without reference counting. This saves atomic
    operations, and calls before which the vector registers would be cleared.
    """
    signatures = [form for form in (signature, also) if form]

    def compile_now(function: Callable[..., Any]) -> Any:
        with global_compiler_lock:  # one thread at a time, because CACHE_DIR is global
            before = numba.config.CACHE_DIR
            numba.config.CACHE_DIR = str(cache_directory())  # for this function only; the user's functions keep theirs
            try:
                entry = _njit(fastmath=fastmath, _nrt=allocates)(function)
                entry._cache = _DiskCache(function)
            finally:
                numba.config.CACHE_DIR = before
            for form in signatures:
                entry.compile(types.void(*form))
            if signatures:
                entry.disable_compile()
            return entry

    return (lambda function: _Lazy(partial(compile_now, function))) if later else compile_now


def inner(
    *, fastmath: Any = False, inline: bool = False, allocates: bool = False
) -> Callable[[Callable[..., Any]], Any]:
    """Declare a function that only compiled code calls, without the Python wrapper, which is slow to compile.

    The machine code of the function is cached with its callers. With `inline`, LLVM inlines the function. Numba's own
    inlining would repeat the type inference in each caller.
    """
    return _njit(
        fastmath=fastmath, forceinline=inline, no_cpython_wrapper=True, _nrt=allocates, pipeline_class=_InnerCompiler
    )


def by_type(implement: Callable[..., Any]) -> Callable[..., Any]:
    """Declare a function that only compiled code calls, with a body that depends on the argument types.

    `implement` receives the argument types and returns the body.
    """

    def function(*_: Any) -> Any:
        raise NotImplementedError(f"{implement.__name__} has no code for the interpreter")

    options = {"error_model": "numpy", "_nrt": False, "pipeline_class": _InnerCompiler}
    overload(function, jit_options=options)(implement)
    return function

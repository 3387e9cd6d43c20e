"""Numba as the host kernels use it: without the interpreter lock, cached on disk in a folder of our own."""

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

#: Arguments with a type: for a literal Numba would compile the function that takes it once more.
ZERO, ONE = np.int64(0), np.int64(1)
FALSE, TRUE = np.bool_(False), np.bool_(True)


class _InnerLibrary(JITCodeLibrary):
    """The code of a function that compiled code alone calls: it is optimized and made machine code in its callers.

    Numba would do both with each function by itself, link the function into its callers, and do it there again.  What
    is done with single functions stays: it makes them short before they are linked.
    """

    def _optimize_final_module(self):
        pass

    def _finalize_final_module(self):
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name):
        return 0  # as of a name that a library does not define

    @property
    def codegen(self):
        return self  # asked by Numba to set what follows

    def set_env(self, name, environment):
        """The environment is the interpreter's, and no such function needs it."""


class _Compiler(Compiler):
    """Numba's compiler, without garbage collection while it works: that takes a tenth of the time and finds little."""

    def compile_extra(self, func):
        looks = gc.isenabled()
        gc.disable()
        try:
            return super().compile_extra(func)
        finally:
            if looks:
                gc.enable()


class _InnerCompiler(_Compiler):
    """The same, except for where the code is kept."""

    def define_pipelines(self):
        self.state.library = _InnerLibrary(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        return super().define_pipelines()


class _Kept(FunctionCache):
    """Where the machine code of a function is kept, by the types of its arguments.

    Numba adds to a function's index by writing all of it anew, and two processes at once would lose one of two entries.
    """

    def load_overload(self, sig, target_context):
        """What is kept, without all that Numba needs to compile: that takes a third of a second to load."""
        rtsys.initialize(target_context)  # the functions that count references, which kept code may call
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)

    def save_overload(self, sig, data):
        with _alone():
            super().save_overload(sig, data)

    def holds(self, sig, codegen) -> bool:
        """Whether there is an entry for these types."""
        return self._index_key(sig, codegen) in self._cache_file._load_index()


@contextmanager
def _alone() -> Iterator[None]:
    """While no other process writes to the folder; where it cannot be locked, the last one's entry counts."""
    with (cache_directory() / "lock").open("a") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


#: Without the interpreter lock, and without a way in from C, of which there is no use.
_njit = partial(numba.njit, nogil=True, error_model="numpy", no_cfunc_wrapper=True, pipeline_class=_Compiler)


class _Later:
    """An entry point that not every machine needs: `made`, or read from disk, when it is first wanted."""

    def __init__(self, make: Callable[[], Any]):
        self.made = cache(make)

    def __call__(self, *args: Any) -> Any:
        return self.made()(*args)


def jit(
    *signature: Any, also: tuple[Any, ...] = (), fastmath: Any = False, allocates: bool = False, later: bool = False
) -> Callable[[Callable[..., Any]], Any]:
    """An entry point, kept on disk: compile now for these argument types; without any, when it is first called.

    `also`: the argument types of a second form of the same function.  What neither allocates nor calls what returns new
    arrays need not count references: atomic operations, and calls before which the vector registers are cleared.
    `later`: not now, but when it is first called, or its method `made` is.
    """
    types_given = [form for form in (signature, also) if form]

    def kept(function: Callable[..., Any]) -> Any:
        with global_compiler_lock:  # threads compile in turn, and each finds the folder that it has set
            before = numba.config.CACHE_DIR
            numba.config.CACHE_DIR = str(cache_directory())  # of this function only: the user's own keep theirs
            try:
                entry = _njit(fastmath=fastmath, _nrt=allocates)(function)
                entry._cache = _Kept(function)
            finally:
                numba.config.CACHE_DIR = before
            for form in types_given:
                entry.compile(types.void(*form))
            if types_given:
                entry.disable_compile()
            return entry

    return (lambda function: _Later(partial(kept, function))) if later else kept


def inner(
    *, fastmath: Any = False, inline: bool = False, allocates: bool = False
) -> Callable[[Callable[..., Any]], Any]:
    """A function that compiled code alone calls: the way in from Python can take as long to compile as the function.

    It is kept with its callers.  `inline`: LLVM puts it into them.  Numba could too, but types it anew in each.
    """
    return _njit(
        fastmath=fastmath, forceinline=inline, no_cpython_wrapper=True, _nrt=allocates, pipeline_class=_InnerCompiler
    )


#: Forms of a function by the types of its arguments, for compiled code: put into their callers by LLVM, as above.
forms = partial(overload, jit_options={"error_model": "numpy", "_nrt": False, "pipeline_class": _InnerCompiler})

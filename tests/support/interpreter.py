"""Make Triton's interpreter faster.

Without these changes, the interpreter spends much of its time in three places. It replaces the operations of Triton's
language at each launch and at each call of another function. It creates types and shapes for every number, although
there are few of them. It checks for overflows, and ignores the result except in debug mode.
"""

from __future__ import annotations

import dataclasses
import inspect
from functools import cache
from types import SimpleNamespace
from typing import Any

import triton.language as tl
from triton.language import core
from triton.runtime import interpreter


@cache
def builtins_of(package: Any) -> list[str]:
    """Return the names of the operations of a module or class; the first call must precede all replacements."""
    return [name for name, member in inspect.getmembers(package) if core.is_builtin(member)]


def patch_builtin(package: Any, builder: Any, scope: Any) -> None:
    """Replace the operations of an object, as the interpreter does."""
    for name in builtins_of(package):
        member = getattr(package, name)
        if core.is_builtin(member):
            interpreter._patch_attr(package, name, member, builder, scope)


#: Represents a kernel that uses all modules whose operations are replaced.
EVERY_MODULE = SimpleNamespace(__globals__={"tl": tl, "core": core})


class Replacements:
    """Replace operations once per launch, for the kernel and for all functions that it calls."""

    def __init__(self, replace: Any):
        self._replace, self._replaced = replace, False

    def __call__(self, function: Any) -> Any:
        """Replace the operations; only the first call returns a scope that restores them."""
        if self._replaced:
            return interpreter._LangPatchScope()
        self._replaced, self._scope = True, self._replace(EVERY_MODULE)
        return self

    def restore(self) -> None:
        """Restore the operations at the end of the launch."""
        self._scope.restore()
        self._replaced = False


#: Caches of types by shape, because the interpreter otherwise creates them for every number.
of_shapes: dict[Any, tuple[Any, Any]] = {}
of_blocks: dict[Any, dict[str, Any]] = {}
make_block = core.block_type.__init__
scalar_as_numpys = cache(interpreter._get_np_dtype)


def as_numpys(kind: Any) -> Any:
    """Return NumPy's type for a type, or for the numbers of a block."""
    scalar = kind.scalar
    return scalar_as_numpys(core.uint64 if scalar.is_ptr() else scalar)  # pointers cannot be looked up


def set_block(block: Any, element_ty: Any, shape: Any) -> None:
    """Initialize the type of a block of numbers."""
    key = (element_ty.name, *map(core._unwrap_if_constexpr, shape))
    if key not in of_blocks:
        make_block(block, element_ty, shape)
        of_blocks[key] = {**vars(block)}
    vars(block).update(of_blocks[key], element_ty=element_ty)


def set_tensor(tensor: Any, handle: Any, kind: Any) -> None:
    """Initialize a block of numbers, or one number."""
    key = tuple(kind.shape) if kind.is_block() else ()
    if key not in of_shapes:
        make_tensor(tensor, handle, kind)
        of_shapes[key] = tensor.shape, tensor.numel
    tensor.handle, tensor.type, tensor.dtype = handle, kind, kind.scalar
    tensor.shape, tensor.numel = of_shapes[key]


make_tensor = core.tensor.__init__


def hasten() -> None:
    """Make the interpreter replace operations once per launch, and create each type and shape once."""
    if interpreter._get_np_dtype is not as_numpys:
        interpreter._get_np_dtype = as_numpys
        core.block_type.__init__, core.tensor.__init__ = set_block, set_tensor
        builder = interpreter.interpreter_builder
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=builder.options.debug)
    if hasattr(interpreter, "_patch_builtin") and hasattr(interpreter, "_patch_attr"):
        interpreter._patch_builtin = patch_builtin
    if hasattr(interpreter, "_patch_lang") and not isinstance(interpreter._patch_lang, Replacements):
        interpreter._patch_lang = Replacements(interpreter._patch_lang)

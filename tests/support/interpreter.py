"""Make Triton's interpreter faster.

Much of its time would go into what it replaces in Triton's language, at the beginning of a launch and again at each
call of a function by another; much into types and shapes, of which there are few and which it makes for every number;
and much into looks for overflows, which it throws away unless it debugs.
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
    """The names of a module's or a class's operations; it is asked first while none of them is replaced."""
    return [name for name, member in inspect.getmembers(package) if core.is_builtin(member)]


def patch_builtin(package: Any, builder: Any, scope: Any) -> None:
    """What the interpreter does for all members that are operations."""
    for name in builtins_of(package):
        member = getattr(package, name)
        if core.is_builtin(member):
            interpreter._patch_attr(package, name, member, builder, scope)


#: Stands for a kernel that sees all modules whose operations are replaced.
EVERY_MODULE = SimpleNamespace(__globals__={"tl": tl, "core": core})


class Replacements:
    """What a launch replaces, for its kernel and for all functions that it calls; they replace nothing more."""

    def __init__(self, replace: Any):
        self._replace, self._replaced = replace, False

    def __call__(self, function: Any) -> Any:
        """The interpreter asks for its replacements; who asks first restores what was there before."""
        if self._replaced:
            return interpreter._LangPatchScope()
        self._replaced, self._scope = True, self._replace(EVERY_MODULE)
        return self

    def restore(self) -> None:
        """The launch is over."""
        self._scope.restore()
        self._replaced = False


#: What belongs to a shape, and to a shape of one type: few, and made for every number.
of_shapes: dict[Any, tuple[Any, Any]] = {}
of_blocks: dict[Any, dict[str, Any]] = {}
make_block = core.block_type.__init__
scalar_as_numpys = cache(interpreter._get_np_dtype)


def as_numpys(kind: Any) -> Any:
    """NumPy's name for a type, or for that of a block's numbers."""
    scalar = kind.scalar
    return scalar_as_numpys(core.uint64 if scalar.is_ptr() else scalar)  # pointers cannot be looked up


def set_block(block: Any, element_ty: Any, shape: Any) -> None:
    """The type of a block of numbers."""
    key = (element_ty.name, *map(core._unwrap_if_constexpr, shape))
    if key not in of_blocks:
        make_block(block, element_ty, shape)
        of_blocks[key] = {**vars(block)}
    vars(block).update(of_blocks[key], element_ty=element_ty)


def set_tensor(tensor: Any, handle: Any, kind: Any) -> None:
    """A block of numbers, or one number."""
    key = tuple(kind.shape) if kind.is_block() else ()
    if key not in of_shapes:
        make_tensor(tensor, handle, kind)
        of_shapes[key] = tensor.shape, tensor.numel
    tensor.handle, tensor.type, tensor.dtype = handle, kind, kind.scalar
    tensor.shape, tensor.numel = of_shapes[key]


make_tensor = core.tensor.__init__


def hasten() -> None:
    """From now on the interpreter replaces once a launch, and remembers what; and makes each type and shape once."""
    if interpreter._get_np_dtype is not as_numpys:
        interpreter._get_np_dtype = as_numpys
        core.block_type.__init__, core.tensor.__init__ = set_block, set_tensor
        builder = interpreter.interpreter_builder
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=builder.options.debug)
    if hasattr(interpreter, "_patch_builtin") and hasattr(interpreter, "_patch_attr"):
        interpreter._patch_builtin = patch_builtin
    if hasattr(interpreter, "_patch_lang") and not isinstance(interpreter._patch_lang, Replacements):
        interpreter._patch_lang = Replacements(interpreter._patch_lang)

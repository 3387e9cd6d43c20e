"""Triton's interpreter made faster.

Most of its time would go into what it replaces in Triton's language: at the beginning of a launch, and again at each
call of a function by another.
"""

from __future__ import annotations

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


def hasten() -> None:
    """From now on the interpreter replaces once a launch, and remembers what."""
    if hasattr(interpreter, "_patch_builtin") and hasattr(interpreter, "_patch_attr"):
        interpreter._patch_builtin = patch_builtin
    if hasattr(interpreter, "_patch_lang") and not isinstance(interpreter._patch_lang, Replacements):
        interpreter._patch_lang = Replacements(interpreter._patch_lang)

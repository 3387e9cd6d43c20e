"""Run several fast cases in one test that names the failing case."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from tests.support.notes import note_case


def for_each(names: str | tuple[str, ...], values: Iterable[Any]) -> Callable[[Callable[..., None]], Any]:
    """Run a test with all values of one or several arguments, one after the other."""
    every = [{names: value} if isinstance(names, str) else dict(zip(names, value, strict=True)) for value in values]

    def decorate(test: Callable[..., None]) -> Any:
        @wraps(test)
        def in_turn(**fixtures: Any) -> None:
            for case in every:
                with note_case(**case):
                    test(**fixtures, **case)

        signature = inspect.signature(test)
        others = [one for one in signature.parameters.values() if one.name not in every[0]]
        in_turn.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return in_turn

    return decorate

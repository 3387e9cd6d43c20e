"""Add the case to failures inside loops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def note_case(**case: Any) -> Iterator[None]:
    """A failure inside is noted with its case."""
    try:
        yield
    except BaseException as error:  # pytest's own failures are no Exceptions
        error.add_note(f"of {', '.join(f'{name} {value}' for name, value in case.items())}")
        raise

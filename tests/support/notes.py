"""Add the name of the case to failures inside loops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def note_case(**case: Any) -> Iterator[None]:
    """Add the case as a note to a failure inside the block."""
    try:
        yield
    except BaseException as error:  # pytest's failures do not derive from Exception
        error.add_note(f"of {', '.join(f'{name} {value}' for name, value in case.items())}")
        raise

"""Ranks that call together: a mistake of one is raised on all under its number, and so is a call that differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from mxpeak.comm.base import Communicator
from mxpeak.errors import MxpeakError, UsageError
from mxpeak.runtime.nodes import raise_first

T = TypeVar("T")


def agreed(comm: Communicator, work: Callable[[], T], essence: Callable[[T], Any] | None = None) -> T:
    """What `work` gives, which does not communicate; `essence` is what must be the same on all ranks.  Collective."""
    if comm.size == 1:
        return work()
    made: T | None = None
    mistake: MxpeakError | None = None
    cause: Exception | None = None
    try:
        made = work()
    except MxpeakError as error:
        mistake = error
    except Exception as error:  # a bug, or a user's function: the others would wait for this rank for ever
        mistake, cause = MxpeakError(f"{type(error).__name__}: {error}"), error
    try:
        raise_first(comm, mistake)
    except MxpeakError as told:
        raise told from cause
    result = cast(T, made)
    if essence is not None:
        check_alike(comm, str(essence(result)))
    return result


def check_alike(comm: Communicator, mine: str) -> None:
    """Raise on all ranks where one of them says something else than rank 0.  Collective."""
    first = comm.bcast_object(mine)
    mistake = UsageError(f"this rank uses {mine}, but rank 0 uses {first}; use the same values on all ranks")
    raise_first(comm, mistake if mine != first else None)

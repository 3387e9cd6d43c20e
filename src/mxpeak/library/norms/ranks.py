"""Ranks that agree on a call before any of them communicates for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.errors import UsageError


def on_all(build: Callable[[], Any], comm: Communicator, essence: Callable[[Any], Any]) -> Any:
    """The result of `build` on every rank.

    A mistake on one of them raises on all, and so does an essence that differs between ranks.  Collective.
    """
    mistake: Exception | None = None
    try:
        made = build()
    except Exception as error:
        mistake = error
    if comm.agree(mistake is None):
        calls = comm.gather_objects(str(essence(made))) or []
        odd = next((rank for rank, call in enumerate(calls) if call != calls[0]), 0)
        difference = comm.bcast_object(odd and (calls[0], odd, calls[odd]))
        if not difference:
            return made
        first, rank, other = difference
        mistake = UsageError(f"the calls of the ranks differ: {first} on rank 0, {other} on rank {rank}")
    raise mistake or UsageError("the call of another rank of this matrix is invalid; the error on that rank says why")

"""Ranks that agree on a call before any of them communicates for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from mxpeak.comm.base import Communicator
from mxpeak.comm.grid import Grid, make_grid
from mxpeak.errors import UsageError
from mxpeak.layout.grid import ProcessGrid

_grids: WeakKeyDictionary[Any, dict[ProcessGrid, Grid]] = WeakKeyDictionary()


def grid_of(shape: ProcessGrid, comm: Communicator) -> Grid:
    """The grid of all ranks, made once: MPI has a limited number of communicators.  Collective."""
    made = _grids.setdefault(comm, {})
    if shape not in made:
        grid = make_grid(shape, comm)
        assert grid is not None, "the grid takes all ranks"
        made[shape] = grid
    return made[shape]


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

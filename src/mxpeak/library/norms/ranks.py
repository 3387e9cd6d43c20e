"""Ranks that agree on what is asked before any of them communicates for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from mxpeak.comm.base import Communicator
from mxpeak.comm.grid import Grid, make_grid
from mxpeak.comm.solo import Solo
from mxpeak.errors import UsageError
from mxpeak.layout.grid import ProcessGrid


def communicator(comm: Any) -> Communicator:
    """Our own view of a communicator of mpi4py, made once."""
    if comm is None:
        return Solo()
    if hasattr(comm, "Get_rank"):
        from mxpeak.comm.mpi import of_user

        return of_user(comm)
    if not hasattr(comm, "agree"):
        raise UsageError(f"comm = {comm!r} is no communicator; give one of mpi4py, such as MPI.COMM_WORLD")
    return comm  # type: ignore[no-any-return]


_grids: WeakKeyDictionary[Any, dict[ProcessGrid, Grid]] = WeakKeyDictionary()


def grid_of(shape: ProcessGrid, everybody: Communicator) -> Grid:
    """The grid of all ranks, made once: MPI has a limited number of communicators.  Collective."""
    made = _grids.setdefault(everybody, {})
    if shape not in made:
        grid = make_grid(shape, everybody)
        assert grid is not None, "the grid takes all ranks"
        made[shape] = grid
    return made[shape]


def on_all(build: Callable[[], Any], everybody: Communicator, essence: Callable[[Any], Any]) -> Any:
    """What `build` makes on every rank.

    A mistake on one of them raises on all, and so does an essence that is not the same everywhere.  Collective.
    """
    mistake: Exception | None = None
    try:
        made = build()
    except Exception as error:
        mistake = error
    if everybody.agree(mistake is None):
        asked = everybody.gather_objects(str(essence(made))) or []
        odd = next((rank for rank, what in enumerate(asked) if what != asked[0]), 0)
        mistaken = everybody.bcast_object(odd and (asked[0], odd, asked[odd]))
        if not mistaken:
            return made
        first, rank, other = mistaken
        mistake = UsageError(f"the ranks ask for different things: rank 0 for {first}, rank {rank} for {other}")
    raise mistake or UsageError("another rank of this matrix was given something that it cannot take")

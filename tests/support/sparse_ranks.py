"""Distribute the rows of systems to ranks, for `mxpeak.gmres` on virtual ranks and over MPI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import mxpeak as mx
from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.threads import run_ranks


def cut(whole: Any, starts: Sequence[int], rank: int) -> Any:
    """Return one rank's rows."""
    return None if whole is None else whole[starts[rank] : starts[rank + 1]]


def even(n: int, ranks: int) -> list[int]:
    """Return the first row of every rank, and n."""
    return [n * rank // ranks for rank in range(ranks + 1)]


def gmres_on(starts: Sequence[int], A: Any, b: Any, x0: Any = None, **options: Any) -> tuple[Any, list[Any]]:
    """Return the concatenated x of all virtual ranks, and every rank's info."""

    def body(comm: Communicator) -> Any:
        parts = (cut(whole, starts, comm.rank) for whole in (A, b, x0))
        return mx.gmres(*parts, comm=comm, **{"threads": 1, **options})

    done = run_ranks(len(starts) - 1, body)
    return np.concatenate([x for x, _ in done]), [info for _, info in done]

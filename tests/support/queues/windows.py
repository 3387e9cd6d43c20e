"""Run some middle steps of an LU with hundreds of steps, with small blocks instead of large ones.

The first of these steps has no look-ahead before it. The later steps are the same as in the whole run.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import numpy as np

from mxpeak.comm.base import Communicator
from mxpeak.comm.devices import check_device_messages
from mxpeak.comm.exchange import allreduce_by
from mxpeak.comm.grid import make_grid
from mxpeak.distributed.dense import DistMatrix, dist_matrix
from mxpeak.kernels.contract.lu import ROW, VALUE
from mxpeak.kernels.torch.lu import lu as lu_kernels
from mxpeak.layout.generators import generator
from mxpeak.layout.grid import ProcessGrid
from mxpeak.precision import stored_as
from mxpeak.solvers.checkpointing import NoCheckpoints
from mxpeak.solvers.lu import lu, panel, pivoted_lu
from mxpeak.spans import Spans, Step
from tests.support.queues.log import Log
from tests.support.queues.rank import here
from tests.support.queues.runs import kernels_here, played

#: Polls per column of a small panel, whose few columns represent hundreds, because FACT polls at each column.
LOOKS = 32


class _From(NoCheckpoints):
    """Skip the steps before the first one."""

    def __init__(self, first: int):
        super().__init__()
        self.first_step = first


class _EndedError(Exception):
    """The requested steps are complete."""


def _until(end: int) -> Callable[[Step], None]:
    """Return a callback that ends an LU before step `end`."""

    def look(step: Step) -> None:
        if step.index >= end:
            raise _EndedError

    return look


def hpl(
    shape: tuple[int, int], blocks: int, nb: int, steps: range, options: pivoted_lu.PivotedLuOptions, transport: str
) -> list[Log]:
    """Run these steps of an HPL run with `blocks` steps."""

    def factorized(A: DistMatrix, kernels: Any, spans: Spans) -> None:
        pivoted_lu.factorize(A, options, kernels, spans, checkpointer=_From(steps.start))

    return _factored(shape, blocks, nb, steps, transport, ("hpl", 1, "fp64"), factorized)


def hpl_mxp(
    shape: tuple[int, int], blocks: int, nb: int, steps: range, options: lu.MixedLuOptions, transport: str
) -> list[Log]:
    """Run these steps of an HPL-MxP run with `blocks` steps."""

    def factorized(A: DistMatrix, kernels: Any, spans: Spans) -> None:
        lu.factorize(A, options, kernels, spans, checkpointer=_From(steps.start))

    stored = stored_as(options.precision)
    return _factored(shape, blocks, nb, steps, transport, ("dominant-n", 0, stored), factorized)


def _in_turn(column: Communicator, own: Any, theirs: Any, combine: Any) -> None:
    """Select the pivots from each process row alternately, because a large panel has pivots from all of them.

    Otherwise one process row may have most pivots of a small panel, and send most of each message.
    """
    rank = here()
    rank.columns = 1 + getattr(rank, "columns", -1)  # type: ignore[attr-defined]
    if rank.columns % column.size == column.rank and own[ROW] >= 0:  # type: ignore[attr-defined]
        own[VALUE] = np.inf
    allreduce_by(column, own, theirs, combine)


def _factored(
    shape: tuple[int, int],
    blocks: int,
    nb: int,
    steps: range,
    transport: str,
    what: tuple[str, int, str],
    factorized: Any,
) -> list[Log]:
    n = blocks * nb

    def body(comm: Communicator) -> None:
        kernels = kernels_here()
        spans = Spans(stopwatch=kernels.stopwatch, look=_until(steps.stop))
        with suppress(_EndedError):
            factor(check_device_messages(comm, kernels.transport), kernels, shape, (n, nb), what, spans, factorized)

    poll = pivoted_lu.PivotedLu.update_if_ready

    def poll_often(self: Any, event: Any) -> None:
        for _ in range(LOOKS):
            poll(self, event)

    # small panels have no padding to whole lines, because the padding of large panels is negligible
    with (
        patch.object(lu_kernels, "leading_dimension", lambda length, *_: max(length, 1)),
        patch.object(panel, "allreduce_by", _in_turn),
        patch.object(pivoted_lu.PivotedLu, "update_if_ready", poll_often),
    ):
        return played(shape[0] * shape[1], transport, body)[1]


def factor(
    comm: Communicator,
    kernels: Any,
    shape: tuple[int, int],
    sizes: tuple[int, int],
    what: tuple[str, int, str],
    spans: Spans,
    factorized: Any,
) -> None:
    """Generate an N×N matrix in blocks of NB, and factor it, on virtual or real GPUs."""
    (n, nb), (rule, extra, stored) = sizes, what
    grid = make_grid(ProcessGrid(*shape), comm)
    assert grid is not None
    A = dist_matrix(grid, n, n + extra, nb, kernels, stored)
    kernels.generate(A.local, A.rows, A.cols, generator(rule, n).entries)
    factorized(A, kernels, spans)

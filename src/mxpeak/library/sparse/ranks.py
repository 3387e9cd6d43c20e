"""Rows of one system, handed over by several ranks: judged and compared before anything is computed.

What is wrong on one rank, or not the same on all, raises the same error everywhere, and says on which rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from scipy.sparse import csr_array

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import run_on_root
from mxpeak.distributed.halo import numbered, partners
from mxpeak.distributed.rows import Block
from mxpeak.errors import UsageError
from mxpeak.kernels.contract.sparse import SparseKernels
from mxpeak.library.inputs import Array, Input
from mxpeak.library.sparse import inputs
from mxpeak.library.sparse.inputs import Csr
from mxpeak.library.sparse.rank_group import RankGroup
from mxpeak.runtime.placement import threads_of

#: Numbers of rows that an error shows one by one.
SHOWN = 8
#: What ranks without rows need not agree on: an empty array has some type or other.
TYPES = ("A.dtype", "b.dtype")


@dataclass(frozen=True, slots=True)
class Share:
    """This rank's part of a system: its rows of A with all columns, and of b and x0; `A_dtype` as the user had it."""

    A: Csr
    A_dtype: Any
    right_side: Input
    b: Any
    x0: Any


def read(A: Any, b: Any, x0: Any, kernels: SparseKernels) -> Share:
    """What the user of this rank handed over, if it can be solved with."""
    rows = inputs.rows(A)
    right_side = inputs.vectors(b, "b", rows.shape[0], part=True)
    start = inputs.start(x0, right_side, kernels, part=True)
    return Share(rows, A.dtype, right_side, inputs.on_kernels(right_side, kernels), start)


def joined(comm: Communicator, share: Share, said: Mapping[str, str]) -> tuple[RankGroup, Csr]:
    """All ranks of a system, and this one's rows in its own columns; `said` has to be the same on all.  Collective."""
    m, n = share.A.shape
    facts = {"columns of A": str(n), "columns of b": str(share.right_side.shape[1:]), **said}
    told = comm.gather_objects((m, facts))
    starts = run_on_root(comm, lambda: _starts(told or []))
    block = Block(starts, comm.rank, share.A.indptr, share.A.indices.astype(np.int64), share.A.data)
    columns, halo = numbered(block)
    data = share.A.data.copy() if halo.size else share.A.data  # sorted anew, and the user's stay as they are
    A = csr_array((data, columns.astype(np.int32), share.A.indptr), shape=(m, m + halo.size))
    A.sort_indices()
    everybody = RankGroup(comm, tuple(starts), tuple(partners(comm, starts, halo)))
    inputs.check_entries(A, everybody)
    return everybody, A


def _starts(told: Sequence[tuple[int, Mapping[str, str]]]) -> list[int]:
    """Every rank's first row, and n, if the ranks agree."""
    for name in told[0][1]:
        asked = [(rank, facts[name]) for rank, (rows, facts) in enumerate(told) if rows or name not in TYPES]
        for rank, value in asked[1:]:
            if value != asked[0][1]:
                raise UsageError(
                    f"the ranks have different values of {name}: {asked[0][1]} on rank {asked[0][0]}, but "
                    f"{value} on rank {rank}; use the same values on all ranks"
                )
    counts, n = [rows for rows, _ in told], int(told[0][1]["columns of A"])
    if sum(counts) != n:
        shown = " + ".join(map(str, counts[:SHOWN])) + " + …" * (len(counts) > SHOWN)
        raise UsageError(
            f"A has {n} columns, but the {len(counts)} ranks have {shown} = {sum(counts)} rows, and each "
            "row must be on exactly one rank; pass the first rows on rank 0, the next rows on rank 1 and "
            "so on, each with all columns"
        )
    return list(accumulate(counts, initial=0))


_threads: WeakKeyDictionary[Communicator, int] = WeakKeyDictionary()


def threads_each(comm: Communicator) -> int:
    """One a core, the cores of a node shared by its ranks; found once.  Collective."""
    if comm not in _threads:
        _threads[comm] = threads_of(comm)
    return _threads[comm]


def norm(everybody: RankGroup, b: Array, xp: Any) -> float:
    """||b||_2 without overflow.  Collective."""
    largest = everybody.max_abs(b, xp)
    return largest * everybody.norm(b / largest, xp) if largest else 0.0

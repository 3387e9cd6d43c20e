"""Read the rows of a system that are distributed over ranks, and check that all ranks pass matching arguments.

Each rank validates its own rows. The ranks then compare their arguments before the solve. If the arguments of a rank
are invalid or do not match, all ranks raise the same error, which names that rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from scipy.sparse import csr_array

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import run_on_root
from mxpeak.distributed.csr import FP64, Csr
from mxpeak.distributed.halo import numbered, partners
from mxpeak.distributed.rank_group import RankGroup
from mxpeak.distributed.rows import Array, RowBlock
from mxpeak.errors import UsageError
from mxpeak.kernels.contract.sparse import SparseKernels
from mxpeak.kernels.host.engine.blas import one_thread, set_threads
from mxpeak.library.inputs import Input
from mxpeak.library.sparse import inputs
from mxpeak.runtime.calls import TURN
from mxpeak.runtime.placement import threads_of

#: Number of ranks whose row counts an error lists.
SHOWN = 8
#: Properties that may differ on ranks without rows, because an empty array has an arbitrary type.
TYPES = ("A.dtype", "b.dtype")


@dataclass(frozen=True, slots=True)
class Share:
    """This rank's rows of a system A x = b.

    A            the rows of A, with global column indices
    A_dtype      the type of the matrix that the user passed
    right_side   the rows of b as the user passed them
    b, x0        the rows of b and of the initial guess, in fp64 in the memory of the kernels
    """

    A: Csr
    A_dtype: Any
    right_side: Input
    b: Any
    x0: Any


def read(A: Any, b: Any, x0: Any, kernels: SparseKernels) -> Share:
    """Validate the rows of A, b and x0 of this rank, and return them as a `Share`."""
    rows = inputs.rows(A).astype(FP64[kernels.parts], copy=False)
    right_side = inputs.vectors(b, "b", rows.shape[0], part=True)
    start = inputs.start(x0, right_side, kernels, part=True)
    return Share(rows, A.dtype, right_side, inputs.on_kernels(right_side, kernels), start)


def joined(comm: Communicator, share: Share, must_match: Mapping[str, str]) -> tuple[RankGroup, Csr]:
    """Return the group of ranks, and this rank's rows of A with local column numbers. Collective.

    Raise a UsageError on all ranks if the ranks pass different values of an argument in `must_match`, or if their rows
    do not form a square matrix.
    """
    m, n = share.A.shape
    facts = {"columns of A": str(n), "columns of b": str(share.right_side.shape[1:]), **must_match}
    of_ranks = comm.gather_objects((m, facts))
    starts = run_on_root(comm, lambda: _starts(of_ranks or []))
    block = RowBlock(starts, comm.rank, share.A.indptr, share.A.indices.astype(np.int64), share.A.data)
    columns, halo = numbered(block)
    data = share.A.data.copy() if halo.size else share.A.data  # sort_indices must not change the user's array
    A = csr_array((data, columns.astype(np.int32), share.A.indptr), shape=(m, m + halo.size))
    A.sort_indices()
    group = RankGroup(comm, tuple(starts), tuple(partners(comm, starts, halo)))
    inputs.check_entries(A, group)
    return group, A


def _starts(of_ranks: Sequence[tuple[int, Mapping[str, str]]]) -> list[int]:
    """Return the first row of each rank, followed by n.

    Raise a UsageError if the ranks pass different arguments, or if their numbers of rows do not add up to n.
    """
    for name in of_ranks[0][1]:
        values = [(rank, facts[name]) for rank, (rows, facts) in enumerate(of_ranks) if rows or name not in TYPES]
        for rank, value in values[1:]:
            if value != values[0][1]:
                raise UsageError(
                    f"the ranks have different values of {name}: {values[0][1]} on rank {values[0][0]}, but "
                    f"{value} on rank {rank}; use the same values on all ranks"
                )
    counts, n = [rows for rows, _ in of_ranks], int(of_ranks[0][1]["columns of A"])
    if sum(counts) != n:
        shown = " + ".join(map(str, counts[:SHOWN])) + " + …" * (len(counts) > SHOWN)
        raise UsageError(
            f"A has {n} columns, but the {len(counts)} ranks have {shown} = {sum(counts)} rows, and each "
            "row must be on exactly one rank; pass the first rows on rank 0, the next rows on rank 1 and "
            "so on, each with all columns"
        )
    return list(accumulate(counts, initial=0))


_threads: WeakKeyDictionary[Communicator, int] = WeakKeyDictionary()


def threads_per_rank(comm: Communicator) -> int:
    """Return the number of cores per rank on this node. Collective.

    The number is determined at the first call for a communicator.
    """
    if comm not in _threads:
        _threads[comm] = threads_of(comm)
    return _threads[comm]


@contextmanager
def own_threads(threads: int) -> Iterator[None]:
    """Serialize the calls of this process, and limit BLAS to `threads` threads inside the context."""
    with TURN, one_thread():  # `one_thread` restores the number of threads
        set_threads(threads)
        yield


def distributed_norm(group: RankGroup, b: Array, xp: Any) -> float:
    """Compute ||b||_2 of a distributed b without overflow. Collective."""
    largest = group.max_abs(b, xp)
    return largest * group.norm(b / largest, xp) if largest else 0.0

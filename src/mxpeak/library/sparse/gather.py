"""All rows of a matrix that ranks share, brought to rank 0, as long as that has room for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sparse

from mxpeak.library.sparse.inputs import Csr
from mxpeak.library.sparse.rank_group import RankGroup
from mxpeak.perf.host import available_memory_bytes
from mxpeak.records import size_text
from mxpeak.runtime.memory import MARGIN

#: Rows of which rank 0 gathers all unasked, and what an entry takes there meanwhile: as it came, stacked, and sorted or
#: by columns.
MOST_GATHERED, GATHERED_BYTES = 2_000_000, 48


def named(A: Csr, everybody: RankGroup) -> Csr:
    """This rank's rows in the columns of the whole.  Collective."""
    mine = np.arange(everybody.first, everybody.first + A.shape[0])
    shape = A.shape[0], everybody.starts[-1]
    return sparse.csr_array((A.data, everybody.with_halo(mine)[A.indices], A.indptr), shape=shape)


def pattern(A: Csr) -> Csr:
    """Where A has entries, for who asks for no more: 5 bytes an entry instead of 12."""
    return sparse.csr_array((np.ones(A.nnz, np.int8), A.indices, A.indptr), shape=A.shape)


def stacked(parts: Sequence[Csr], n: int) -> Csr:
    """All rows, of 32-bit columns that ascend."""
    indptr = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(part.indptr) for part in parts]))])
    columns = np.concatenate([part.indices for part in parts])
    A = sparse.csr_array((np.concatenate([part.data for part in parts]), columns, indptr), shape=(n, n))
    A.indices, A.indptr = A.indices.astype(np.int32, copy=False), A.indptr.astype(np.int32, copy=False)
    A.sort_indices()
    return A


def no_room(everybody: RankGroup, nnz: int, need: float, what: str, ranks: int = 1) -> str:
    """Why rank 0 cannot make something of all rows, if it cannot; as many ranks use its memory.  Collective."""
    if nnz > np.iinfo(np.int32).max:
        return f"{what}: {nnz} entries are more than one rank's 32-bit indices count"
    room = everybody.comm.bcast_object(int(MARGIN * (available_memory_bytes() or 2**63)) // ranks)
    return f"{what} take about {size_text(int(need))} on rank 0, which has {size_text(room)}" if need > room else ""

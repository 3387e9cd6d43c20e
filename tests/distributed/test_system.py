from __future__ import annotations

import numpy as np
import pytest

from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.distributed.system import max_error
from mxpeak.kernels.reference.sparse import ReferenceSparse


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("entry", [np.nan, np.inf, 3.0, -5.0])
def test_the_largest_error_is_found_on_any_rank_and_keeps_nan(ranks: int, entry: float) -> None:
    kernels = ReferenceSparse()

    def largest(comm: Communicator) -> float:
        x = np.ones(7)
        if comm.rank == comm.size - 1:
            x[4] = entry
        return max_error(kernels, comm, x, 1.0)

    found = run_ranks(ranks, largest)
    np.testing.assert_array_equal(found, [abs(entry - 1.0)] * ranks)

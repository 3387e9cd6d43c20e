"""Tasks that run in the Dask workers: connect the ranks, factor A, solve, and free the factors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from dask.distributed import get_worker

from mxpeak.comm.collectives import validate_on_all
from mxpeak.comm.transports.sockets import LostRankError, Sockets, listening, meet
from mxpeak.errors import MxpeakError, UsageError
from mxpeak.library.dask.chunks import Place
from mxpeak.library.dense import DistributedFactors, DistributedMatrix
from mxpeak.library.dense.distributed_cholesky import factored_by_structure
from mxpeak.library.dense.symmetric import SymmetricKind

#: Time limit in seconds for connecting the ranks. Tasks start only when their chunks have arrived and the worker has a
#: free thread, which may take long. The client detects a missing rank earlier and closes the seats. This limit ends
#: the wait if the client itself has died.
MEETING_S = 3600.0
LOST = "the factors are lost, because a worker ended or a call was interrupted; run mxpeak.dask.lu_factor(A) again"


class Seat:
    """The state of one worker as a rank of a solve: its listening socket, communicator, factors and solution."""

    def __init__(self, host: str):
        self.listener = listening(host)
        self.comm: Sockets | None = None
        self.factors: DistributedFactors | None = None
        self.x: Any = None
        self._closed = False

    def meet(self, rank: int, addresses: Sequence[tuple[str, int]], secret: bytes) -> Sockets:
        """Connect this rank to all other ranks and return the communicator. Collective."""
        self.comm = meet(self.listener, rank, addresses, secret, patience=MEETING_S)
        self.listener.close()
        if self._closed:  # `close` was called during the connection
            self.close()
        return self.comm

    def close(self) -> None:
        """Free the factors and the solution, and close the socket and the connections."""
        self._closed = True
        with suppress(OSError):
            self.listener.shutdown(2)  # wake a rank that waits for connections on this socket
        self.listener.close()
        if self.comm is not None:
            self.comm.abort(0)
        self.factors = self.x = None


#: Seats by the names of the solve and of the worker, because workers that are threads share a process.
_seats: dict[tuple[str, str], Seat] = {}


def take_seat(name: str, dask_worker: Any) -> tuple[str, int]:
    """Open a listening socket on this worker for connections from the other ranks, and return its (host, port)."""
    host = dask_worker.address.rpartition("://")[2].rpartition(":")[0].strip("[]")
    if "://" not in dask_worker.address or dask_worker.address.startswith("inproc"):
        host = "127.0.0.1"
    seat = _seats[name, dask_worker.address] = Seat(host)
    address = seat.listener.getsockname()
    return address[0], address[1]


def leave_seat(name: str, dask_worker: Any) -> None:
    """Free this worker's factors and close its connections to the other ranks, even while one of its tasks runs."""
    seat = _seats.pop((name, dask_worker.address), None)
    if seat is not None:
        seat.close()


def factor_on_seats(
    name: str,
    rank: int,
    addresses: Sequence[tuple[str, int]],
    secret: bytes,
    n: int,
    places: Sequence[Place],
    structure: SymmetricKind | str,
    precision: str,
    sides: int,
    *chunks: Any,
) -> Any:
    """Connect the ranks, distribute this rank's chunks in blocks, and factor A for `sides` right-hand sides.

    Collective.
    """

    def work(seat: Seat) -> None:
        comm = seat.meet(rank, addresses, secret)
        A = DistributedMatrix.from_pieces(validate_on_all(comm, lambda: _pieces(places, chunks)), n, comm=comm)
        seat.factors = factored_by_structure(A, structure, precision, "cpu", np.broadcast_to(0.0, (n, sides)))

    return _seated(name, work)


def _pieces(places: Sequence[Place], chunks: Sequence[Any]) -> dict[tuple[int, int], Any]:
    """Return the chunks keyed by the position of their first entry; raise a UsageError if a shape is wrong."""
    for ((row, col), shape), chunk in zip(places, chunks):
        if np.shape(chunk) != shape:
            raise UsageError(
                f"the chunk A[{row}:, {col}:] has shape {np.shape(chunk)}, but A declares shape {shape}; "
                "use the correct chunks= in the function that created A, such as map_blocks"
            )
    return {at: chunk for (at, _), chunk in zip(places, chunks)}


def solve_on_seats(name: str, b: Any, transposed: str) -> Any:
    """Solve for b with the stored factors and return the diagnostics. Collective.

    The solution x stays on the workers.
    """

    def work(seat: Seat) -> Any:
        if seat.factors is None:
            raise LostRankError(LOST)
        seat.x, info = seat.factors.solve_quietly(b, transposed=transposed)
        return info

    return _seated(name, work)


def fetch(name: str) -> Any:
    """Return the solution x of the last solve on this worker."""
    return _seats[name, get_worker().address].x


def _seated(name: str, work: Callable[[Seat], Any]) -> Any:
    """Return the result of `work` for this worker's seat. Return an `MxpeakError` instead of raising it.

    If all ranks return the same error, the client raises it only once. If a rank fails alone, it closes its
    connections, so that no other rank waits for it.
    """
    seat = _seats.get((name, get_worker().address))
    if seat is None:
        return LostRankError(LOST)
    try:
        return work(seat)
    except LostRankError as error:
        seat.close()
        return error
    except MxpeakError as error:
        return error.with_traceback(None)
    except BaseException:
        seat.close()
        raise

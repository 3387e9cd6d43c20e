"""Validate a Dask array before it is computed, and assign each chunk to a worker that stores the chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import isnan
from typing import Any

import dask.array as da
from dask.distributed import KilledWorker, futures_of, wait

from mxpeak.comm.transports.sockets import LostRankError
from mxpeak.configs.grid import squarest
from mxpeak.errors import ResourceError, UsageError
from mxpeak.library.dense.distributed import block_size
from mxpeak.library.dense.matrix_source import wide_type
from mxpeak.library.dense.memory import bytes_a_rank
from mxpeak.records import size_text


def check_matrix(A: Any) -> int:
    """Return the order of A; raise a UsageError unless A is a square numeric Dask array with known chunk sizes."""
    if not isinstance(A, da.Array):
        raise UsageError(
            f"A is {type(A).__name__}, not a Dask array; use mxpeak.solve(A, b) for an array in one process"
        )
    if A.ndim != 2 or any(map(isnan, A.shape)) or A.shape[0] != A.shape[1] or A.shape[0] == 0:
        raise UsageError(
            f"A has shape {A.shape} and chunks {A.chunksize}, but a system needs a nonempty square matrix "
            "in two-dimensional chunks of known sizes; use A.compute_chunk_sizes() if sizes are unknown"
        )
    wide_type(A.dtype, "A")
    return int(A.shape[0])


def check_limits(client: Any, workers: Sequence[str], n: int, parts: int) -> None:
    """Raise a ResourceError if A and its factors exceed a worker's memory limit, because Dask kills such a worker.

    `parts` is the number of real values per entry: 1 for real or 2 for complex entries.
    """
    info_of_workers = client.scheduler_info(n_workers=-1)["workers"]
    limit = min((info_of_workers[worker]["memory_limit"] or 2**63 for worker in workers), default=2**63)
    P, Q = squarest(len(workers))
    need = bytes_a_rank(n, block_size(n, max(P, Q), parts), P, Q, held=True, parts=parts)
    need += 8 * parts * n * n // len(workers)
    if need > limit:
        size = 8 * parts * (parts + 2)
        raise ResourceError(
            f"A in chunks and in blocks, its factors ({size}*{n}*{n} bytes) and the panels need "
            f"{size_text(need)} per worker on {len(workers)} workers, but memory_limit is "
            f"{size_text(limit)}; use workers with more memory, or use client.cluster.scale(...) to add "
            "workers"
        )


#: The position (row, column) of the first entry of a chunk, and the shape of the chunk.
Place = tuple[tuple[int, int], tuple[int, int]]


def shared(client: Any, workers: Sequence[str], A: Any) -> list[list[tuple[Place, Any]]]:
    """Compute A on the workers, and return the positions and futures of the chunks that each worker contributes.

    A worker that stores a chunk contributes it. If several workers or no worker stores a chunk, the worker with the
    fewest chunks contributes it.
    """
    A = client.persist(A, workers=list(workers))
    chunks = futures_of(A)
    wait(chunks)
    for chunk in chunks:
        if chunk.status == "error":
            error = chunk.exception()
            if isinstance(error, KilledWorker):
                raise LostRankError(
                    f"workers died repeatedly while they computed {chunk.key} of A; see their logs for the "
                    "cause (often the memory limit), and use workers with more memory or smaller chunks "
                    "for A"
                ) from error
            raise UsageError(f"Dask cannot compute {chunk.key} of A: {type(error).__name__}: {error}") from error
        if chunk.status != "finished":
            gone = ", ".join(sorted({*workers} - {*client.nthreads()})) or "a worker"
            raise LostRankError(f"{gone} died while A was computed; see its log for the cause, and run the call again")
    by_key, holders = {chunk.key: chunk for chunk in chunks}, client.who_has(chunks)
    chunks_by_rank: list[list[tuple[Place, Any]]] = [[] for _ in workers]
    for place, key in _places(A):
        having = [rank for rank, worker in enumerate(workers) if worker in holders.get(key, ())]
        rank = min(having or range(len(workers)), key=lambda rank: len(chunks_by_rank[rank]))
        chunks_by_rank[rank].append((place, by_key[key]))
    return chunks_by_rank


def _places(A: Any) -> Iterator[tuple[Place, Any]]:
    """Yield the position, the shape and the Dask key of each chunk."""
    rows, cols = ([0, *accumulate(sizes)] for sizes in A.chunks)
    for i, line in enumerate(A.__dask_keys__()):
        for j, key in enumerate(line):
            yield ((rows[i], cols[j]), (A.chunks[0][i], A.chunks[1][j])), key

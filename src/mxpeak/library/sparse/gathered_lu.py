"""Factors of a matrix that ranks share: rank 0 gathers its rows and factors them as one process does.

A solve brings r to rank 0, and each rank its part of x back.  So factors are those of one process, on any number of
ranks, and as many steps of GMRES.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from mxpeak.comm.base import Task, all_of
from mxpeak.comm.collectives import run_on_root
from mxpeak.distributed.spaces import vector_type
from mxpeak.distributed.sparse import SparseMatrix
from mxpeak.kernels.contract.sparse import SparseKernels, Vector
from mxpeak.library.sparse.factors import ENTRY_BYTES, Factors, factored, fill, fill_of_any
from mxpeak.library.sparse.gather import GATHERED_BYTES, MOST_GATHERED, named, no_room, pattern, stacked
from mxpeak.library.sparse.inputs import Csr
from mxpeak.library.sparse.rank_group import RankGroup
from mxpeak.spans import Spans


def shared_factors(
    A: Csr, vectors: str, everybody: RankGroup, entries: float | None = None
) -> tuple[Factors | None, str]:
    """Return the factors of A, which rank 0 alone has, or None and why there are none; `entries` is as in `factored`.

    Collective.
    """
    if everybody.alone:
        return factored(A, vectors, entries)
    comm, n, nnz = everybody.comm, everybody.starts[-1], int(everybody.sum(A.nnz))
    need = ENTRY_BYTES * (fill(n, nnz) if entries is None else entries) + GATHERED_BYTES * nnz
    if problem := no_room(everybody, nnz, need, f"factors of {nnz} entries"):
        return None, problem
    parts = comm.gather_objects(named(A, everybody))
    found = Factors(None, vectors)

    def make() -> tuple[str, str]:
        nonlocal found
        try:
            factors, problem = factored(stacked(parts or [], n), vectors, entries)
        except MemoryError:
            return vectors, "rank 0 has too little memory for all rows"
        found = factors or found
        return found.vectors, problem

    made_in, problem = run_on_root(comm, make)
    return (None if problem else replace(found, vectors=made_in)), problem


def shared_fill(A: Csr, everybody: RankGroup) -> tuple[float, str]:
    """Return about how many entries factors of A have; if that is not known, infinity and why.  Collective."""
    if everybody.alone:
        return fill_of_any(A), ""
    comm, n, nnz = everybody.comm, everybody.starts[-1], int(everybody.sum(A.nnz))
    problem = no_room(everybody, nnz, GATHERED_BYTES * nnz, "all rows")
    if n > MOST_GATHERED:
        problem = f'{n} rows exceed the {MOST_GATHERED} that rank 0 gathers without preconditioner="lu"'
    if problem:
        return inf, problem
    parts = comm.gather_objects(named(pattern(A), everybody))
    return run_on_root(comm, lambda: fill_of_any(stacked(parts or [], n))), ""


class SharedSolved:
    """x = U^-1 L^-1 r, on rank 0 for all ranks."""

    def __init__(self, kernels: SparseKernels, A: SparseMatrix, factors: Factors, everybody: RankGroup, spans: Spans):
        self._A, self.factors, self._everybody, self._spans = A, factors, everybody, spans
        self._x = A.halo_vector()
        n = everybody.starts[-1] if everybody.comm.rank == 0 else 0
        self._whole = np.zeros(n, vector_type(kernels, A.A.vectors))
        self.bytes = int(self._x.nbytes + self._whole.nbytes + factors.bytes)

    def __call__(self, r: Vector) -> Vector:
        """Both triangles.  Collective."""
        comm, own = self._everybody.comm, self._A.own(self._x)
        with self._spans("factors"):
            if comm.rank:
                mine = [comm.isend(r, 0), comm.irecv(own, 0)] if own.size else []
                Task(all_of(mine)).wait()
                return self._x
            parts = np.split(self._whole, self._everybody.starts[1:-1])
            parts[0][:] = r
            others = [(part, rank) for rank, part in enumerate(parts) if rank and part.size]
            Task(all_of([comm.irecv(part, rank) for part, rank in others])).wait()
            self._whole[:] = self.factors.solve(self._whole)
            own[:] = parts[0]
            Task(all_of([comm.isend(part, rank) for part, rank in others])).wait()
        return self._x

"""Check norms of matrices that are distributed over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, product
from typing import Any

import numpy as np

import mxpeak as mx
from mxpeak.distributed.tiles import CyclicMatrix
from mxpeak.layout.block_cyclic import BlockCyclic
from tests.support.exact_norms import KINDS, agree, exact_norms, expanded, shapes

#: The results of all public functions for a matrix.
Found = tuple[Any, Any, Any, Any]


def laid(A: Any, turn: int) -> Any:
    """Return A row-major, column-major, or as every other row of a larger array."""
    if turn % 3 < 2:
        return np.array(A, order="CF"[turn % 3])
    larger = np.full((2 * A.shape[0] + 1, A.shape[1] + 3), np.nan, A.dtype)
    larger[1::2, :-3] = A
    return larger[1::2, :-3]


def distributed(grid: Any, A: Any, mb: int, nb: int) -> CyclicMatrix:
    """Return this rank's part of A in mb×nb blocks."""
    rows, cols = BlockCyclic(A.shape[0], mb, grid.p, grid.P), BlockCyclic(A.shape[1], nb, grid.q, grid.Q)
    mine = np.ix_(*([part.to_global(k) for k in range(part.local_size)] for part in (rows, cols)))
    return CyclicMatrix(grid, rows, cols, laid(A[mine], grid.all.rank))


def all_norms(M: Any, **options: Any) -> Found:
    """Return the results of all public functions for a matrix."""
    return (
        mx.norms(M, threads=1, **options),
        mx.norms(M, threads=1, deterministic=True, **options),
        mx.row_norms(M, "one", threads=1, **options),
        mx.column_norms(M, "fro", threads=1, **options),
    )


def check(results: Sequence[Found], A: Any, name: str, **options: Any) -> None:
    """Check that all ranks have the same results, that these are correct, and that sums are bitwise reproducible."""
    asked = {"structure": name, **options}
    exact, alone = exact_norms(expanded(A, name, **options)), all_norms(A, **asked)
    for norms, same, by_row, by_column in results:
        assert norms == results[0][0], "every rank gets the same number"
        for kind in KINDS:
            agree(getattr(norms, kind), exact[kind], kind, A)
        assert same == alone[1]
        assert np.array_equal(by_row, alone[2])
        assert np.array_equal(by_column, alone[3])


def size_of(name: str) -> tuple[int, int]:
    return (17, 17) if shapes(name)[0] == (11, 11) else (19, 13)


def scalapack_part(A: Any, desc: Sequence[int], grid: tuple[int, int], p: int, q: int) -> Any:
    """Return process (p, q)'s part by ScaLAPACK's rule: block I is on process row (RSRC + I) mod P."""
    _, _, m, n, mb, nb, rsrc, csrc, _ = desc
    rows = [i for i in range(m) if (rsrc + i // mb) % grid[0] == p]
    columns = [j for j in range(n) if (csrc + j // nb) % grid[1] == q]
    return A[np.ix_(rows, columns)]


def scalapack_array(part: Any, lld: int, flat: bool) -> Any:
    """Return the part in a column-major array of leading dimension LLD."""
    padded = np.full((lld, part.shape[1]), np.nan, part.dtype, order="F")
    padded[: part.shape[0]] = part
    return padded.ravel(order="F") if flat else padded


def blocks(A: Any, heights: Sequence[int], widths: Sequence[int]) -> dict[tuple[int, int], Any]:
    """Return A in tiles."""
    downs, rights = [0, *accumulate(heights)], [0, *accumulate(widths)]
    return {
        (i, j): A[downs[i] : downs[i + 1], rights[j] : rights[j + 1]]
        for i, j in product(range(len(heights)), range(len(widths)))
    }

"""Norms of rows and columns, and of matrices, whose bits depend on the matrix alone.

Not on grid, tiles, threads or order of storage.  With f a power of two so that no |f·f·a_ij| of a column is above 1,
each is cut into K pieces, and each fold of pieces is a sum that fp64 represents without rounding (Rump 2009; Demmel and
Nguyen 2013, "pre-rounding"):

    q = (σ_k + x) - σ_k,   Σ_k += q,   x -= q;      σ_1 = 1.5·N,   σ_{k+1} = 2^-52·N·σ_k

N is a power of two, at least twice the number of terms.  It costs a pass for the maxima and one with 3K additions an
entry, and vectors of full length on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from mxpeak.kernels.contract import Matrix, Vector
from mxpeak.kernels.contract.norms import NormKernels
from mxpeak.layout.index_map import consecutive
from mxpeak.layout.structure import DIAGONAL, Structure
from mxpeak.solvers.norms import NormMatrix, diagonal_tiles, fp64, global_indices, largest, ones_before, whole

#: The most that the folds may leave out of a sum whose largest term is 1.
LEFT_OUT = 2.0**-58


def sigmas(terms: int) -> list[float]:
    """The constants of the folds for sums of so many terms, none of them above 1."""
    N = float(2 << max(1, (terms - 1).bit_length()))
    found, bound = [1.5 * N], N * 2.0**-52  # what is left of a term
    while N * bound > LEFT_OUT:
        found.append(1.5 * N * bound)
        bound *= N * 2.0**-52
    return found


def vector_norms(A: NormMatrix, S: Structure, kind: str, by: str, kernels: NormKernels) -> Vector:
    """The norm of every row or column (`by`), as a vector of full length on every rank.

    Of a vector, `one` is the sum, `fro` the root of the sum of squares, `max` and `inf` the largest.  Collective.
    """
    by, xp = "rows" if S.mirrored else by, kernels.xp  # of a mirrored matrix they are the same
    maxima = _maxima(A, S, by, kernels)
    ones = ones_before(S.diagonal if S.ones else 0, consecutive(len(maxima)), xp)
    if kind in ("max", "inf"):
        return xp.maximum(maxima, ones)  # NaN where there is one
    factors, squared = kernels.half_powers(maxima), kind == "fro"
    values = kernels.unfolded(_folds(A, S, by, squared, factors, kernels), factors, maxima, squared)
    return xp.hypot(values, ones) if squared else values + ones


def reproducible_norms(A: NormMatrix, S: Structure, kinds: Collection[str], kernels: NormKernels) -> dict[str, float]:
    """Each kind of norm of A from those of its columns or rows.  Collective over A's ranks."""
    found: dict[str, float] = {}
    for kind in kinds:
        if kind == "fro":
            found[kind] = _fro(A, S, kernels)
        else:
            by = "rows" if kind == "inf" else "columns"
            found[kind] = largest(vector_norms(A, S, "max" if kind == "max" else "one", by, kernels), kernels.xp)
    return found


def _fro(A: NormMatrix, S: Structure, kernels: NormKernels) -> float:
    """The norm of the vector of the columns' norms, those scaled so that the largest entry of A is about 1."""
    by = "rows" if S.mirrored else "columns"
    maxima = _maxima(A, S, by, kernels)
    top = largest(maxima, kernels.xp)
    ones = math.sqrt(S.diagonal) if S.ones else 0.0
    if not 0.0 < top < math.inf:
        return top + ones
    factors, (f,) = kernels.half_powers(maxima), kernels.half_powers(fp64([top], kernels.xp)).tolist()
    lengths = kernels.unfolded(_folds(A, S, by, True, factors, kernels), factors / f, maxima, True)
    return math.hypot(math.sqrt(math.fsum(x * x for x in lengths.tolist())) / f / f, ones)


def _maxima(A: NormMatrix, S: Structure, by: str, kernels: NormKernels) -> Vector:
    """The largest |a_ij| of each row or column."""
    xp, rows, columns = kernels.xp, A.row_map.size, A.column_map.size
    by_row, by_column = kernels.row_column_max(A.tiles, S.band, _wants(S, by), rows, columns)
    found = whole(by_row, A.row_map, S.m, xp) if by == "rows" else whole(by_column, A.column_map, S.n, xp)
    if S.mirrored:
        diagonal, _ = kernels.row_column_max(diagonal_tiles(A, S), DIAGONAL, {"rows"}, rows, columns)
        found = xp.maximum(found, whole(by_column, A.column_map, S.n, xp))
        found = xp.maximum(found, whole(diagonal, A.row_map, S.m, xp))
    A.comm.allreduce(found, "max")
    return found


def _folds(A: NormMatrix, S: Structure, by: str, squared: bool, factors: Vector, kernels: NormKernels) -> Matrix:
    """The folds of the sums of each row or column."""
    xp, wants, folds = kernels.xp, _wants(S, by), sigmas(S.n if by == "rows" else S.m)
    none = fp64([], xp)
    of_rows = factors[global_indices(A.row_map, xp)] if "rows" in wants else none
    of_columns = factors[global_indices(A.column_map, xp)] if "columns" in wants else none
    by_row, by_column = kernels.folded_sums(A.tiles, S.band, wants, squared, folds, of_rows, of_columns)
    found = whole(by_row, A.row_map, S.m, xp) if by == "rows" else whole(by_column, A.column_map, S.n, xp)
    if S.mirrored:
        diagonal, _ = kernels.folded_sums(diagonal_tiles(A, S), DIAGONAL, {"rows"}, squared, folds, of_rows, none)
        found = found + whole(by_column, A.column_map, S.n, xp) + whole(diagonal, A.row_map, S.m, xp)
    A.comm.allreduce(found, "sum")
    return found


def _wants(S: Structure, by: str) -> set[str]:
    """What a pass must give: of a mirrored matrix both, since a_ij stands for a_ji, too."""
    return {"rows", "columns"} if S.mirrored else {by}

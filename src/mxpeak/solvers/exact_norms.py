"""Compute norms of rows, columns and matrices that are bitwise independent of grid, tiles, threads and storage order.

A power of two f scales each column so that |f·f·a_ij| <= 1. Each scaled entry is split into K pieces, and the k-th
pieces of all entries (a fold) add up without rounding in fp64 (Rump 2009; Demmel and Nguyen 2013, "pre-rounding"):

    q = (σ_k + x) - σ_k,   Σ_k += q,   x -= q;      σ_1 = 1.5·N,   σ_{k+1} = 2^-52·N·σ_k

N is a power of two, at least twice the number of terms. This needs one pass for the maxima, one pass with 3K additions
per entry, and vectors of full length on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from mxpeak.kernels.contract import Matrix, Vector
from mxpeak.kernels.contract.norms import NormKernels
from mxpeak.layout.index_map import consecutive
from mxpeak.layout.structure import DIAGONAL, Structure
from mxpeak.solvers.norms import NormMatrix, diagonal_tiles, fp64, global_indices, largest, ones_before, whole

#: Part of a sum with largest term 1 that the folds may omit.
OMITTED = 2.0**-58


def sigmas(terms: int) -> list[float]:
    """Return the constants σ of the folds for sums of `terms` numbers of at most 1."""
    N = float(2 << max(1, (terms - 1).bit_length()))
    constants, bound = [1.5 * N], N * 2.0**-52  # the remainder of a term
    while N * bound > OMITTED:
        constants.append(1.5 * N * bound)
        bound *= N * 2.0**-52
    return constants


def vector_norms(A: NormMatrix, S: Structure, kind: str, by: str, kernels: NormKernels) -> Vector:
    """Return the norm of every row or column (`by`) on every rank. Collective.

    The norm `one` of a vector is the sum of its absolute values, and `fro` is the root of the sum of their squares.
    The norms `max` and `inf` are the largest absolute value.
    """
    by, xp = "rows" if S.mirrored else by, kernels.xp  # rows and columns of a mirrored matrix are equal
    maxima = _maxima(A, S, by, kernels)
    ones = ones_before(S.diagonal if S.ones else 0, consecutive(len(maxima)), xp)
    if kind in ("max", "inf"):
        return xp.maximum(maxima, ones)  # a NaN remains
    factors, squared = kernels.half_powers(maxima), kind == "fro"
    values = kernels.unfolded(_folds(A, S, by, squared, factors, kernels), factors, maxima, squared)
    return xp.hypot(values, ones) if squared else values + ones


def reproducible_norms(A: NormMatrix, S: Structure, kinds: Collection[str], kernels: NormKernels) -> dict[str, float]:
    """Return the norms of A that `kinds` names, computed from the norms of its columns or rows. Collective."""
    values: dict[str, float] = {}
    for kind in kinds:
        if kind == "fro":
            values[kind] = _fro(A, S, kernels)
        else:
            by = "rows" if kind == "inf" else "columns"
            values[kind] = largest(vector_norms(A, S, "max" if kind == "max" else "one", by, kernels), kernels.xp)
    return values


def _fro(A: NormMatrix, S: Structure, kernels: NormKernels) -> float:
    """Return the Frobenius norm of A, computed from column norms. A is scaled so that its largest entry is about 1."""
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
    """Return the maximum |a_ij| of each row or column."""
    xp, rows, columns = kernels.xp, A.row_map.size, A.column_map.size
    by_row, by_column = kernels.row_column_max(A.tiles, S.band, _wants(S, by), rows, columns)
    values = whole(by_row, A.row_map, S.m, xp) if by == "rows" else whole(by_column, A.column_map, S.n, xp)
    if S.mirrored:
        diagonal, _ = kernels.row_column_max(diagonal_tiles(A, S), DIAGONAL, {"rows"}, rows, columns)
        values = xp.maximum(values, whole(by_column, A.column_map, S.n, xp))
        values = xp.maximum(values, whole(diagonal, A.row_map, S.m, xp))
    A.comm.allreduce(values, "max")
    return values


def _folds(A: NormMatrix, S: Structure, by: str, squared: bool, factors: Vector, kernels: NormKernels) -> Matrix:
    """Return the partial sums (folds) of each row or column, which are free of rounding errors."""
    xp, wants, folds = kernels.xp, _wants(S, by), sigmas(S.n if by == "rows" else S.m)
    none = fp64([], xp)
    of_rows = factors[global_indices(A.row_map, xp)] if "rows" in wants else none
    of_columns = factors[global_indices(A.column_map, xp)] if "columns" in wants else none
    by_row, by_column = kernels.folded_sums(A.tiles, S.band, wants, squared, folds, of_rows, of_columns)
    values = whole(by_row, A.row_map, S.m, xp) if by == "rows" else whole(by_column, A.column_map, S.n, xp)
    if S.mirrored:
        diagonal, _ = kernels.folded_sums(diagonal_tiles(A, S), DIAGONAL, {"rows"}, squared, folds, of_rows, none)
        values = values + whole(by_column, A.column_map, S.n, xp) + whole(diagonal, A.row_map, S.m, xp)
    A.comm.allreduce(values, "sum")
    return values


def _wants(S: Structure, by: str) -> set[str]:
    """Return the names of the partial results that a pass computes.

    A mirrored matrix needs row and column sums, because a_ij also defines a_ji.
    """
    return {"rows", "columns"} if S.mirrored else {by}

"""Counts for HPG-MxP and HPCG, with their sources: credited flops, nominal and minimum bytes, memory.

A multigrid call on levels 0 … L-1 smooths before and after the correction on all levels except the coarsest, on which
it smooths once. n_l and nnz_l are the numbers of rows and entries of level l over all ranks, and N = n_0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mxpeak.errors import UsageError
from mxpeak.layout.stencil import LEVELS, STENCIL, Box

FP64_BYTES, INT32_BYTES, INT64_BYTES, POINTER_BYTES = 8, 4, 8, 8

#: The motifs of HPG-MxP and of HPCG whose flops are counted.
HPG_MXP_MOTIFS = ("gs", "spmv", "ortho", "restriction", "prolongation", "update")
HPCG_MOTIFS = ("ddot", "waxpby", "spmv", "mg")
#: The rules by which the flops of HPG-MxP's multigrid can be counted.
COUNTINGS = ("reference", "ornl")


@dataclass(frozen=True, slots=True)
class Levels:
    """The numbers of rows and entries per level of a multigrid hierarchy over all ranks, finest level first.

    coarse_nnz   entries in the rows of a level at the points of the next level; 0 for the coarsest level
    """

    rows: tuple[int, ...]
    nnz: tuple[int, ...]
    coarse_nnz: tuple[int, ...]


def stencil_levels(box: Box) -> Levels:
    """Return the sizes of the levels of the 27-point problem over all ranks; `box` is the part of one rank."""
    boxes = box.levels(LEVELS)
    return Levels(
        rows=tuple(level.global_rows for level in boxes),
        nnz=tuple(level.global_nnz for level in boxes),
        coarse_nnz=(*(level.global_coarse_nnz for level in boxes[:-1]), 0),
    )


def hpg_mxp_flops(
    levels: Levels, cycles: Sequence[int], counting: str = "reference", *, flexible: bool = False
) -> dict[str, int]:
    """Return the flops of one solve with restart cycles of `cycles` steps each, by motif and in "total".

    Source: HPG-MxP reference code, GMRES_IR.cpp. All precisions have equal weight; the projected problem has no flops.
      gs       one multigrid call per step, and one per cycle for the update (`reference_mg_flops`, `ornl_mg_flops`)
      spmv     2·nnz_0 per step, and per cycle for the residual
      ortho    step k: CGS2 8·k·N, norm 2·N, scaling N; so N·(4·m·(m + 1) + 3·m) for a cycle of m steps
      update   per cycle: b - A x and its norm 4·N, scaling N, Q t 2·m·N, x + z 2·N

    If the basis is `flexible`, the update needs no multigrid call.
    """
    if counting not in COUNTINGS:
        raise UsageError(f"counting {counting!r} is unknown; use one of {', '.join(COUNTINGS)}")
    N, calls = levels.rows[0], sum(cycles) + len(cycles)
    mg = reference_mg_flops(levels) if counting == "reference" else ornl_mg_flops(levels)
    mg_calls = sum(cycles) if flexible else calls
    flops = {motif: mg_calls * count for motif, count in mg.items()}
    flops["spmv"] = calls * 2 * levels.nnz[0]
    flops["ortho"] = sum(N * (4 * m * (m + 1) + 3 * m) for m in cycles)
    flops["update"] = sum(N * (7 + 2 * m) for m in cycles)
    return _with_total({motif: flops[motif] for motif in HPG_MXP_MOTIFS})


def reference_mg_flops(levels: Levels) -> dict[str, int]:
    """Return the reference code's flops of a multigrid call, 2·(1 + 1 + 1)·Σ nnz_l, all in the motif of smoothing.

    Source: HPG-MxP reference code, GMRES_IR.cpp. On every level, including the coarsest, the code counts a residual,
    one sweep before the correction and one sweep after it. It counts sweeps that start from zero in full, and omits
    restriction and prolongation.
    """
    return {"gs": 6 * sum(levels.nnz), "restriction": 0, "prolongation": 0}


def ornl_mg_flops(levels: Levels) -> dict[str, int]:
    """Return the flops by motif that ORNL's optimized code executes in a multigrid call (arXiv 2507.11512, §3.2).

      gs             nnz_l for the sweep from zero, 2·nnz_l after the correction; 2·nnz on the coarsest level
      restriction    the residual at coarse points only: 2·(entries of their rows)
      prolongation   n_{l+1}

    ORNL's code counts the entries of the coarse matrix instead of the entries of these rows, which is about 2/gnx
    less.
    """
    return {
        "gs": 3 * sum(levels.nnz[:-1]) + 2 * levels.nnz[-1],
        "restriction": 2 * sum(levels.coarse_nnz[:-1]),
        "prolongation": sum(levels.rows[1:]),
    }


def hpcg_flops(levels: Levels, iterations: int, sets: int = 1) -> dict[str, int]:
    """Return the flops of `sets` CG solves of `iterations` iterations in total, by motif and in "total".

    Source: HPCG 3.1, ReportResults.cpp.
      ddot, waxpby   (3·iterations + sets)·2·N each
      spmv           (iterations + sets)·2·nnz_0
      mg             per iteration: (4 + 2 + 4)·nnz_l, 4·nnz on the coarsest level: symmetric sweeps, one residual
    """
    vectors = (3 * iterations + sets) * 2 * levels.rows[0]
    return _with_total(
        {
            "ddot": vectors,
            "waxpby": vectors,
            "spmv": (iterations + sets) * 2 * levels.nnz[0],
            "mg": iterations * (10 * sum(levels.nnz[:-1]) + 4 * levels.nnz[-1]),
        }
    )


def hpcg_bytes(levels: Levels, iterations: int, sets: int = 1) -> dict[str, int]:
    """Return the nominal bytes on which HPCG's GB/s are based ("read", "write" and "total"), not the actual traffic.

    Source: HPCG 3.1, ReportResults.cpp. An entry has 12 bytes, and a symmetric sweep reads all entries twice:
      ddot     (3·iterations + sets) times 2·8·N read, 8 written in total
      waxpby   (3·iterations + sets) times 2·8·N read, 8·N written
      spmv     (iterations + sets) times 12·nnz_0 + 8·N read, 8·N written
      mg       per iteration and level: two symmetric sweeps and a residual read 5·12·nnz_l + 3·8·n_l, and write
               8·n_l + 2·8·nnz_l (HPCG counts nnz_l although n_l are written); coarsest: one sweep, 24·nnz + 8·n, 8·n
    """
    w, entry, N = FP64_BYTES, FP64_BYTES + INT32_BYTES, levels.rows[0]
    vectors, products = 3 * iterations + sets, iterations + sets
    fine = list(zip(levels.rows[:-1], levels.nnz[:-1]))
    mg_read = sum(5 * entry * nnz + 3 * w * n for n, nnz in fine) + 2 * entry * levels.nnz[-1] + w * levels.rows[-1]
    mg_write = sum(w * n + 2 * w * nnz for n, nnz in fine) + w * levels.rows[-1]
    read = vectors * 4 * w * N + products * (entry * levels.nnz[0] + w * N) + iterations * mg_read
    write = vectors * w * (1 + N) + products * w * N + iterations * mg_write
    return _with_total({"read": read, "write": write})


def _with_total(parts: dict[str, int]) -> dict[str, int]:
    return {**parts, "total": sum(parts.values())}


def memory_bytes(box: Box, restart: int | None = None, count: int = LEVELS) -> tuple[int, ...]:
    """Return the bytes per level over all ranks in HPCG's report or, with `restart`, in HPG-MxP's report.

    Source: ReportResults.cpp of HPCG 3.1 and of HPG-MxP's reference code, which counts only fp64. With n rows and c
    columns (including the halo) over all ranks, each counted as rank 0, a level has

      matrix    n·(1 + 4·8 + 27·(4 + 8 + 8))                    row lengths, four pointers, columns twice, values
      vectors   n·(3 + 2)·8 + c·2·8, and n·(restart + 1)·8      finest level: b, x, exact x, r, Ap; z, p; basis
                n·(4 + 8) + c·2·8                               others: map to finer points, rc; xc, Axf
      buffers   (8 + 4)·halo + 12·neighbors, of rank 0          others only

    A few hundred bytes of structures are omitted.
    """
    first = Box.of(0, box.shape, box.grid)
    finest, *coarser = first.levels(count)
    basis = 0 if restart is None else restart + 1
    vectors = (5 + basis) * FP64_BYTES * finest.global_rows + 2 * FP64_BYTES * _columns(finest)
    return (_matrix_bytes(finest) + vectors, *map(_coarse_level_bytes, coarser))


def _matrix_bytes(box: Box) -> int:
    return box.global_rows * (1 + 4 * POINTER_BYTES + STENCIL * (INT32_BYTES + FP64_BYTES + INT64_BYTES))


def _coarse_level_bytes(box: Box) -> int:
    vectors = (INT32_BYTES + FP64_BYTES) * box.global_rows + 2 * FP64_BYTES * _columns(box)
    buffers = (FP64_BYTES + INT32_BYTES) * box.halo + 3 * INT32_BYTES * len(box.neighbors())
    return _matrix_bytes(box) + vectors + buffers


def _columns(box: Box) -> int:
    return box.ranks * (box.rows + box.halo)


# Minimum traffic: every array that a kernel needs is transferred once between memory and processor.


@dataclass(frozen=True, slots=True)
class StoredSizes:
    """The sizes of a stored sparse matrix.

    rows           number of rows
    values         number of stored off-diagonal values, including padding
    value_bytes    bytes per value
    index_bytes    bytes of all index arrays
    vector_bytes   bytes w per entry of the vectors in products
    wide_bytes     bytes d per entry of the diagonal and of the result of a product, which are w unless w is 2
    """

    rows: int
    values: int
    value_bytes: int
    index_bytes: int
    vector_bytes: int
    wide_bytes: int

    def part(self, values: int) -> int:
        """Return the bytes of `values` stored values and of their part of the indices."""
        return values * self.value_bytes + self.index_bytes * values // max(self.values, 1)


def product_bytes(A: StoredSizes) -> int:
    """Return the bytes of y = A x: the entries, n·w to read x, and 2·n·d for the diagonal and y."""
    return A.part(A.values) + A.rows * (A.vector_bytes + 2 * A.wide_bytes)


def sweep_bytes(A: StoredSizes) -> int:
    """Return the bytes of a Gauss–Seidel sweep: the stored entries, n·d for the diagonal, 3·n·w for r and x (twice)."""
    return A.part(A.values) + A.rows * (A.wide_bytes + 3 * A.vector_bytes)


def half_sweep_bytes(A: StoredSizes, values: int, *, keep: bool = False) -> int:
    """Return the bytes of a sweep over L or U, from x = 0 or backward: `values` entries and n·(d + 2·w) for vectors.

    The vectors are the diagonal, the right-hand side and x. If `keep`, a forward sweep also writes n·w for the
    backward sweep.
    """
    return A.part(values) + A.rows * (A.wide_bytes + (3 if keep else 2) * A.vector_bytes)


def coarse_residual_bytes(A: StoredSizes, coarse_rows: int, coarse_values: int, vectors: int) -> int:
    """Return the bytes of r - A x at coarse points: the entries, all of x, and n_c·(w + 4) for the result and the map.

    In addition, `vectors` vectors are read only at these points. Because a cache line contains twice as many entries
    as needed, this takes 2·n_c·w per vector.
    """
    w = A.vector_bytes
    return A.part(coarse_values) + A.rows * w + coarse_rows * ((1 + 2 * vectors) * w + INT32_BYTES)


def prolongation_bytes(coarse_rows: int, vector_bytes: int) -> int:
    """Return the bytes of x += x_c at coarse points, n_c·(3·w + 4): x_c, x and the map are read, and x is written."""
    return coarse_rows * (3 * vector_bytes + INT32_BYTES)


def cgs2_bytes(rows: int, k: int, vector_bytes: int, basis_bytes: int | None = None) -> int:
    """Return the bytes of CGS2 of a vector w against k vectors with scaling, n·(3·k + 7)·`vector_bytes`.

    The basis Q is read three times. h = Qᵀw reads w. The update w -= Q h with the second Qᵀw, the update w -= Q h with
    the norm, and the scaling each read and write w. If a number of the basis has only `basis_bytes`, Q is read with
    these, and the new vector is also written to the basis and read again.
    """
    if basis_bytes is None or basis_bytes == vector_bytes:
        return rows * (3 * k + 7) * vector_bytes
    return rows * ((3 * k + 2) * basis_bytes + 7 * vector_bytes)


def dot_bytes(rows: int, vectors: int = 2) -> int:
    """Return the bytes of the dot product xᵀy in fp64: 2·n·8, or n·8 for `vectors` = 1 (x with itself)."""
    return rows * vectors * FP64_BYTES


def waxpby_bytes(rows: int) -> int:
    """Return the bytes of w = a·x + b·y in fp64: 3·n·8."""
    return rows * 3 * FP64_BYTES

"""Compare counts of HPG-MxP and HPCG with loops that count, and with results by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from mxpeak.errors import UsageError
from mxpeak.layout.stencil import Box
from mxpeak.perf.sparse_counts import (
    HPCG_MOTIFS,
    HPG_MXP_MOTIFS,
    Levels,
    StoredSizes,
    cgs2_bytes,
    coarse_residual_bytes,
    dot_bytes,
    half_sweep_bytes,
    hpcg_bytes,
    hpcg_flops,
    hpg_mxp_flops,
    memory_bytes,
    ornl_mg_flops,
    product_bytes,
    prolongation_bytes,
    reference_mg_flops,
    stencil_levels,
    sweep_bytes,
    waxpby_bytes,
)

#: A small hierarchy whose products are easy to check by hand.
SMALL = Levels(rows=(100, 10, 2), nnz=(700, 60, 4), coarse_nnz=(70, 12, 0))


# --- levels -----------------------------------------------------------------------------------------------------


def test_the_levels_of_the_stencil_are_those_of_all_ranks():
    levels = stencil_levels(Box(16, 16, 16, 2, 1, 1))
    assert levels.rows == (2 * 16**3, 2 * 8**3, 2 * 4**3, 2 * 2**3)
    assert levels.nnz == (94 * 46 * 46, 46 * 22 * 22, 22 * 10 * 10, 10 * 4 * 4)
    assert levels.coarse_nnz == (47 * 23 * 23, 23 * 11 * 11, 11 * 5 * 5, 0)


def test_there_are_30_entries_a_row_in_all_levels_of_104_cubed():
    levels = stencil_levels(Box(104, 104, 104))
    assert sum(levels.nnz) / levels.rows[0] == pytest.approx(30.2, abs=0.05)


# --- flops of HPG-MxP -------------------------------------------------------------------------------------------


def counted_reference_flops(levels: Levels, cycles: list[int]) -> dict[str, int]:
    """Count the flops of each operation in the reference's loop over cycles and steps."""
    N, nnz, mg = levels.rows[0], levels.nnz[0], sum(2 * (1 + 1 + 1) * nnz for nnz in levels.nnz)
    flops = dict.fromkeys(HPG_MXP_MOTIFS, 0)
    for steps in cycles:
        flops["spmv"] += 2 * nnz
        flops["update"] += 2 * N + 2 * N + N
        for k in range(1, steps + 1):
            flops["gs"] += mg
            flops["spmv"] += 2 * nnz
            flops["ortho"] += 4 * k * N + 4 * k * N + 2 * N + N
        flops["update"] += 2 * N * steps + 2 * N
        flops["gs"] += mg
    return flops


@pytest.mark.parametrize("cycles", [[30] * 10, [30, 30, 5], [1], [7], []])
def test_flops_are_those_of_the_references_loop(cycles: list[int]):
    flops = hpg_mxp_flops(SMALL, cycles)
    total = flops.pop("total")
    assert flops == counted_reference_flops(SMALL, cycles)
    assert total == sum(flops.values())


def test_flops_of_two_steps_worked_out_by_hand():
    assert hpg_mxp_flops(SMALL, [2]) == {
        "gs": 3 * 6 * 764,  # two steps and the update, three sweeps or residuals of 2 flops per entry
        "spmv": 3 * 1400,
        "ortho": 800 + 300 + 1600 + 300,
        "restriction": 0,
        "prolongation": 0,
        "update": 200 + 200 + 100 + 400 + 200,
        "total": 13752 + 4200 + 3000 + 1100,
    }


def test_ornls_count_differs_in_multigrid_alone():
    reference, ornl = (hpg_mxp_flops(SMALL, [2], counting) for counting in ("reference", "ornl"))
    assert [ornl[m] for m in ("spmv", "ortho", "update")] == [reference[m] for m in ("spmv", "ortho", "update")]
    assert ornl["gs"] == 3 * (700 + 1400 + 60 + 120 + 8)
    assert ornl["restriction"] == 3 * (140 + 24)
    assert ornl["prolongation"] == 3 * (10 + 2)
    assert ornl["total"] == sum(ornl[motif] for motif in HPG_MXP_MOTIFS)


def test_a_large_problem_has_the_published_flops_a_row():
    # Of a large cube nnz is 27 n and the levels add 1/8, 1/64 and 1/512 of it: 6 * 27 * 1.1426 = 185 flops by the
    # reference's count; 27 * (3 * 1.1406 + 2/512) + 2 * 27 * 1.1406 / 8 + 1.14 / 8 = 100 by ORNL's.
    levels = stencil_levels(Box(1024, 1024, 1024))
    for counting, expected in ((reference_mg_flops, 185.0), (ornl_mg_flops, 100.0)):
        assert sum(counting(levels).values()) / levels.rows[0] == pytest.approx(expected, rel=0.01)
    # 127 flops per row and step at restart 30: 8 k on average 124, norm and scaling 3.
    assert hpg_mxp_flops(levels, [30])["ortho"] / (30 * levels.rows[0]) == 127


def test_a_hierarchy_of_one_level_is_smoothed_once():
    one = Levels(rows=(10,), nnz=(50,), coarse_nnz=(0,))
    assert ornl_mg_flops(one) == {"gs": 100, "restriction": 0, "prolongation": 0}
    assert reference_mg_flops(one) == {"gs": 300, "restriction": 0, "prolongation": 0}


def test_another_counting_is_refused():
    with pytest.raises(UsageError, match="counting 'peak' is unknown; use one of reference, ornl"):
        hpg_mxp_flops(SMALL, [1], "peak")


# --- HPCG -------------------------------------------------------------------------------------------------------


def counted_hpcg(levels: Levels, iterations: int, sets: int) -> tuple[dict[str, int], int, int]:
    """Count HPCG's flops, bytes read and bytes written by operation: sets of a preamble and equal iterations."""
    flops, read, written = dict.fromkeys(HPCG_MOTIFS, 0), 0, 0
    N, w = levels.rows[0], 8

    def vectors(count: int) -> None:
        nonlocal read, written
        flops["ddot"] += count * 2 * N
        flops["waxpby"] += count * 2 * N
        read += count * (2 * N * w + 2 * N * w)
        written += count * (w + N * w)

    def product_() -> None:
        nonlocal read, written
        flops["spmv"] += 2 * levels.nnz[0]
        read += 12 * levels.nnz[0] + w * N
        written += w * N

    def smoothed(level: int) -> None:
        nonlocal read
        flops["mg"] += 4 * levels.nnz[level]
        read += 2 * 12 * levels.nnz[level] + w * levels.rows[level]

    for _ in range(sets):
        vectors(1)
        product_()
    for _ in range(iterations):
        vectors(3)
        product_()
        for level in range(len(levels.rows) - 1):
            smoothed(level)
            flops["mg"] += 2 * levels.nnz[level]
            read += 12 * levels.nnz[level] + w * levels.rows[level]
            smoothed(level)
            written += w * levels.rows[level] + 2 * w * levels.nnz[level]  # the value of HPCG
        smoothed(len(levels.rows) - 1)
        written += w * levels.rows[-1]
    return flops, read, written


@pytest.mark.parametrize(("iterations", "sets"), [(50, 1), (150, 3), (0, 1)])
def test_hpcg_counts_are_those_of_its_operations(iterations: int, sets: int):
    flops, read, written = counted_hpcg(SMALL, iterations, sets)
    assert hpcg_flops(SMALL, iterations, sets) == {**flops, "total": sum(flops.values())}
    assert hpcg_bytes(SMALL, iterations, sets) == {"read": read, "write": written, "total": read + written}


def test_hpcg_counts_374_flops_a_row_of_a_large_problem():
    # Multigrid 27 * (10 * 1.1406 + 4/512) = 308, product 54, three dots and three WAXPBYs 12.
    levels = stencil_levels(Box(1024, 1024, 1024))
    assert hpcg_flops(levels, 50)["total"] / 50 / levels.rows[0] == pytest.approx(374, rel=0.01)


# --- memory -----------------------------------------------------------------------------------------------------


def test_memory_is_the_references_formula():
    box = Box(8, 8, 8, 2, 1, 1, px=1)
    finest, coarse = memory_bytes(box, count=2)
    n, halo = 1024, 64
    assert finest == n * (1 + 32 + 540 + 24 + 16) + 16 * 2 * (512 + halo)
    n, halo = 128, 16
    assert coarse == n * (1 + 32 + 540 + 4 + 8) + 16 * 2 * (64 + halo) + 12 * halo + 12


def test_a_basis_takes_restart_and_one_vectors_of_the_finest_level():
    box = Box(16, 16, 16)
    without, with_basis = memory_bytes(box), memory_bytes(box, restart=30)
    assert with_basis[0] - without[0] == 31 * 8 * 16**3
    assert with_basis[1:] == without[1:]
    assert len(without) == 4


def test_hpcg_takes_about_715_bytes_an_equation():
    # 613 for matrix and vectors and 16 for z and p; coarse levels a seventh of about 601.
    box = Box(104, 104, 104)
    assert sum(memory_bytes(box)) / box.rows == pytest.approx(629 + 601 / 7, rel=0.01)


# --- least traffic ----------------------------------------------------------------------------------------------

A = StoredSizes(rows=100, values=2600, value_bytes=2, index_bytes=5200, vector_bytes=4, wide_bytes=4)


def test_kernels_that_read_the_whole_matrix_add_their_vectors_to_it():
    assert A.part(A.values) == 10400
    assert product_bytes(A) == 10400 + 3 * 400
    assert sweep_bytes(A) == 10400 + 4 * 400


def test_vectors_in_16_bits_halve_all_but_the_diagonal_and_the_result_of_a_product():
    narrow = replace(A, vector_bytes=2)
    assert product_bytes(narrow) == 10400 + 200 + 2 * 400
    assert sweep_bytes(narrow) == 10400 + 400 + 3 * 200
    assert half_sweep_bytes(narrow, 1300) == 5200 + 400 + 2 * 200


def test_a_flexible_basis_saves_the_multigrid_call_of_each_update():
    levels = stencil_levels(Box(16, 16, 16))
    plain, flexible = (hpg_mxp_flops(levels, [30, 5], flexible=flexible) for flexible in (False, True))
    assert plain["gs"] - flexible["gs"] == 2 * reference_mg_flops(levels)["gs"]
    assert {name: plain[name] for name in ("spmv", "ortho", "update")} == {
        name: flexible[name] for name in ("spmv", "ortho", "update")
    }


def test_a_part_of_the_entries_takes_its_share_of_the_indices():
    assert A.part(1300) == 2600 + 2600
    assert half_sweep_bytes(A, 1300) == 5200 + 3 * 400
    assert half_sweep_bytes(A, 1300, keep=True) == 5200 + 4 * 400
    assert coarse_residual_bytes(A, coarse_rows=12, coarse_values=156, vectors=0) == 312 + 312 + 400 + 12 * 8
    assert coarse_residual_bytes(A, coarse_rows=12, coarse_values=156, vectors=2) == 312 + 312 + 400 + 12 * 24
    assert prolongation_bytes(12, vector_bytes=4) == 12 * 16


def test_a_sweep_from_zero_costs_less_than_a_full_one():
    assert half_sweep_bytes(A, A.values // 2) < sweep_bytes(A) - A.part(A.values // 2)


def test_orthogonalisation_reads_the_basis_three_times():
    for k, w in product((1, 30), (2, 4, 8)):
        assert cgs2_bytes(100, k, w) == 3 * 100 * k * w + (1 + 2 + 2 + 2) * 100 * w
        assert cgs2_bytes(100, k, w, w) == cgs2_bytes(100, k, w)


def test_a_basis_in_16_bits_is_read_in_16_bits_and_its_new_vector_written_and_widened():
    # The dot product reads w; both updates and the scaling read and write w; the new vector is written and read.
    assert cgs2_bytes(100, 30, 4, 2) == 3 * 100 * 30 * 2 + (1 + 2 + 2 + 1 + 1) * 100 * 4 + (1 + 1) * 100 * 2


def test_vector_operations_move_their_vectors():
    assert dot_bytes(100) == 1600
    assert dot_bytes(100, vectors=1) == 800
    assert waxpby_bytes(100) == 2400


def test_the_least_bytes_of_an_iteration_are_those_of_the_traffic_model():
    # ELL of 27 entries of 8 bytes per row at restart 30: product 216 + 8, basis 3 * 15.5 * 4 on average.
    n = 100
    ell = StoredSizes(rows=n, values=26 * n, value_bytes=4, index_bytes=4 * 27 * n, vector_bytes=4, wide_bytes=4)
    assert product_bytes(ell) == (216 + 8) * n
    assert sum(cgs2_bytes(n, k, 4) for k in range(1, 31)) == (186 + 28) * n * 30

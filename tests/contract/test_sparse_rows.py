"""Compare rows of sparse matrices, their orders, and the facts about a stored matrix with their definitions."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from mxpeak.kernels.contract.sparse import Rows
from mxpeak.kernels.host.sparse.natural import slot_format
from mxpeak.kernels.host.sparse.slot_sums import SUCCESSIVE
from mxpeak.layout.stencil import Box
from mxpeak.precision import PRECISIONS
from tests.support.notes import note_case
from tests.support.on_arrays import HOSTS, SLICES, OnArrays, every_backend, every_host, sparse_kernels
from tests.support.sparse_matrices import (
    BOXES,
    CLASSIC,
    KINDS,
    MATRICES,
    ORACLE,
    STORAGES,
    UNEQUAL,
    Example,
    compressed,
    listed,
    near,
    on_examples,
    oracle_rows,
    order_of,
    rows_of,
    stored,
    unit,
)

GRID = (2, 3, 2)


def same_rows(actual: Rows, exact: Rows) -> None:
    assert (actual.n, actual.halo) == (exact.n, exact.halo)
    assert list(actual.indptr) == list(exact.indptr)
    assert [sorted(row) for row in listed(actual)] == [sorted(row) for row in listed(exact)]


@every_host
def test_the_stencils_rows_are_those_of_its_definition(host: Any) -> None:
    for box, weights in product([*BOXES.values(), Box(5, 7, 3, *GRID, 0, 1, 1)], (CLASSIC, UNEQUAL)):
        with note_case(case=(box, weights)):
            found = host.stencil_rows(box, weights)
            same_rows(found, ORACLE.stencil_rows(box, weights))
            local = [[j for j, _ in row if j < found.n] for row in listed(found)]
            assert local == [sorted(columns) for columns in local]


def test_the_rows_of_all_ranks_are_the_rows_of_the_whole_domain() -> None:
    shape = (3, 2, 2)
    boxes = [Box.of(rank, shape, GRID) for rank in range(12)]
    whole = boxes[0].global_shape
    for host, box in product([ORACLE, HOSTS[0]], boxes):
        points = [(x, y, z) for z in range(shape[2]) for y in range(shape[1]) for x in range(shape[0])]
        for neighbour in box.neighbors():
            (x0, y0, z0), (nx, ny, nz) = neighbour.first_received, neighbour.shape
            points += [(x0 + x, y0 + y, z0 + z) for z in range(nz) for y in range(ny) for x in range(nx)]
        points = [tuple(a + b for a, b in zip(point, box.origin)) for point in points]
        for i, row in enumerate(listed(host.stencil_rows(box, UNEQUAL))):
            (x, y, z), entries = points[i], {points[j]: a for j, a in row}
            around = {(x + d % 3 - 1, y + d // 3 % 3 - 1, z + d // 9 - 1): w for d, w in enumerate(UNEQUAL)}
            inside = {p: w for p, w in around.items() if all(0 <= c < n for c, n in zip(p, whole))}
            assert entries == inside
            assert len(row) == len(inside)


@every_host
def test_anybodys_compressed_rows_become_rows_of_ascending_columns_in_fp64(host: Any) -> None:
    indptr, indices = np.array([0, 3, 4, 7], np.uint64), [2, 0, 3, 1, 4, 2, 0]
    rows = host.rows_of(indptr, indices, np.arange(1, 8, dtype=np.float32), 3, 2)
    assert listed(rows) == [[(0, 2.0), (2, 1.0), (3, 3.0)], [(1, 4.0)], [(0, 7.0), (2, 6.0), (4, 5.0)]]
    assert rows.data.dtype == np.float64
    assert host.is_symmetric_pattern(rows)


@every_host
def test_zeros_are_stored_where_an_entry_has_no_partner(host: Any) -> None:
    rng = np.random.default_rng(3)
    entries = [{i: 4.0, **{int(j): 1.0 for j in rng.integers(0, 60, 3)}} for i in range(50)]
    before = compressed(50, 10, entries)
    rows = host.rows_of(before.indptr, before.indices, before.data, 50, 10)
    assert not host.is_symmetric_pattern(rows)
    assert not ORACLE.is_symmetric_pattern(before)
    filled = host.with_symmetric_pattern(rows)
    same_rows(filled, ORACLE.with_symmetric_pattern(before))
    assert host.is_symmetric_pattern(filled)
    added = [set(new) - set(old) for old, new in zip(listed(before), listed(filled))]
    assert {a for row in added for _, a in row} == {0.0}
    assert all(set(old) <= set(new) for old, new in zip(listed(before), listed(filled)))
    same_rows(host.with_symmetric_pattern(filled), filled)


@every_host
def test_orders_are_those_of_the_reference_and_their_groups_are_independent(host: Any) -> None:
    for name, kind in product(MATRICES, KINDS):
        with note_case(case=(name, kind)):
            rows, order, exact = rows_of(host, name), order_of(host, name, kind), order_of(ORACLE, name, kind)
            for part in ("new_to_old", "old_to_new", "starts"):
                assert getattr(order, part).tolist() == getattr(exact, part).tolist()
            assert (order.kind, order.groups) == (kind, exact.groups)
            assert order.new_to_old[order.old_to_new].tolist() == list(range(rows.n))
            group = np.searchsorted(order.starts, order.old_to_new, side="right") - 1
            i = np.repeat(np.arange(rows.n), np.diff(rows.indptr))
            others = (rows.indices < rows.n) & (rows.indices != i)
            i, j = i[others], rows.indices[others]
            assert (group[i] != group[j]).all()
            if kind in ("levels", "natural"):
                assert (group[j] < group[i])[j < i].all()
            if kind == "surface_last":
                surface = np.zeros(rows.n, bool)
                surface[np.repeat(np.arange(rows.n), np.diff(rows.indptr))[rows.indices >= rows.n]] = True
                assert order.new_to_old.tolist() == [*np.flatnonzero(~surface), *np.flatnonzero(surface)]
            if kind == "greedy" and name in BOXES:
                assert order.groups == 8


@every_host
def test_rounding_is_the_largest_relative_error(host: Any) -> None:
    for precision in ("fp64", "fp32", "bf16", "fp16", "fp8"):
        with note_case(case=precision):
            check_rounding(host, precision)


def check_rounding(host: Any, precision: str) -> None:
    format_ = PRECISIONS[precision]
    for name in ("long rows", "few columns anywhere"):
        u = host.rounding(rows_of(host, name), precision)
        assert u == pytest.approx(ORACLE.rounding(oracle_rows(name), precision), rel=1e-12, abs=0.0)
        if precision in ("fp32", "bf16"):  # relative errors of the other formats' subnormal numbers are larger
            assert 0.0 < u <= format_.u
    assert host.rounding(rows_of(host, "a box alone"), precision) == 0.0
    assert host.rounding(host.rows_of([0, 1, 2], [0, 1], [format_.largest, 0.0], 2, 0), precision) == 0.0
    if precision != "fp64":
        beyond = host.rows_of([0, 1, 3], [0, 0, 1], [1.0, -format_.largest * 1.5, 2.0], 2, 0)
        assert host.rounding(beyond, precision) == ORACLE.rounding(beyond, precision) == math.inf


@on_examples
def test_a_stored_matrix_says_what_it_is(kernels: Any, s: Example, A: Any) -> None:
    R, width = s.R, PRECISIONS[s.values].bytes
    assert R.nnz == oracle_rows(s.name).indptr[-1]
    assert (A.n, A.halo, A.values, A.vectors, A.nnz, A.halo_nnz) == (
        R.n,
        R.halo,
        s.values,
        s.vectors,
        R.nnz,
        R.halo_nnz,
    )
    assert A.storage in STORAGES
    assert A.lower >= R.lower
    assert A.upper >= R.upper
    assert 0 <= A.index_bytes <= A.bytes - width * (A.lower + A.upper) - PRECISIONS[s.vectors].bytes * R.n
    if isinstance(kernels, OnArrays):
        as_hosts = stored(HOSTS[0], s.name, s.kind, s.values, s.vectors, A.storage)
        for what in ("lower", "upper", "storage", "index_bytes"):
            assert getattr(A, what) == getattr(as_hosts, what)


@every_host
def test_packed_the_stencil_is_runs_alone_whose_columns_take_two_hundredths_of_its_values(host: Any) -> None:
    """Per 64 rows, a slot has 64·8 bytes of values and a base of 4, which is 0.8 %; the rest describes the chunks."""
    for location in ((1, 1, 1, 0, 0, 0), (*GRID, 0, 1, 1), (*GRID, 1, 2, 0)):
        rows = host.stencil_rows(Box(16, 16, 16, *location), CLASSIC)
        order = host.order(rows, "greedy")
        A, ell = (host.store(rows, order, "fp64", "fp64", storage) for storage in ("packed", "ell"))
        local = int((rows.indices < rows.n).sum()) - rows.n
        assert A.index_bytes < 0.02 * 8 * local
        assert A.lower + A.upper < 1.2 * local
        assert ell.index_bytes >= 4 * local


def test_the_copy_for_residuals_is_filled_up_little_where_lines_are_no_multiples_of_a_chunk() -> None:
    """Lines of 12 and 48 points are groups of 8 and one of 4; in chunks of 32 they would be padded to 32 and 64."""
    host = sparse_kernels("host")
    for box, limit in ((Box(96, 16, 16), 1.1), (Box(24, 16, 16), 1.5)):
        rows = host.stencil_rows(box, CLASSIC)
        A = host.store(rows, host.order(rows, "natural"), "fp64", "fp64", "packed")
        b, x = np.ones(A.n), host.halo_vector(A)
        points = np.arange(A.n, dtype=np.int32).reshape(box.nz, box.ny, box.nx)[::2, ::2, ::2].ravel()
        host.residual_at(A, b, x, points, np.zeros(points.size), swept=True)
        (copy,) = A.coarse[0].copies.values()
        assert copy.values.size < limit * np.count_nonzero(copy.values)


def test_where_columns_are_stored_entries_at_the_same_distance_from_the_diagonal_share_a_slot() -> None:
    """The columns of a slot are consecutive, although lines end within chunks; on a coarse level, a few are not."""
    slices = sparse_kernels(SLICES)
    for box, least in ((Box(32, 8, 8), 0.99), (Box(24, 8, 8), 0.9), (Box(8, 8, 8, *GRID, 0, 1, 1), 0.75)):
        rows = slices.stencil_rows(box, CLASSIC)
        A = slices.store(rows, slices.order(rows, "natural"), "fp64", "fp64", "rows")
        columns = A.pattern.columns.far.reshape(-1, SUCCESSIVE)
        assert np.mean((np.diff(columns, axis=1) == 1).all(axis=1)) >= least
        assert A.lower + A.upper < 1.25 * rows.indices.size


def test_lines_shorter_than_a_chunk_are_swept_in_blocks_unless_rows_need_one_of_their_own_block() -> None:
    """Lines of four points do: the row below and to the right is three rows away."""
    slices = sparse_kernels(SLICES)
    for nx, swept in ((24, True), (16, True), (8, True), (4, False)):
        rows = slices.stencil_rows(Box(nx, 8, 8), CLASSIC)
        A = slices.store(rows, slices.order(rows, "natural"), "fp64", "fp64", "packed")
        found = A.pattern.columns.table[:, slot_format.COUNTS + slot_format.NEXT :] >= 0
        assert found[1:].all() if swept else not found.any(), nx  # the first row has no earlier one


@every_backend
def test_row_sums_are_in_the_new_order(kernels: Any) -> None:
    for name, kind in product(("a box in a corner", "long rows"), KINDS):
        sums = kernels.row_sums(rows_of(kernels, name), order_of(kernels, name, kind))
        exact = ORACLE.row_sums(oracle_rows(name), order_of(ORACLE, name, kind))
        near(sums, exact, 100 * 64 * unit("fp64"))  # sums of up to 100 entries with absolute sums below 64·2

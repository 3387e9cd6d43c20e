"""Compare sparse kernels with their definitions, for all orders, storages, formats and backends.

All backends are compared with the reference, and the reference with the definitions.  Memory that must not be used
holds NaN, and entries of x that must not be read yet hold a number that is far off, so that reading them is detected.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from mxpeak.kernels.contract.sparse import Part, Rows
from mxpeak.kernels.host.sparse import sparse as host_sparse
from mxpeak.kernels.host.sparse.natural.schedule import shares
from mxpeak.kernels.host.sparse.natural.slot_format import COUNTS, NEXT, OVERFLOW
from mxpeak.layout.stencil import Box
from mxpeak.precision import PRECISIONS
from tests.support.notes import note_case
from tests.support.on_arrays import HOSTS, SLICES, OnArrays, every_backend, every_host, interpreted, sparse_kernels
from tests.support.sparse_matrices import (
    CLASSIC,
    FAR_OFF,
    KINDS,
    MANY,
    MATRICES,
    ORACLE,
    STORAGES,
    SUITING,
    Example,
    Guarded,
    compressed,
    example,
    halo_vector,
    larger,
    near,
    on_examples,
    oracle_rows,
    order_of,
    own,
    random,
    rows_of,
    storages_of,
    stored,
    wide,
)

GRID = (2, 3, 2)


#: The two matrices of FEW with several chunks, each of which occurs with fp32 values and with narrow ones.
LARGER = ("a box of several chunks", "irregular rows")


def left_out(kernels: Any, s: Example, turn: int) -> bool:
    """Return whether a slow interpreter skips a large matrix with these formats; the other value of `turn` runs it."""
    return interpreted(kernels) and s.name in LARGER and (LARGER.index(s.name) + (s.values == "fp32") + turn) % 2 == 1


# --- sweeps -----------------------------------------------------------------------------------------------------------


def gauss_seidel(rows: Rows, b: Any, x: Any, halo: Any, sequence: Any) -> Any:
    """Return x after x_i = (b_i - Σ_{j≠i} a_ij x_j) / a_ii for the rows in this sequence."""
    everything = np.concatenate([x, halo])
    for i in sequence:
        row = slice(rows.indptr[i], rows.indptr[i + 1])
        j, a = rows.indices[row], rows.data[row]
        diagonal = a[j == i][0]
        everything[i] = (b[i] - (a @ everything[j] - diagonal * everything[i])) / diagonal
    return everything[: len(x)]


def test_the_references_sweep_is_gauss_seidel_in_its_order_and_the_natural_one_row_after_row() -> None:
    """Test matrices with many rows in two or three orders, and other matrices in all orders."""
    for turn, (name, kind) in enumerate(product(MATRICES, KINDS)):
        if turn % 2 and oracle_rows(name).n > 300:
            continue
        with note_case(case=(name, kind)):
            s = example(name, kind, "fp64", "fp64")
            rows, new_to_old, b, x = oracle_rows(name), s.order.new_to_old, np.empty(s.R.n), np.empty(s.R.n)
            b[new_to_old], x[new_to_old] = s.b, s.x
            sequence = range(rows.n) if kind in ("levels", "natural") else new_to_old
            for found, bound in (s.forward, s.symmetric[False]):
                x = gauss_seidel(rows, b, x, s.halo, sequence)
                near(found, x[new_to_old], bound)
                sequence = list(reversed(sequence))


def test_the_references_operations_fit_together() -> None:
    """Check products, residuals, and the vectors that sweeps keep, for every matrix."""
    for name in MATRICES:
        with note_case(case=name):
            s = example(name, "greedy", "bf16", "fp32")
            check_keep(ORACLE, s, s.R)
            check_swept(ORACLE, s, s.R)
            every, y, x = np.arange(s.R.n), np.zeros(s.R.n, np.float32), s.fresh(ORACLE, s.R)
            for part in (Part.INTERIOR, Part.BOUNDARY):
                ORACLE.matvec(y, s.R, x, part=part)
            near(y, *s.products[1:])
            for part in (Part.INTERIOR, Part.BOUNDARY):
                ORACLE.residual_at(s.R, s.b, x, every, y, swept=False, part=part)
            near(y, *s.residuals)


@on_examples
def test_sweeps_are_the_references_in_one_part_and_in_two(kernels: Any, s: Example, A: Any) -> None:
    """The first part reads no values of other ranks; b is unchanged."""
    x, halves, b = s.fresh(kernels, A), s.fresh(kernels, A), s.right_side()
    whole_keep, keep = (Guarded(A.n, s.vectors) for _ in range(2))
    kernels.sweep_forward(A, b.inner, x, keep=whole_keep.inner)
    near(own(A, x), *s.forward)
    assert (x[A.n : A.n + A.halo] == s.halo).all()
    halves[A.n : A.n + A.halo] = FAR_OFF
    kernels.sweep_forward(A, b.inner, halves, keep=keep.inner, part=Part.INTERIOR)
    halves[A.n : A.n + A.halo] = s.halo
    kernels.sweep_forward(A, b.inner, halves, keep=keep.inner, part=Part.BOUNDARY)
    assert halves.tolist() == x.tolist()
    assert (b.checked() == s.b).all()
    assert keep.checked().tolist() == whole_keep.checked().tolist()


@on_examples
def test_a_sweep_from_zero_is_one_on_zero(kernels: Any, s: Example, A: Any) -> None:
    if left_out(kernels, s, 1):
        return
    for before in (FAR_OFF,) if isinstance(kernels, OnArrays) else (s.x, FAR_OFF):
        x, b = s.fresh(kernels, A, before), s.right_side()
        kernels.sweep_from_zero(A, b.inner, x)
        near(own(A, x), *s.from_zero)
        halves = halo_vector(kernels, A, before, FAR_OFF)
        in_halves(partial(kernels.sweep_from_zero, A, b.inner, halves), s, A, halves, x)
        assert (b.checked() == s.b).all()


def in_halves(sweep: Any, s: Example, A: Any, halves: Any, x: Any) -> None:
    """Check that a sweep without halo is the same in two parts, of which the first completes the boundary rows."""
    surface = [r for r, row in enumerate(s.R.rows) if row.halo.columns.size]
    sweep(part=Part.BOUNDARY)
    assert own(A, halves)[surface].tolist() == own(A, x)[surface].tolist()
    sweep(part=Part.INTERIOR)
    assert own(A, halves).tolist() == own(A, x).tolist()


def check_keep(kernels: Any, s: Example, A: Any) -> None:
    for from_zero, (forward, bound) in ((False, s.forward), (True, s.from_zero)):
        x, b, keep = s.fresh(kernels, A), s.right_side(), Guarded(A.n, s.vectors)
        (kernels.sweep_from_zero if from_zero else kernels.sweep_forward)(A, b.inner, x, keep=keep.inner)
        near(own(A, x), forward, bound)
        assert np.isfinite(keep.checked()).all()
        halves = halo_vector(kernels, A, own(A, x), FAR_OFF)
        kernels.sweep_backward(A, keep.inner, x)
        near(own(A, x), *s.symmetric[from_zero])
        in_halves(partial(kernels.sweep_backward, A, keep.inner, halves), s, A, halves, x)
        assert (b.checked() == s.b).all()


@on_examples
def test_what_a_forward_sweep_keeps_serves_the_backward_one(kernels: Any, s: Example, A: Any) -> None:
    if not left_out(kernels, s, 0):
        check_keep(kernels, s, A)


def test_threads_do_not_change_a_bit() -> None:
    for case in MANY:
        s, results = example(*case[:-1]), []
        for host in HOSTS:
            A = stored(host, *case)
            x, y = s.fresh(host, A), Guarded(A.n, s.vectors)
            host.sweep_forward(A, s.b, x)
            host.matvec(y.inner, A, x)
            results.append([*x.tolist(), *y.checked().tolist()])
        assert results[0] == results[1], case


def test_threads_that_wait_for_each_other_sweep_like_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweep in row order with any amount of work: forward, backward, from zero, with kept vectors; compare bitwise."""
    alone, several = HOSTS
    monkeypatch.setattr(host_sparse, "SERIAL_BELOW", 0)
    for name, kind, storage in product(MATRICES, ("natural", "surface_last"), SUITING["natural"]):
        s, results = example(name, kind, "fp64", "fp64"), []
        for host in (alone, *[several] * (3 if kind == "natural" else 1)):
            A, entries = stored(host, name, kind, "fp64", "fp64", storage), []
            for from_zero in (True, False):
                x, keep = s.fresh(host, A), np.zeros(A.n)
                (host.sweep_from_zero if from_zero else host.sweep_forward)(A, s.b, x, keep=keep)
                halves = x.copy()
                entries += [*x.tolist(), *keep.tolist()]
                host.sweep_backward(A, keep, x)
                entries += x.tolist()
                in_halves(partial(host.sweep_backward, A, keep, halves), s, A, halves, x)
            results.append(entries)
        assert all(entries == results[0] for entries in results[1:]), (name, kind, storage)


DISTANCES = ((1, 2), (1, 3), (2,), (1, 3, 40), (1, 7), (1, 2, 3, 4, 5, 6, 7), (7, 8), (1, 9))


def test_rows_that_need_others_of_their_own_block_are_swept_row_after_row() -> None:
    """The matrices are bands, and meshes with short lines; they agree to the last bits, as rows have few entries."""
    for case in product(DISTANCES, ("rows", "packed")):
        with note_case(case=case):
            check_band(*case)


def check_band(distances: tuple[int, ...], storage: str) -> None:
    kernels, n, rng = sparse_kernels(SLICES), 203, np.random.default_rng(5)
    band = [{i + d: -1.0 for d in distances} | {i - d: -0.5 for d in distances} | {i: 16.0} for i in range(n)]
    rows = compressed(n, 0, [{j: a for j, a in row.items() if 0 <= j < n} for row in band])
    mine = kernels.rows_of(rows.indptr, rows.indices, rows.data, n, 0)
    order = kernels.order(mine, "natural")
    A, b, none = kernels.store(mine, order, "fp64", "fp64", storage), rng.random(n), np.zeros(0)
    x, y, keep = kernels.halo_vector(A), np.zeros(n), np.zeros(n)
    for sweep in ("sweep_from_zero", "sweep_backward", "sweep_forward"):
        backward = sweep == "sweep_backward"
        if backward:
            kernels.sweep_backward(A, keep, x)
        else:
            getattr(kernels, sweep)(A, b, x, keep=keep)
        y = gauss_seidel(rows, b, y, none, range(n)[:: -1 if backward else 1])
        assert np.abs(x[:n] - y).max() <= 40 * 2.0**-53, "rows of 16 entries of a sum below 1"
        if not backward:
            lower = np.array([sum(a * y[j] for j, a in band[i].items() if 0 <= j < i) for i in range(n)])
            assert np.abs(keep - (b - lower)).max() <= 40 * 2.0**-53


def test_entries_that_few_rows_of_a_chunk_have_take_no_slots_of_their_own() -> None:
    """If the last row of each line is at the end of the order, only the row before it has neighbors there."""
    host, name = sparse_kernels(SLICES), "long lines that end at a neighbour"
    stored_as = {kind: stored(host, name, kind, "fp64", "fp64", "packed") for kind in ("natural", "surface_last")}
    overflow = {
        kind: A.pattern.columns.table[:, COUNTS + OVERFLOW : COUNTS + NEXT].sum(axis=0) for kind, A in stored_as.items()
    }
    assert overflow["natural"].tolist() == [0, 0]
    assert (overflow["surface_last"] > 0).all()
    stored_values = {kind: A.lower + A.upper for kind, A in stored_as.items()}
    assert stored_values["surface_last"] < 1.25 * stored_values["natural"]


def waited_for(needs: Any, owner: Any) -> Any:
    """Return how far each unit's thread has waited for the other threads, by this unit or by an earlier one."""
    required = needs.copy()
    for thread in range(needs.shape[1]):
        own = needs[owner == thread]
        required[owner == thread] = np.maximum.accumulate(own, axis=0)
        for asked in own.T:
            assert (np.diff(asked[asked > 0]) > 0).all()
    return required


def test_a_unit_waits_for_all_that_it_has_entries_in() -> None:
    host = HOSTS[1]
    for name, storage in product(("a box alone", "long rows", "rows of hundreds"), ("rows", "packed")):
        A, rows = stored(host, name, "natural", "fp64", "fp64", storage), rows_of(host, name)
        pattern, count = A.pattern, A.pattern.owner.size
        begins = begins_of(pattern)
        forward = waited_for(pattern.forward, pattern.owner)
        backward = waited_for(pattern.backward[::-1], pattern.owner[::-1])[::-1]
        assert count >= 4
        assert begins[-1] == rows.n
        unit = np.searchsorted(begins, np.arange(rows.n), side="right") - 1
        row, column = np.repeat(np.arange(rows.n), np.diff(rows.indptr)), rows.indices
        u, v = unit[row[column < rows.n]], unit[column[column < rows.n]]
        others = pattern.owner[u] != pattern.owner[v]
        for a, b in zip(u[others], v[others]):
            if b < a:  # in the order of units, b is complete once its thread has reached b + 1
                assert forward[a, pattern.owner[b]] >= b + 1
            else:
                assert backward[a, pattern.owner[b]] >= count - b


def begins_of(pattern: Any) -> Any:
    """Return the first rows of units, and the end of the last one."""
    columns = pattern.columns
    if columns.units.ndim == 2:
        return columns.units[:, 0]
    return np.append(columns.table[:, 0], columns.table[-1, :2].sum())[columns.units]


@pytest.mark.parametrize("storage", ["rows", "packed"])
def test_a_box_is_divided_so_that_threads_work_at_the_same_time(storage: str) -> None:
    """If time is proportional to entries, two threads need little more than half of the time of one."""
    host = HOSTS[0]
    for box, share in ((Box(32, 32, 32), (0.6, 0.45)), (Box(40, 33, 23), (0.6, 0.5))):
        rows = host.stencil_rows(box, CLASSIC)
        order = host.order(rows, "natural")
        begins = begins_of(host.store(rows, order, "fp64", "fp64", storage).pattern)
        cost = np.diff(rows.indptr[begins]).astype(float)
        in_lower = np.array([(rows.indices[s:e] < r).sum() for r, (s, e) in enumerate(pairwise(rows.indptr))])
        edges = host.unit_edges(rows, order, begins, in_lower)
        for other in HOSTS[1:]:
            for mine, theirs in zip(edges, other.unit_edges(rows, order, begins, in_lower)):
                assert np.array_equal(mine, theirs)
        for u, needed in enumerate(needs_of(begins, rows)):
            assert set(edges[1][edges[0][u] : edges[0][u + 1]].tolist()) == needed
        for threads, limit in zip((2, 3), share):
            owner, _, _ = shares(threads, cost, *edges)
            assert set(owner.tolist()) == set(range(threads))
            done = finished(owner, begins, cost, rows, threads)
            assert done < limit * finished(np.zeros_like(owner), begins, cost, rows, 1), (box, threads)


def needs_of(begins: Any, rows: Rows) -> list[set[int]]:
    """Return the earlier units in which each unit has entries."""
    unit = np.searchsorted(begins, np.arange(rows.n), side="right") - 1
    entries = [rows.indices[rows.indptr[row0] : rows.indptr[row1]] for row0, row1 in pairwise(begins)]
    return [{v for v in unit[columns].tolist() if v < u} for u, columns in enumerate(entries)]


def finished(owner: Any, begins: Any, cost: Any, rows: Rows, threads: int) -> float:
    """Return the time when all units are complete, if each takes its cost and starts after its dependencies."""
    free, done = [0.0] * threads, [0.0] * len(owner)
    for u, (thread, needed) in enumerate(zip(owner, needs_of(begins, rows))):
        done[u] = max([free[thread], *(done[v] for v in needed)]) + cost[u]
        free[thread] = done[u]
    return max(free)


#: Number of ranks and own coordinate in a dimension: no neighbor, one after, one before, both.
SIDES = ((1, 0), (2, 0), (2, 1), (3, 1))
#: With these weights and small integers, eight colors need no rounding: x is a multiple of 2^-48 and below 2^4.
EXACT = tuple(32.0 if d == 13 else (-1.0, 0.5, 1.0, -0.5)[d % 4] for d in range(27))


@every_host
def test_overlapped_sweeps_are_exact_whatever_the_neighbours(host: Any) -> None:
    """Interior rows come before the halo arrives, boundary rows after it; the result is that of a sequential sweep."""
    for sides in product(SIDES, repeat=3):
        ranks, coordinates = zip(*sides)
        box, rng = Box(6, 5, 4, *ranks, *coordinates), np.random.default_rng(7)
        rows = ORACLE.stencil_rows(box, EXACT)
        own_rows = host.stencil_rows(box, EXACT)
        order = host.order(own_rows, "greedy")
        b, x0, halo = (rng.integers(-8, 9, size).astype(float) for size in (rows.n, rows.n, rows.halo))
        exact = gauss_seidel(rows, b, x0, halo, order.new_to_old)[order.new_to_old]
        for storage in STORAGES:
            A = host.store(own_rows, order, "fp64", "fp64", storage)
            x = halo_vector(host, A, x0[order.new_to_old], rng.integers(-8, 9, rows.halo))
            host.sweep_forward(A, b[order.new_to_old], x, part=Part.INTERIOR)
            x[A.n : A.n + A.halo] = halo
            host.sweep_forward(A, b[order.new_to_old], x, part=Part.BOUNDARY)
            assert own(A, x).tolist() == exact.tolist(), (sides, storage)


# --- products and residuals -------------------------------------------------------------------------------------


@on_examples
def test_products_are_the_references_in_one_part_and_in_two(kernels: Any, s: Example, A: Any) -> None:
    inside, whole, bound = s.products
    x, y, z = s.fresh(kernels, A), Guarded(A.n, s.vectors), Guarded(A.n, s.vectors)
    kernels.matvec(y.inner, A, x)
    near(y.checked(), whole, bound)
    x[A.n : A.n + A.halo] = FAR_OFF
    kernels.matvec(z.inner, A, x, part=Part.INTERIOR)
    near(z.checked(), inside, bound)
    x[A.n : A.n + A.halo] = s.halo
    kernels.matvec(z.inner, A, x, part=Part.BOUNDARY)
    assert z.checked().tolist() == y.checked().tolist()
    assert own(A, x).tolist() == wide(s.x).tolist()


@on_examples
def test_residuals_at_some_rows_are_the_references_in_one_part_and_in_two(kernels: Any, s: Example, A: Any) -> None:
    if left_out(kernels, s, 0):
        return
    n, (exact, bound) = s.R.n, s.residuals
    some = np.random.default_rng(1).permutation(n)[: n // (9 if isinstance(kernels, OnArrays) else 3) + 1]
    for numbers in (some, some[:0], *(() if isinstance(kernels, OnArrays) else (np.arange(n),))):
        rows = numbers.astype(np.int32)
        x, b = s.fresh(kernels, A), s.right_side()
        whole, halves = Guarded(len(rows), s.vectors), Guarded(len(rows), s.vectors)
        kernels.residual_at(A, b.inner, x, rows, whole.inner, swept=False)
        near(whole.checked(), exact[rows], bound[rows])
        x[A.n : A.n + A.halo] = FAR_OFF
        kernels.residual_at(A, b.inner, x, rows, halves.inner, swept=False, part=Part.INTERIOR)
        x[A.n : A.n + A.halo] = s.halo
        kernels.residual_at(A, b.inner, x, rows, halves.inner, swept=False, part=Part.BOUNDARY)
        assert halves.checked().tolist() == whole.checked().tolist()


def some_rows(n: int) -> list[Any]:
    """Return sets of rows: many and few in random order, every second row of a half (as coarse points of a mesh), and
    two sets with the same ends as those: one with two rows exchanged, and one of pairs.
    """
    shuffled = np.random.default_rng(2).permutation(n)
    swapped, pairs = ([row for row in found if row < n] for found in ((0, 4, 2, 6), (0, 1, 5, 6)))
    different = (shuffled[: n // 2 + 1], shuffled[: n // 5], np.arange(0, n // 2, 2), swapped, pairs)
    return [np.array(rows, np.int32) for rows in different]


def check_swept(kernels: Any, s: Example, A: Any) -> None:
    n, b = s.R.n, s.b
    x, keep = s.fresh(kernels, A), Guarded(n, s.vectors)
    different = some_rows(n)[: 1 if isinstance(kernels, OnArrays) else None]
    kernels.sweep_from_zero(A, b, x)
    exact, bound = wide(b) - s.product(x), 2 * s.u * s.magnitudes(x, b)  # (D + L) x is b up to rounding
    for rows in different:
        found = Guarded(len(rows), s.vectors)
        kernels.residual_at(A, Guarded(n, s.vectors).inner, x, rows, found.inner, swept=True)
        near(found.checked(), exact[rows], bound[rows])
    kernels.sweep_from_zero(A, b, x, keep=keep.inner)
    before = own(A, x)
    kernels.sweep_backward(A, keep.inner, x)
    largest = np.concatenate([larger(before, own(A, x)), np.abs(s.halo)])
    exact, bound = wide(b) - s.product(x), 2 * s.u * s.magnitudes(largest, b)  # (D + U) x is keep up to rounding
    for rows in different:
        after = Guarded(len(rows), s.vectors)
        for part in (Part.INTERIOR, Part.BOUNDARY):
            kernels.residual_at(A, b, x, rows, after.inner, keep=keep.checked(), part=part)
        near(after.checked(), exact[rows], bound[rows])


@on_examples
def test_after_sweeps_the_residual_needs_u_alone_or_l_alone(kernels: Any, s: Example, A: Any) -> None:
    """It needs U after a forward sweep from zero, and L after a symmetric sweep."""
    if not left_out(kernels, s, 1):
        check_swept(kernels, s, A)


@every_backend
def test_forms_of_a_matrix_share_what_is_equal_and_give_what_they_give_by_themselves(kernels: Any, rng: Any) -> None:
    name = "a small box between others" if isinstance(kernels, OnArrays) else "long rows"
    rows, order = rows_of(kernels, name), order_of(kernels, name, "greedy")
    b, x0, halo = (random(rng, size, "fp32") for size in (rows.n, rows.n, rows.halo))
    formats = (("fp32", "fp32"), ("fp64", "bf16"), ("fp32", "bf16"), ("bf16", "bf16"))
    for at, storage in enumerate(storages_of(kernels)):
        for values, other in formats[at % 2 :: 2] if interpreted(kernels) else formats:
            first, results = kernels.store(rows, order, values, "fp64", storage), []
            for like in (None, first):
                A = kernels.store(rows, order, other, "fp32", storage, like)
                x = halo_vector(kernels, A, x0, halo)
                kernels.sweep_forward(A, b, x)
                results.append((x.tolist(), A.values, A.vectors, A.nnz))
                if like is None or values == "fp32" != other:  # an fp32 matrix cannot be reused for a bf16 one
                    assert A.extra_bytes(first) == A.bytes
                elif values == other:
                    assert A.extra_bytes(first) <= A.bytes - A.index_bytes - PRECISIONS[other].bytes * (
                        A.lower + A.upper
                    )
            assert results[0] == results[1]

"""Sparse kernels give what their definitions give: all orders, storages, formats, and backends.

Each is held against the reference, and that against its definitions.  Memory that nobody may read or write holds NaN,
and what x must not be read yet holds a number that is far off: whoever reads it shows.
"""

from __future__ import annotations

import math
import time
from itertools import product
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest

from mxpeak.kernels.contract.sparse import Rows
from mxpeak.kernels.host import sparse as host_sparse
from mxpeak.kernels.host import sparse_choice
from mxpeak.kernels.host.sparse import HostSparse
from mxpeak.kernels.host.sparse_by_row import shares
from mxpeak.kernels.host.sparse_matrix import RowPattern, SuccessivePattern
from mxpeak.kernels.host.sparse_native import SUCCESSIVE
from mxpeak.kernels.host.sparse_successive import COUNTS, STRAYS
from mxpeak.layout.stencil import Box
from mxpeak.precision import PRECISIONS
from tests.support.backends import TORCH, backend_named
from tests.support.on_arrays import BACKENDS, SLICES, OnArrays, every_backend, sparse_kernels
from tests.support.sparse_matrices import (
    BOXES,
    CHUNKS,
    CLASSIC,
    DTYPES,
    FAR_OFF,
    KINDS,
    MANY,
    MATRICES,
    ORACLE,
    STORAGES,
    SUITING,
    UNEQUAL,
    VECTORS,
    Example,
    Guarded,
    compressed,
    example,
    halo_vector,
    larger,
    listed,
    near,
    on_examples,
    oracle_rows,
    order_of,
    own,
    random,
    rows_of,
    storages_of,
    stored,
    told,
    unit,
    wide,
)

HOSTS = [sparse_kernels(name) for name in BACKENDS[:2]]
#: What makes rows and orders; the torch backend leaves these to the host.
every_host = pytest.mark.parametrize("host", HOSTS, ids=BACKENDS[:2])
GRID = (2, 3, 2)


def interpreted(kernels: Any) -> bool:
    """Whether Triton's interpreter runs these kernels, milliseconds a program."""
    return any(kernels is sparse_kernels(name) and backend_named(name).interpreted for name in TORCH)


#: Of FEW the two matrices of several chunks, which are there twice: with fp32 values and with narrow ones.
LARGER = ("a box of several chunks", "irregular rows")


def left_out(kernels: Any, s: Example, turn: int) -> bool:
    """Whether an interpreter leaves out a larger matrix in these formats; with the other turn it takes it."""
    return interpreted(kernels) and s.name in LARGER and (LARGER.index(s.name) + (s.values == "fp32") + turn) % 2 == 1


def same_rows(found: Rows, exact: Rows) -> None:
    assert (found.n, found.halo) == (exact.n, exact.halo)
    assert list(found.indptr) == list(exact.indptr)
    assert [sorted(row) for row in listed(found)] == [sorted(row) for row in listed(exact)]


# --- set-up -----------------------------------------------------------------------------------------------------


@every_host
def test_the_stencils_rows_are_those_of_its_definition(host: Any) -> None:
    for box, weights in product([*BOXES.values(), Box(5, 7, 3, *GRID, 0, 1, 1)], (CLASSIC, UNEQUAL)):
        with told((box, weights)):
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
        for neighbour in box.neighbours():
            (x0, y0, z0), (nx, ny, nz) = neighbour.first_received, neighbour.shape
            points += [(x0 + x, y0 + y, z0 + z) for z in range(nz) for y in range(ny) for x in range(nx)]
        points = [tuple(a + b for a, b in zip(point, box.origin)) for point in points]
        for i, row in enumerate(listed(host.stencil_rows(box, UNEQUAL))):
            (x, y, z), found = points[i], {points[j]: a for j, a in row}
            around = {(x + d % 3 - 1, y + d // 3 % 3 - 1, z + d // 9 - 1): w for d, w in enumerate(UNEQUAL)}
            inside = {p: w for p, w in around.items() if all(0 <= c < n for c, n in zip(p, whole))}
            assert found == inside
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
    found = host.with_symmetric_pattern(rows)
    same_rows(found, ORACLE.with_symmetric_pattern(before))
    assert host.is_symmetric_pattern(found)
    added = [set(new) - set(old) for old, new in zip(listed(before), listed(found))]
    assert {a for row in added for _, a in row} == {0.0}
    assert all(set(old) <= set(new) for old, new in zip(listed(before), listed(found)))
    same_rows(host.with_symmetric_pattern(found), found)


@every_host
def test_orders_are_those_of_the_reference_and_their_groups_are_independent(host: Any) -> None:
    for name, kind in product(MATRICES, KINDS):
        with told((name, kind)):
            rows, found, exact = rows_of(host, name), order_of(host, name, kind), order_of(ORACLE, name, kind)
            for part in ("new_to_old", "old_to_new", "starts"):
                assert getattr(found, part).tolist() == getattr(exact, part).tolist()
            assert (found.kind, found.groups) == (kind, exact.groups)
            assert found.new_to_old[found.old_to_new].tolist() == list(range(rows.n))
            group = np.searchsorted(found.starts, found.old_to_new, side="right") - 1
            i = np.repeat(np.arange(rows.n), np.diff(rows.indptr))
            others = (rows.indices < rows.n) & (rows.indices != i)
            i, j = i[others], rows.indices[others]
            assert (group[i] != group[j]).all()
            if kind in ("levels", "natural"):
                assert (group[j] < group[i])[j < i].all()
            if kind == "surface_last":
                surface = np.zeros(rows.n, bool)
                surface[np.repeat(np.arange(rows.n), np.diff(rows.indptr))[rows.indices >= rows.n]] = True
                assert found.new_to_old.tolist() == [*np.flatnonzero(~surface), *np.flatnonzero(surface)]
            if kind == "greedy" and name in BOXES:
                assert found.groups == 8


@every_host
@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16", "fp16", "fp8"])
def test_rounding_is_the_largest_relative_error(host: Any, precision: str) -> None:
    format_ = PRECISIONS[precision]
    for name in ("long rows", "few columns anywhere"):
        found = host.rounding(rows_of(host, name), precision)
        assert found == pytest.approx(ORACLE.rounding(oracle_rows(name), precision), rel=1e-12, abs=0.0)
        if precision in ("fp32", "bf16"):  # of the others' subnormal numbers errors are larger
            assert 0.0 < found <= format_.u
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
    """Of 64 rows a slot has 64·8 bytes of values and a base of 4, which is 0.8 %; the rest tells of the chunks."""
    for location in ((1, 1, 1, 0, 0, 0), (*GRID, 0, 1, 1), (*GRID, 1, 2, 0)):
        rows = host.stencil_rows(Box(16, 16, 16, *location), CLASSIC)
        order = host.order(rows, "greedy")
        A, ell = (host.store(rows, order, "fp64", "fp64", storage) for storage in ("packed", "ell"))
        local = int((rows.indices < rows.n).sum()) - rows.n
        assert A.index_bytes < 0.02 * 8 * local
        assert A.lower + A.upper < 1.2 * local
        assert ell.index_bytes >= 4 * local


@every_backend
def test_row_sums_are_in_the_new_order(kernels: Any) -> None:
    for name, kind in product(("a box in a corner", "long rows"), KINDS):
        sums = kernels.row_sums(rows_of(kernels, name), order_of(kernels, name, kind))
        exact = ORACLE.row_sums(oracle_rows(name), order_of(ORACLE, name, kind))
        near(sums, exact, 100 * 64 * unit("fp64"))  # of up to 100 entries, the sum of whose sizes is below 64·2


# --- vectors and bases ------------------------------------------------------------------------------------------

SIZES = (0, 1, 5, 511, 513, 2049, 7000)


def sum_bound(vectors: str, *factors: Any) -> float:
    """Of sums of products: 512 of them in the vectors' type, which fp64 adds up."""
    n = len(factors[0])
    return (512 * unit(vectors) + (n + 8) * unit("fp64")) * float(np.prod([np.abs(wide(x)) for x in factors], 0).sum())


@every_backend
def test_new_vectors_are_zero(kernels: Any) -> None:
    for vectors in VECTORS:
        A = stored(kernels, "a small box between others", "greedy", "fp32", vectors, "packed")
        x, Q = kernels.halo_vector(A), kernels.basis(7, 3, vectors)
        assert x.dtype == Q.dtype == DTYPES[vectors]
        assert len(x) >= A.n + A.halo
        assert Q.shape == (3, 7)
        assert not x.any()
        assert not Q.any()


@every_backend
@pytest.mark.parametrize("vectors", VECTORS)
def test_vectors_are_combined_as_their_definitions_say(kernels: Any, vectors: str, rng: Any) -> None:
    for n in SIZES:
        x, y, u = random(rng, n, vectors), random(rng, n, vectors), unit(vectors)
        bound = 4 * u * (np.abs(wide(x)) + np.abs(wide(y)))  # roundings of factor, product and sum, and one more
        for operation in ("add_scaled", "scale_and_add"):
            found, exact = Guarded(n, vectors, y), y.copy()
            getattr(kernels, operation)(found.inner, 0.7, Guarded(n, vectors, x).inner)
            getattr(ORACLE, operation)(exact, 0.7, x)
            near(found.checked(), exact, bound)
        found, exact = Guarded(n, vectors, y), y.copy()
        square = kernels.subtract_from(found.inner, Guarded(n, vectors, x).inner)
        exact_square = ORACLE.subtract_from(exact, x)
        near(found.checked(), exact, bound)
        assert square == pytest.approx(exact_square, abs=sum_bound(vectors, exact, exact) + 4 * u * exact_square)
        assert kernels.dot(x, y) == pytest.approx(ORACLE.dot(x, y), rel=0.0, abs=sum_bound(vectors, x, y))
        kernels.scale(found.inner, 0.5, found.inner)
        assert found.checked().tolist() == (exact / 2).tolist() or n == 0 or near(found.inner, exact / 2, bound) is None


@every_backend
def test_vectors_of_two_types_meet(kernels: Any, rng: Any) -> None:
    for n in SIZES:
        x, y = random(rng, n, "fp32"), random(rng, n, "fp64")
        found, exact = Guarded(n, "fp64", y), y.copy()
        kernels.add_scaled(found.inner, 0.7, x)
        ORACLE.add_scaled(exact, 0.7, x)
        near(found.checked(), exact, 4 * unit("fp64") * 2)
        narrow, exact = Guarded(n, "fp32"), x.copy()
        kernels.scale(narrow.inner, 1 / 3, Guarded(n, "fp64", y).inner)
        ORACLE.scale(exact, 1 / 3, y)
        near(narrow.checked(), exact, 2 * unit("fp32") * np.abs(exact))
        wider = Guarded(n, "fp64")
        kernels.scale(wider.inner, 1 / 3, x)
        near(wider.checked(), wide(x) / 3, 2 * unit("fp64"))


@every_backend
@pytest.mark.parametrize("vectors", VECTORS)
def test_entries_are_gathered_from_rows_and_added_to_rows(kernels: Any, vectors: str, rng: Any) -> None:
    for n in SIZES:
        x, rows = random(rng, 2 * n, vectors), rng.permutation(2 * n)[:n].astype(np.int32)
        out = Guarded(n, vectors)
        kernels.gather(Guarded(2 * n, vectors, x).inner, rows, out.inner)
        assert out.checked().tolist() == x[rows].tolist()
        found, exact, y = Guarded(2 * n, vectors, x), x.copy(), random(rng, n, vectors)
        kernels.scatter_add(found.inner, rows, Guarded(n, vectors, y).inner)
        ORACLE.scatter_add(exact, rows, y)
        assert found.checked().tolist() == exact.tolist()


@every_backend
@pytest.mark.parametrize("vectors", VECTORS)
def test_bases_are_projected_and_combined(kernels: Any, vectors: str, rng: Any) -> None:
    u = unit(vectors)
    for n, k in [(0, 3), (5, 0), (1, 1), (301, 1), (512, 4), (1601, 8), (2049, 3), (1601, 30), (700, 31)]:
        bases = [b.basis(n, 32, vectors) for b in (kernels, ORACLE)]
        for j, q in enumerate(random(rng, n, vectors) for _ in range(k)):
            for Q in bases:
                Q[j] = q
        Q, exact_Q = bases
        Q[k:] = np.nan  # of the others nothing is read
        w, h = random(rng, n, vectors), rng.uniform(-1.0, 1.0, k)
        near(kernels.project(Q, k, w), ORACLE.project(exact_Q, k, w), sum_bound(vectors, w, np.ones(n)))
        after = w.copy()
        exact_h = ORACLE.subtract_and_project(exact_Q, k, after, h)
        step = 2 * (k + 3) * u * (1 + np.abs(h).sum())  # of an entry: k products and sums, the rounding of h
        found = Guarded(n, vectors, w)
        sums = kernels.subtract_and_project(Q, k, found.inner, h)
        near(sums, exact_h, sum_bound(vectors, after, np.ones(n)) + n * step)
        near(found.checked(), after, step)
        found = Guarded(n, vectors, w)
        square = kernels.subtract_and_square(Q, k, found.inner, h)
        near(found.checked(), after, step)
        spread = sum_bound(vectors, after, after) + 2 * step * float(np.abs(wide(after)).sum()) + n * step * step
        assert square == pytest.approx(ORACLE.dot(after, after), rel=0.0, abs=spread)
        for type_ in VECTORS:
            out, exact = Guarded(n, type_), np.zeros(n, DTYPES[type_])
            kernels.combine(Q, h.tolist(), out.inner)
            ORACLE.combine(exact_Q, h.tolist(), exact)
            near(out.checked(), exact, 2 * (k + 3) * max(u, unit(type_)) * np.abs(h).sum())


@every_backend
def test_many_vectors_are_projected_and_subtracted(kernels: Any, rng: Any) -> None:
    """More than a kernel has on hand at a time, and more than there are sums for at first."""
    n = 40
    for k in (64, 65, 150, 1100):
        Q = kernels.basis(n, k, "fp64")
        Q[:] = rng.uniform(-1.0, 1.0, (k, n))
        w, h = random(rng, n, "fp64"), rng.uniform(-1.0, 1.0, k)
        near(kernels.project(Q, k, w), ORACLE.project(Q, k, w), sum_bound("fp64", w, np.ones(n)))
        step = 2 * (k + 3) * unit("fp64") * (1 + np.abs(h).sum())  # k products and sums
        found, exact = w.copy(), w.copy()
        sums, exact_sums = kernels.subtract_and_project(Q, k, found, h), ORACLE.subtract_and_project(Q, k, exact, h)
        near(found, exact, step)
        near(sums, exact_sums, 2 * n * (step + unit("fp64") * np.abs(exact).sum()))
        found = w.copy()
        square = kernels.subtract_and_square(Q, k, found, h)
        near(found, exact, step)
        assert square == pytest.approx(float(exact @ exact), rel=0, abs=3 * n * step * np.abs(exact).max())


# --- sweeps -----------------------------------------------------------------------------------------------------


def gauss_seidel(rows: Rows, b: Any, x: Any, halo: Any, sequence: Any) -> Any:
    """x_i = (b_i - Σ_{j≠i} a_ij x_j) / a_ii, row after row, all of it in the old numbers."""
    everything = np.concatenate([x, halo])
    for i in sequence:
        row = slice(rows.indptr[i], rows.indptr[i + 1])
        j, a = rows.indices[row], rows.data[row]
        diagonal = a[j == i][0]
        everything[i] = (b[i] - (a @ everything[j] - diagonal * everything[i])) / diagonal
    return everything[: len(x)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_references_sweep_is_gauss_seidel_in_its_order_and_the_natural_one_row_after_row(kind: str) -> None:
    for name in MATRICES:
        with told(name):
            s = example(name, kind, "fp64", "fp64")
            rows, new_to_old, b, x = oracle_rows(name), s.order.new_to_old, np.empty(s.R.n), np.empty(s.R.n)
            b[new_to_old], x[new_to_old] = s.b, s.x
            sequence = range(rows.n) if kind in ("levels", "natural") else new_to_old
            for (found, bound), backward in ((s.forward, False), (s.backward, True)):
                exact = gauss_seidel(rows, b, x, s.halo, reversed(sequence) if backward else sequence)
                near(found, exact[new_to_old], bound)


def test_the_references_operations_fit_together() -> None:
    """Of every matrix, by its definition: products, residuals, and what sweeps leave for those after them."""
    for name in MATRICES:
        with told(name):
            s = example(name, "greedy", "bf16", "fp32")
            check_keep(ORACLE, s, s.R)
            check_swept(ORACLE, s, s.R)
            every, found, x = np.arange(s.R.n), np.zeros(s.R.n, np.float32), s.fresh(ORACLE, s.R)
            for halo in (False, True):
                ORACLE.matvec(found, s.R, x, halo=halo)
            near(found, *s.products[1:])
            for halo in (False, True):
                ORACLE.residual_at(s.R, s.b, x, every, found, swept=False, halo=halo)
            near(found, *s.residuals)


@on_examples
def test_sweeps_are_the_references_in_one_part_and_in_two(kernels: Any, s: Example, A: Any) -> None:
    """The first part reads nothing of other ranks; b is as it was, bit by bit."""
    ways = ((s.forward, False), (s.backward, True))
    if interpreted(kernels) and s.name in LARGER:  # one way with fp32 values, the other with narrow ones
        ways = (ways[(LARGER.index(s.name) + (s.values == "fp32")) % 2],)
    for (exact, bound), backward in ways:
        x, halves, b = s.fresh(kernels, A), s.fresh(kernels, A), s.right_side()
        whole_keep, keep = (None if backward else Guarded(A.n, s.vectors) for _ in range(2))
        kernels.relax(A, b.inner, x, backward=backward, keep=whole_keep and whole_keep.inner)
        near(own(A, x), exact, bound)
        assert (x[A.n : A.n + A.halo] == s.halo).all()
        halves[A.n : A.n + A.halo] = FAR_OFF
        kernels.relax(A, b.inner, halves, halo=False, backward=backward, keep=keep and keep.inner)
        halves[A.n : A.n + A.halo] = s.halo
        kernels.relax(A, b.inner, halves, halo=True, backward=backward, keep=keep and keep.inner)
        assert halves.tolist() == x.tolist()
        assert (b.checked() == s.b).all()
        if keep and whole_keep:
            assert keep.checked().tolist() == whole_keep.checked().tolist()


@on_examples
def test_a_sweep_from_zero_is_one_on_zero(kernels: Any, s: Example, A: Any) -> None:
    if left_out(kernels, s, 1):
        return
    for before in (FAR_OFF,) if isinstance(kernels, OnArrays) else (s.x, FAR_OFF):
        x, b = s.fresh(kernels, A, before), s.right_side()
        kernels.relax(A, b.inner, x, from_zero=True)
        near(own(A, x), *s.from_zero)
        assert (b.checked() == s.b).all()


def check_keep(kernels: Any, s: Example, A: Any) -> None:
    for from_zero, (forward, bound) in ((False, s.forward), (True, s.from_zero)):
        x, b, keep = s.fresh(kernels, A), s.right_side(), Guarded(A.n, s.vectors)
        kernels.relax(A, b.inner, x, from_zero=from_zero, keep=keep.inner)
        near(own(A, x), forward, bound)
        assert np.isfinite(keep.checked()).all()
        kernels.relax(A, b.inner, x, backward=True, keep=keep.inner)
        near(own(A, x), *s.symmetric[from_zero])
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
            host.relax(A, s.b, x)
            host.matvec(y.inner, A, x)
            results.append([*x.tolist(), *y.checked().tolist()])
        assert results[0] == results[1], case


def test_threads_that_wait_for_each_other_sweep_like_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row after row, however little there is to do: forward, backward, from zero, with what was kept; same bits."""
    alone, several = HOSTS
    monkeypatch.setattr(host_sparse, "ALONE", 0)
    for name, storage in product(MATRICES, SUITING["natural"]):
        s, results = example(name, "natural", "fp64", "fp64"), []
        for host in (alone, *[several] * 3):
            A, found = stored(host, name, "natural", "fp64", "fp64", storage), []
            for from_zero in (True, False):
                x, keep = s.fresh(host, A), np.zeros(A.n)
                host.relax(A, s.b, x, from_zero=from_zero, keep=keep)
                found += [*x.tolist(), *keep.tolist()]
                host.relax(A, s.b, x, backward=True, keep=keep)
                found += x.tolist()
                host.relax(A, s.b, x, backward=True)
                found += x.tolist()
            results.append(found)
        assert all(found == results[0] for found in results[1:]), (name, storage)


def test_entries_that_few_rows_of_a_chunk_have_take_no_slots_of_their_own() -> None:
    """With the last row of each line at the end of all, the row before it alone has neighbours there."""
    host, name = sparse_kernels(SLICES), "long lines that end at a neighbour"
    found = {kind: stored(host, name, kind, "fp64", "fp64", "packed") for kind in ("natural", "surface_last")}
    strays = {kind: A.pattern.table[:, COUNTS + STRAYS :].sum(axis=0) for kind, A in found.items()}
    assert strays["natural"].tolist() == [0, 0]
    assert (strays["surface_last"] > 0).all()
    stored_values = {kind: A.lower + A.upper for kind, A in found.items()}
    assert stored_values["surface_last"] < 1.25 * stored_values["natural"]


def test_a_unit_waits_for_all_that_it_has_entries_in() -> None:
    host = HOSTS[1]
    for name, storage in product(("a box alone", "long rows", "rows of hundreds"), ("rows", "packed")):
        A, rows = stored(host, name, "natural", "fp64", "fp64", storage), rows_of(host, name)
        pattern, count = A.pattern, A.pattern.owner.size
        begins = begins_of(pattern)
        assert count >= 4
        assert begins[-1] == rows.n
        unit = np.searchsorted(begins, np.arange(rows.n), side="right") - 1
        row, column = np.repeat(np.arange(rows.n), np.diff(rows.indptr)), rows.indices
        u, v = unit[row[column < rows.n]], unit[column[column < rows.n]]
        others = pattern.owner[u] != pattern.owner[v]
        for a, b in zip(u[others], v[others]):
            if b < a:  # units in order of their numbers: b is done once its thread has come to b + 1
                assert pattern.forward[a, pattern.owner[b]] >= b + 1
            else:
                assert pattern.backward[a, pattern.owner[b]] >= count - b


def begins_of(pattern: Any) -> Any:
    """The first rows of units, and where the last one ends."""
    if pattern.units.ndim == 2:
        return pattern.units[:, 0]
    return np.append(pattern.table[:, 0], pattern.table[-1, :2].sum())[pattern.units]


@pytest.mark.parametrize("storage", ["rows", "packed"])
def test_a_box_is_dealt_out_so_that_threads_work_at_the_same_time(storage: str) -> None:
    """Plane by plane, two threads take hardly more than half of the time that one takes, if time is entries."""
    host = HOSTS[0]
    for box, share in ((Box(32, 32, 32), (0.6, 0.45)), (Box(40, 33, 23), (0.6, 0.5))):
        rows = host.stencil_rows(box, CLASSIC)
        order = host.order(rows, "natural")
        begins = begins_of(host.store(rows, order, "fp64", "fp64", storage).pattern)
        cost = np.diff(rows.indptr[begins]).astype(float)
        for threads, most in zip((2, 3), share):
            owner, _, _ = shares(threads, begins, cost, (order.new_to_old, order.old_to_new, rows.indptr, rows.indices))
            assert set(owner.tolist()) == set(range(threads))
            done = finished(owner, begins, cost, rows, threads)
            assert done < most * finished(np.zeros_like(owner), begins, cost, rows, 1), (box, threads)


def finished(owner: Any, begins: Any, cost: Any, rows: Rows, threads: int) -> float:
    """When all units are done that take as long as they cost, each once those that it needs are."""
    unit = np.searchsorted(begins, np.arange(rows.n), side="right") - 1
    free, done = [0.0] * threads, [0.0] * len(owner)
    for u, thread in enumerate(owner):
        row0, row1 = begins[u : u + 2]
        needed = {v for v in unit[rows.indices[rows.indptr[row0] : rows.indptr[row1]]].tolist() if v < u}
        done[u] = max([free[thread], *(done[v] for v in needed)]) + cost[u]
        free[thread] = done[u]
    return max(free)


#: In a dimension, ranks and this one's coordinate: no neighbour, one after it, one before it, both.
SIDES = ((1, 0), (2, 0), (2, 1), (3, 1))
#: With these and small whole numbers nothing is rounded in eight colours: x is a multiple of 2^-48 and below 2^4.
EXACT = tuple(32.0 if d == 13 else (-1.0, 0.5, 1.0, -0.5)[d % 4] for d in range(27))


@every_host
def test_overlapped_sweeps_are_exact_whatever_the_neighbours(host: Any) -> None:
    """Early rows before anything is received, late ones after it: to the bit what one row after the other gives."""
    for sides in product(SIDES, repeat=3):
        ranks, coordinates = zip(*sides)
        box, rng = Box(6, 5, 4, *ranks, *coordinates), np.random.default_rng(7)
        rows = ORACLE.stencil_rows(box, EXACT)
        mine = host.stencil_rows(box, EXACT)
        order = host.order(mine, "greedy")
        b, x0, halo = (rng.integers(-8, 9, size).astype(float) for size in (rows.n, rows.n, rows.halo))
        exact = gauss_seidel(rows, b, x0, halo, order.new_to_old)[order.new_to_old]
        for storage in STORAGES:
            A = host.store(mine, order, "fp64", "fp64", storage)
            x = halo_vector(host, A, x0[order.new_to_old], rng.integers(-8, 9, rows.halo))
            host.relax(A, b[order.new_to_old], x, halo=False)
            x[A.n : A.n + A.halo] = halo
            host.relax(A, b[order.new_to_old], x, halo=True)
            assert own(A, x).tolist() == exact.tolist(), (sides, storage)


# --- products and residuals -------------------------------------------------------------------------------------


@on_examples
def test_products_are_the_references_in_one_part_and_in_two(kernels: Any, s: Example, A: Any) -> None:
    inside, whole, bound = s.products
    x, y, z = s.fresh(kernels, A), Guarded(A.n, s.vectors), Guarded(A.n, s.vectors)
    kernels.matvec(y.inner, A, x)
    near(y.checked(), whole, bound)
    x[A.n : A.n + A.halo] = FAR_OFF
    kernels.matvec(z.inner, A, x, halo=False)
    near(z.checked(), inside, bound)
    x[A.n : A.n + A.halo] = s.halo
    kernels.matvec(z.inner, A, x, halo=True)
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
        kernels.residual_at(A, b.inner, x, rows, halves.inner, swept=False, halo=False)
        x[A.n : A.n + A.halo] = s.halo
        kernels.residual_at(A, b.inner, x, rows, halves.inner, swept=False, halo=True)
        assert halves.checked().tolist() == whole.checked().tolist()


def check_swept(kernels: Any, s: Example, A: Any) -> None:
    n = s.R.n
    rows = np.random.default_rng(2).permutation(n)[: n // 2 + 1].astype(np.int32)
    x, found = s.fresh(kernels, A), Guarded(len(rows), s.vectors)
    kernels.relax(A, s.b, x, from_zero=True)
    kernels.residual_at(A, Guarded(n, s.vectors).inner, x, rows, found.inner, swept=True)
    exact, bound = wide(s.b) - s.product(x), 2 * s.u * s.magnitudes(x, s.b)  # (D + L) x is b up to rounding
    near(found.checked(), exact[rows], bound[rows])
    keep, after = Guarded(n, s.vectors), Guarded(len(rows), s.vectors)
    kernels.relax(A, s.b, x, from_zero=True, keep=keep.inner)
    before = own(A, x)
    kernels.relax(A, s.b, x, backward=True, keep=keep.inner)
    for halo in (False, True):
        kernels.residual_at(A, s.b, x, rows, after.inner, halo=halo, keep=keep.checked())
    largest = np.concatenate([larger(before, own(A, x)), np.abs(s.halo)])
    exact, bound = wide(s.b) - s.product(x), 2 * s.u * s.magnitudes(largest, s.b)  # (D + U) x is keep up to rounding
    near(after.checked(), exact[rows], bound[rows])


@on_examples
def test_after_sweeps_the_residual_needs_u_alone_or_l_alone(kernels: Any, s: Example, A: Any) -> None:
    """U after a forward sweep from zero, L after a symmetric one."""
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
                kernels.relax(A, b, x)
                results.append((x.tolist(), A.values, A.vectors, A.nnz))
                if like is None or values == "fp32" != other:  # an fp32 matrix cannot become a bf16 one
                    assert A.extra_bytes(first) == A.bytes
                elif values == other:
                    assert A.extra_bytes(first) <= A.bytes - A.index_bytes - PRECISIONS[other].bytes * (
                        A.lower + A.upper
                    )
            assert results[0] == results[1]


# --- formats ----------------------------------------------------------------------------------------------------

TYPES = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp8": ml_dtypes.float8_e4m3fn}


def read_back(kernels: Any, numbers: list[float], values: str, vectors: str, kind: str, storage: str) -> list[float]:
    """The numbers out of a matrix that shifts: entry (i, n + i) times 1; in chunks of runs, and in single columns."""
    k = len(numbers)
    rows = [{i: 1.0, k + i: a} for i, a in enumerate(numbers)] + [{k + i: 1.0, i: 0.0} for i in range(k)]
    shift = compressed(2 * k, 0, rows)
    mine = kernels.rows_of(shift.indptr, shift.indices, shift.data, 2 * k, 0)
    order = kernels.order(mine, kind)
    A, y = kernels.store(mine, order, values, vectors, storage), np.zeros(2 * k, DTYPES[vectors])
    kernels.matvec(y, A, halo_vector(kernels, A, order.new_to_old >= k, []))
    found: list[float] = y[order.old_to_new][:k].tolist()
    return found


@every_backend
@pytest.mark.parametrize("values", TYPES)
def test_every_number_of_a_narrow_format_is_read_as_it_is(kernels: Any, values: str) -> None:
    """All of fp8's; of 16-bit formats every 37th, on an interpreter the largest and smallest and some between.

    The interpreter knows no subnormal number of bf16.
    """
    format_ = PRECISIONS[values]
    if values == "fp8" or not isinstance(kernels, OnArrays):
        bits = np.arange(2 ** (8 * format_.bytes), dtype=np.uint16 if values != "fp8" else np.uint8)
        with np.errstate(invalid="ignore"):
            every = bits.view(TYPES[values]).astype(np.float64)
        numbers = every[np.isfinite(every)][:: 1 if values == "fp8" else 37].tolist()
        forms = product(VECTORS, ("greedy", "levels"), STORAGES if not isinstance(kernels, OnArrays) else ("packed",))
    else:
        smallest = 2.0**-24 if values == "fp16" else 2.0**-126
        numbers = [format_.largest, -format_.largest, 1 + 2 * format_.u, smallest, -3 * smallest, 0.0, -1.5]
        forms = product(("fp64",), ("greedy",), CHUNKS)
    for form in forms:
        assert read_back(kernels, numbers, values, *form) == numbers, form


@every_backend
@pytest.mark.parametrize("values", TYPES)
def test_values_are_rounded_once_also_where_a_wider_form_is_known(kernels: Any, values: str, rng: Any) -> None:
    """Just beside the middle of two numbers, which through fp32 would be the middle; and among subnormal numbers."""
    u, smallest = PRECISIONS[values].u, 2.0**-9 if values == "fp8" else 2.0**-24
    middles = np.concatenate([1 + (2 * np.arange(20) + 1) * u, smallest * (np.arange(20) + 0.5)])
    close = np.concatenate([middles, middles * (1 + 2.0**-40), middles * (1 - 2.0**-40), rng.uniform(-4, 4, 20)])
    a = np.concatenate([close, -close, [PRECISIONS[values].largest]])
    k = len(a)
    rows = [{i: 1.0, k + i: float(one)} for i, one in enumerate(a)] + [{k + i: 1.0, i: 0.0} for i in range(k)]
    given = compressed(2 * k, 0, rows)
    order = ORACLE.order(given, "levels")
    R, exact = ORACLE.store(given, order, values, "fp64", ""), np.zeros(2 * k)
    ORACLE.matvec(exact, R, halo_vector(ORACLE, R, order.new_to_old >= k, []))
    mine = kernels.rows_of(given.indptr, given.indices, given.data, 2 * k, 0)
    order = kernels.order(mine, "levels")
    wider = kernels.store(mine, order, "fp64", "fp64", "packed")
    for like in (None, wider):
        A, y = kernels.store(mine, order, values, "fp64", "packed", like), np.zeros(2 * k)
        kernels.matvec(y, A, halo_vector(kernels, A, order.new_to_old >= k, []))
        assert y.tolist() == exact.tolist()


@every_backend
@pytest.mark.parametrize("values", ["fp32", *TYPES])
def test_all_values_are_in_the_matrixs_format(kernels: Any, values: str) -> None:
    """Save those of the diagonal and those in columns of other ranks, which are in the vectors'."""
    given = compressed(2, 1, [{0: math.pi, 1: math.e}, {0: -math.e, 1: math.pi, 2: math.sqrt(3)}])
    R = ORACLE.store(given, ORACLE.order(given, "levels"), values, "fp64", "")
    rows = kernels.rows_of(given.indptr, given.indices, given.data, 2, 1)
    for storage in storages_of(kernels):
        A = kernels.store(rows, kernels.order(rows, "levels"), values, "fp64", storage)
        for x0, halo in (([1.0, 0.0], [0.0]), ([0.0, 1.0], [0.0]), ([0.0, 0.0], [1.0])):
            y, exact = np.zeros(2), np.zeros(2)
            kernels.matvec(y, A, halo_vector(kernels, A, x0, halo))
            ORACLE.matvec(exact, R, halo_vector(ORACLE, R, x0, halo))
            assert y.tolist() == exact.tolist()


# --- columns that are far apart ---------------------------------------------------------------------------------


@every_host
def test_columns_further_apart_than_16_bits_can_say_are_reached(host: Any, rng: Any) -> None:
    """Row i has columns i - s and i + s for a shift s of its own, up to 70 000 away."""
    n = 90_000
    shifts = rng.integers(1, 70_000, n)
    i = np.arange(n)
    up = i[i + shifts < n]
    row = np.concatenate([i, up, up + shifts[up]])
    column = np.concatenate([i, up + shifts[up], up])
    keys = np.unique(row * n + column)
    row, column = keys // n, keys % n
    value = np.where(row == column, 64.0, rng.integers(1, 16, keys.size) / 8 * rng.choice((-1, 1), keys.size))
    indptr = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=n), out=indptr[1:])
    rows = host.rows_of(indptr, column, value, n, 0)
    order = host.order(rows, "greedy")
    x0 = rng.integers(-8, 9, n).astype(float)
    exact = np.bincount(row, value * x0[column], n)  # whole multiples of 1/8, below 2^20: no rounding
    for storage in STORAGES:
        A = host.store(rows, order, "fp8", "fp32", storage)
        x, y = halo_vector(host, A, x0[order.new_to_old], []), np.zeros(n, np.float32)
        host.matvec(y, A, x)
        assert (y[order.old_to_new] == exact).all()
        x[:n] = 0.0
        host.relax(A, y, x, from_zero=True)
        swept = own(A, x)[order.old_to_new]
        before = order.old_to_new[column] <= order.old_to_new[row]
        sums = np.bincount(row[before], (value * swept[column])[before], n)
        sizes = np.bincount(row[before], np.abs(value * swept[column])[before], n) + np.abs(exact)
        longest = int(np.bincount(row).max())
        near(sums, exact, 2 * (longest + 4) * unit("fp32") * sizes)


@every_backend
def test_columns_that_15_and_16_bits_cannot_tell_apart_are_reached(kernels: Any, rng: Any) -> None:
    """The last eight rows have an entry each within 59 500 columns, and one within 69 000; only they are read."""
    n, last = 70_000, 69_992
    entries = [{i: 2.0} for i in range(n)]
    for k in range(8):
        first = 100 + 8500 * k
        for j, a in ((first, k + 1.0), (69_000 + 10 * k if k % 2 else first + 1, -0.5 * k)):
            entries[last + k][j], entries[j][last + k] = a, 1.0
    given = compressed(n, 0, entries)
    rows = kernels.rows_of(given.indptr, given.indices, given.data, n, 0)
    order = kernels.order(rows, "levels")
    A = kernels.store(rows, order, "fp8", "fp32", "packed")
    assert (np.asarray(A.pattern.near).astype(np.int32) & 0xFFFF).max() == 59_500
    assert np.asarray(A.pattern.far).max() == 69_070
    x0, r = rng.integers(-8, 9, n).astype(float), np.zeros(8, np.float32)
    x, b = halo_vector(kernels, A, x0[order.new_to_old], []), np.zeros(n, np.float32)
    kernels.residual_at(A, b, x, order.old_to_new[last:n], r, swept=False)
    assert r.tolist() == [-sum(a * x0[j] for j, a in entries[last + k].items()) for k in range(8)]  # nothing is rounded


@on_examples
def test_reading_a_matrix_changes_nothing_and_tells_how_many_bytes_its_values_take(
    kernels: Any, s: Example, A: Any
) -> None:
    before = np.asarray(A.entries).copy() if not isinstance(kernels, OnArrays) else None
    stored_values = kernels.read_values(A) // PRECISIONS[s.values].bytes
    filled = 64 if s.order.row_by_row or A.storage == "rows" else 1  # there the last line is filled up once
    assert A.lower + A.upper <= stored_values < A.lower + A.upper + filled
    assert before is None or before.tobytes() == A.entries.tobytes()


# --- one by one, or in slices -----------------------------------------------------------------------------------


@pytest.fixture
def no_choice_yet(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine on which nothing has been tried; its folder of compiled kernels."""
    monkeypatch.setattr(sparse_choice, "cache_directory", lambda: tmp_path)
    monkeypatch.setattr(sparse_choice, "_known", {})
    return tmp_path


def test_the_faster_way_to_take_rows_is_tried_once_and_kept(
    no_choice_yet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def trial(way: int) -> Any:
        tried.append(way)
        return lambda: time.sleep(0.002 if way == slow else 0.0)

    for slow, values in ((1, "fp64"), (SUCCESSIVE, "bf16")):
        fast = 1 + SUCCESSIVE - slow
        assert sparse_choice.rows_at_a_time(values, "fp64", trial) == fast
        monkeypatch.setattr(sparse_choice, "_known", {})  # as the next process
        slow = fast
        assert sparse_choice.rows_at_a_time(values, "fp64", trial) == fast
    assert tried == [1, SUCCESSIVE] * 2
    for file in no_choice_yet.iterdir():
        file.write_text("not a number")
    monkeypatch.setattr(sparse_choice, "_known", {})
    assert sparse_choice.rows_at_a_time("fp64", "fp64", trial) in (1, SUCCESSIVE)
    assert tried == [1, SUCCESSIVE] * 3


class Recorded(HostSparse):
    """The host, which remembers what it stored."""

    stored: ClassVar[list[Any]] = []

    def store(self, *args: Any) -> Any:
        self.stored.append(super().store(*args))
        return self.stored[-1]


def test_a_trial_gives_work_on_a_box_that_is_stored_so() -> None:
    for way, pattern in ((1, RowPattern), (SUCCESSIVE, SuccessivePattern)):
        sparse_choice.trial(Recorded, "bf16", "fp32", way)()
        A = Recorded.stored[-1]
        assert isinstance(A.pattern, pattern)
        assert (A.values, A.vectors, A.storage, A.rows_at_a_time) == ("bf16", "fp32", "rows", way)


def test_uneven_rows_are_taken_one_by_one() -> None:
    slices = sparse_kernels(SLICES)
    for name, way in (("a box alone", SUCCESSIVE), ("irregular rows", 1), ("long rows", 1), ("an arrow", 1)):
        rows = rows_of(slices, name)
        order = slices.order(rows, "natural")
        A = slices.store(rows, order, "fp64", "fp64", "rows")
        assert A.rows_at_a_time == way, name
        B = slices.store(rows, order, "bf16", "fp32", "rows", like=A)
        assert B.pattern is A.pattern

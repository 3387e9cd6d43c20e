"""The host's sparse kernels give what their definitions give: all orders, storages, formats, and threads.

The reference rounds a row's sum once; the host rounds every product and every sum.  Where both are compared, a row of m
entries may differ by 2(m + 4)·u·(|b| + Σ|a||x|): m products, m sums, the values read, the difference from b, the
quotient and its rounding, u each at most, and twice that since both sides round.  Memory that nobody may read or write
holds NaN, and what x must not be asked for a number that is far off: whoever reads it shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mxpeak.kernels.contract.sparse import Rows
from mxpeak.kernels.host.sparse import HostSparse
from mxpeak.kernels.host.team import Team
from mxpeak.kernels.reference.kernels import ReferenceKernels
from mxpeak.kernels.reference.sparse import ReferenceMatrix, ReferenceSparse
from mxpeak.layout.stencil import Box
from mxpeak.precision import PRECISIONS

ORACLE: Any = ReferenceSparse()
HOSTS: list[Any] = [HostSparse(Team(1)), HostSparse(Team(3))]
STORAGES = ("ell", "sell", "packed")
KINDS = ("greedy", "jpl", "natural")
#: Formats of a matrix and of the vectors that it multiplies.
FORMATS = [(values, vectors) for vectors in ("fp64", "fp32") for values in ("fp64", "fp32", "bf16", "fp16", "fp8")]
#: What stands where nothing has been received yet.
FAR_OFF = 1e30
#: Numbers on either side of a vector that nobody may touch.
GUARD = 80

# --- matrices ---------------------------------------------------------------------------------------------------

SHAPES = ((4, 4, 4), (8, 6, 10), (5, 7, 3), (16, 8, 8))
GRID = (2, 3, 2)
#: Ranks of the grid: one that has neighbours on both sides in y, and one in a corner of the domain.
PLACES = {"alone": (1, 1, 1, 0, 0, 0), "in the middle": (*GRID, 0, 1, 1), "in a corner": (*GRID, 1, 2, 0)}
BOXES = {f"{shape} {place}": Box(*shape, *PLACES[place]) for shape in SHAPES for place in PLACES}
CLASSIC = tuple(26.0 if d == 13 else -1.0 for d in range(27))
#: 27 different weights, all of them fp8 numbers: a neighbour taken for another shows.
UNEQUAL = tuple(64.0 if d == 13 else (-1) ** d * (1 + d % 15) / (8 if d < 15 else 16) for d in range(27))
WEIGHTS = {"the benchmark's": CLASSIC, "unequal": UNEQUAL}


def random_rows(
    n: int, halo: int, near: int, anywhere: int, hubs: Sequence[tuple[int, int]] = (), alone: Sequence[int] = (),
) -> Rows:  # fmt: skip
    """A diagonally dominant matrix of up to about 2(near + anywhere) entries a row, its pattern symmetric.

    A hub (i, m) has m columns more, rows `alone` have a diagonal only.  Entries of L and U are no numbers of narrow
    formats, and reach down among fp8's subnormal ones; those of D and H are fp8 numbers.
    """
    rng = np.random.default_rng(n + halo)
    pairs: set[tuple[int, int]] = set()
    for i in range(n):
        pairs |= {(i, int(j) % n) for j in i + rng.integers(-40, 41, rng.integers(0, near + 1))}
        pairs |= {(i, int(j)) for j in rng.integers(0, n, rng.integers(0, anywhere + 1))}
    for hub, columns in hubs:
        pairs |= {(hub, int(j)) for j in rng.permutation(n)[:columns]}
    pairs = {(i, j) for i, j in pairs | {(j, i) for i, j in pairs} if i != j and i not in alone and j not in alone}
    rows: list[dict[int, float]] = [{} for _ in range(n)]
    for i, j in sorted(pairs):
        rows[i][j] = float(rng.choice((-1, 1)) * rng.uniform(1, 2) * 2.0 ** rng.integers(-9, 0))
    for i in rng.integers(0, n, n // 8) if halo else ():
        rows[i] |= {int(n + h): float(rng.integers(1, 16)) / 8 for h in rng.integers(0, halo, 3)}
    for i, row in enumerate(rows):
        row[i] = 2.0 ** math.ceil(math.log2(2 * sum(map(abs, row.values())) + 0.5))
    return compressed(n, halo, rows)


def compressed(n: int, halo: int, rows: Sequence[dict[int, float]]) -> Rows:
    entries = [(j, a) for row in rows for j, a in sorted(row.items())]
    indptr = np.cumsum([0, *map(len, rows)])
    return ORACLE.rows_of(indptr, [j for j, _ in entries], [a for _, a in entries], n, halo)


def dense(n: int) -> Rows:
    return compressed(n, 0, [{j: 128.0 if i == j else math.sin(1 + i * n + j) / 2 for j in range(n)} for i in range(n)])


def arrow(n: int) -> Rows:
    """Full in its last row and column, else diagonal: two groups, and one chunk of one row."""
    last = {j: -0.25 for j in range(n - 1)} | {n - 1: 128.0}
    return compressed(n, 0, [*({i: 4.0, n - 1: 0.125} for i in range(n - 1)), last])


RANDOM = {
    "a matrix without rows": lambda: compressed(0, 0, []),
    "one row": lambda: compressed(1, 2, [{0: 4.0, 2: -1.5}]),
    "a diagonal": lambda: compressed(150, 0, [{i: 2.0 ** (i % 5)} for i in range(150)]),
    "a dense one": lambda: dense(130),
    "an arrow": lambda: arrow(400),
    "few columns anywhere": lambda: random_rows(700, 60, 0, 3),
    "irregular rows": lambda: random_rows(600, 37, 10, 12, hubs=((17, 90), (200, 70), (599, 60)), alone=(0, 5, 300)),
    "rows of hundreds": lambda: random_rows(3000, 200, 4, 4, hubs=((3, 700), (1500, 400), (2990, 600)), alone=(7,)),
}
MATRICES = (*BOXES, *RANDOM)


@cache
def rows_of(kernels: Any, name: str) -> Rows:
    """A matrix of MATRICES as these kernels have it."""
    if name in BOXES:
        return kernels.stencil_rows(BOXES[name], UNEQUAL)
    rows = RANDOM[name]()
    return kernels.rows_of(rows.indptr, rows.indices, rows.data, rows.n, rows.halo)


@cache
def order_of(kernels: Any, name: str, kind: str) -> Any:
    return kernels.order(rows_of(kernels, name), kind)


@cache
def oracle_matrix(name: str, kind: str, values: str, vectors: str) -> ReferenceMatrix:
    return ORACLE.store(rows_of(ORACLE, name), order_of(ORACLE, name, kind), values, vectors, "")


@cache
def all_stored(name: str, kind: str, values: str, vectors: str) -> list[tuple[Any, Any]]:
    """The matrix in every storage, for every host."""
    return [
        (host, host.store(rows_of(host, name), order_of(host, name, kind), values, vectors, storage))
        for host, storage in product(HOSTS, STORAGES)
    ]


def cases() -> list[tuple[str, str, str, str]]:
    """Every matrix in every order in three of the formats, so that each meets each of the others."""
    pairs = list(product(MATRICES, KINDS))
    return [(*pair, *FORMATS[(3 * at + k) % len(FORMATS)]) for at, pair in enumerate(pairs) for k in range(3)]


every_case = pytest.mark.parametrize(("name", "kind", "values", "vectors"), cases())
every_host = pytest.mark.parametrize("host", HOSTS, ids=["one thread", "three threads"])

# --- vectors ----------------------------------------------------------------------------------------------------


class Guarded:
    """A vector amid NaN, NaN itself unless values are given."""

    def __init__(self, n: int, vectors: str, values: Any = np.nan):
        self._room = np.full(n + 2 * GUARD, np.nan, ReferenceKernels().vector(0, vectors).dtype)
        self.inner = self._room[GUARD : GUARD + n]
        self.inner[:] = values

    def checked(self) -> Any:
        """The vector, after a look at what is around it."""
        assert np.isnan(self._room[:GUARD]).all()
        assert np.isnan(self._room[len(self._room) - GUARD :]).all()
        return self.inner


def operand(kernels: Any, A: Any, own: Any, halo: Any) -> Any:
    x = kernels.operand(A)
    kernels.assign(kernels.own(A, x), own)
    kernels.assign(kernels.halo(A, x), halo)
    return x


def own(kernels: Any, A: Any, x: Any) -> Any:
    """The rank's part of a vector, after a look at the room behind it: that stays zero."""
    assert not np.any(x[A.n + A.halo :])
    return kernels.own(A, x).astype(np.float64)


def unit(vectors: str) -> float:
    return PRECISIONS[vectors].u


def wide(x: Any) -> Any:
    return np.asarray(x).astype(np.float64)


def random(rng: Any, n: int, vectors: str) -> Any:
    return rng.uniform(-1.0, 1.0, n).astype(ReferenceKernels().vector(0, vectors).dtype)


# --- what must agree --------------------------------------------------------------------------------------------


def magnitudes(R: ReferenceMatrix, x: Any, b: Any = 0.0, *, outside: bool = True) -> Any:
    """2(m + 4)·(|b_i| + Σ|a_ij||x_j|) of every row of m entries."""
    b = np.abs(np.broadcast_to(b, R.n)).astype(np.float64)
    inner, halo = np.abs(wide(x[: R.n])), np.abs(wide(x[R.n : R.n + R.halo]))
    found = np.zeros(R.n)
    for r, row in enumerate(R.rows):
        parts = [(row.lower, inner), (row.upper, inner)] + ([(row.outside, halo)] if outside else [])
        total = sum(float(np.abs(part.values) @ v[part.columns]) for part, v in parts)
        entries = 1 + sum(len(part.values) for part, _ in parts)
        found[r] = 2 * (entries + 4) * (b[r] + abs(row.diagonal) * inner[r] + total)
    return found


def sweep_bound(R: ReferenceMatrix, b: Any, x: Any, u: float, *, backward: bool = False) -> Any:
    """By how much two sweeps' x may differ: a row's own error, and those of the rows before it, over its diagonal.

    x holds what was larger before or after.
    """
    own_errors, errors = u * magnitudes(R, x, b), np.zeros(R.n)
    for r in reversed(range(R.n)) if backward else range(R.n):
        before = R.rows[r].upper if backward else R.rows[r].lower
        inherited = float(np.abs(before.values) @ errors[before.columns])
        errors[r] = (own_errors[r] + inherited) / abs(R.rows[r].diagonal)
    return errors


def larger(x: Any, y: Any) -> Any:
    return np.maximum(np.abs(wide(x)), np.abs(wide(y)))


def near(found: Any, exact: Any, bound: Any) -> None:
    found, exact = wide(found), wide(exact)
    assert found.shape == exact.shape
    assert (np.abs(found - exact) <= bound).all(), (found, exact)  # not so if one of them is NaN


def same_rows(found: Rows, exact: Rows) -> None:
    assert (found.n, found.halo) == (exact.n, exact.halo)
    assert list(found.indptr) == list(exact.indptr)
    assert [sorted(row) for row in listed(found)] == [sorted(row) for row in listed(exact)]


def listed(rows: Rows) -> list[list[tuple[int, float]]]:
    entries = list(zip(rows.indices.tolist(), rows.data.tolist()))
    return [entries[rows.indptr[i] : rows.indptr[i + 1]] for i in range(rows.n)]


# --- set-up -----------------------------------------------------------------------------------------------------


@every_host
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("box", BOXES)
def test_the_stencils_rows_are_those_of_its_definition(host: Any, box: str, weights: str) -> None:
    found = host.stencil_rows(BOXES[box], WEIGHTS[weights])
    same_rows(found, ORACLE.stencil_rows(BOXES[box], WEIGHTS[weights]))
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
        places = [tuple(a + b for a, b in zip(point, box.origin)) for point in points]
        for i, row in enumerate(listed(host.stencil_rows(box, UNEQUAL))):
            (x, y, z), found = places[i], {places[j]: a for j, a in row}
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


MISTAKEN = {
    "": [{0: 1.0, 3: 2.0}, {1: -1.0, 2: 0.0}, {2: 1e-300}],
    "a column outside of the matrix": [{0: 1.0}, {1: 1.0, 5: 1.0}, {2: math.nan}],
    "an entry that is not finite": [{0: 1.0}, {0: -math.inf, 1: 1.0}, {}],
    "no entries": [{0: 1.0}, {}, {2: 0.0}],
    "no diagonal entry": [{0: 1.0}, {0: 3.0, 4: 2.0}, {2: 0.0}],
    "a zero on the diagonal": [{0: 1.0}, {0: 3.0, 1: 0.0}, {0: 0.0}],
}


@pytest.mark.parametrize("kernels", [ORACLE, *HOSTS])
@pytest.mark.parametrize("mistake", MISTAKEN)
def test_what_is_wrong_with_a_matrix_is_found_with_its_row(kernels: Any, mistake: str) -> None:
    rows = compressed(3, 2, MISTAKEN[mistake])
    assert kernels.check(kernels.rows_of(rows.indptr, rows.indices, rows.data, 3, 2)) == (mistake, 1 if mistake else -1)


@pytest.mark.parametrize("kernels", [ORACLE, *HOSTS])
def test_a_negative_column_and_one_that_comes_twice_are_wrong(kernels: Any) -> None:
    for column, mistake in ((-1, "a column outside of the matrix"), (1, "two entries in one column")):
        rows = kernels.rows_of([0, 1, 3], [0, column, 1], [1.0, 1.0, 1.0], 2, 0)
        assert kernels.check(rows) == (mistake, 1)


@every_host
def test_zeros_are_put_where_an_entry_has_no_partner(host: Any) -> None:
    rng = np.random.default_rng(3)
    entries = [{i: 4.0, **{int(j): 1.0 for j in rng.integers(0, 60, 3)}} for i in range(50)]
    given = compressed(50, 10, entries)
    rows = host.rows_of(given.indptr, given.indices, given.data, 50, 10)
    assert not host.is_symmetric_pattern(rows)
    assert not ORACLE.is_symmetric_pattern(given)
    found = host.with_symmetric_pattern(rows)
    same_rows(found, ORACLE.with_symmetric_pattern(given))
    assert host.is_symmetric_pattern(found)
    added = [set(after) - set(before) for before, after in zip(listed(given), listed(found))]
    assert {a for row in added for _, a in row} == {0.0}
    assert all(set(before) <= set(after) for before, after in zip(listed(given), listed(found)))
    same_rows(host.with_symmetric_pattern(found), found)


@every_host
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MATRICES)
def test_orders_are_those_of_the_reference_and_their_groups_are_independent(host: Any, name: str, kind: str) -> None:
    rows, found, exact = rows_of(host, name), order_of(host, name, kind), order_of(ORACLE, name, kind)
    for part in ("places", "inverse", "starts"):
        assert getattr(found, part).tolist() == getattr(exact, part).tolist()
    assert (found.kind, found.groups) == (kind, exact.groups)
    assert found.places[found.inverse].tolist() == list(range(rows.n))
    group = np.searchsorted(found.starts, found.inverse, side="right") - 1
    for i, row in enumerate(listed(rows)):
        assert all(group[i] != group[j] for j, _ in row if j < rows.n and j != i)
        if kind == "natural":
            assert all(group[j] < group[i] for j, _ in row if j < i)


@every_host
@pytest.mark.parametrize("box", BOXES)
def test_greedy_gives_the_stencil_eight_colours(host: Any, box: str) -> None:
    assert order_of(host, box, "greedy").groups == 8


@every_host
@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16", "fp16", "fp8"])
def test_rounding_is_the_largest_relative_error(host: Any, precision: str) -> None:
    format_ = PRECISIONS[precision]
    for name in ("irregular rows", "few columns anywhere"):
        found = host.rounding(rows_of(host, name), precision)
        assert found == pytest.approx(ORACLE.rounding(rows_of(ORACLE, name), precision), rel=1e-12, abs=0.0)
        if precision in ("fp32", "bf16"):  # of the others' subnormal numbers errors are larger
            assert 0.0 < found <= format_.u
    assert host.rounding(rows_of(host, "(4, 4, 4) alone"), precision) == 0.0
    assert host.rounding(host.rows_of([0, 1, 2], [0, 1], [format_.largest, 0.0], 2, 0), precision) == 0.0
    if precision != "fp64":
        beyond = host.rows_of([0, 1, 3], [0, 0, 1], [1.0, -format_.largest * 1.5, 2.0], 2, 0)
        assert host.rounding(beyond, precision) == ORACLE.rounding(beyond, precision) == math.inf


@every_case
def test_a_stored_matrix_says_what_it_is(name: str, kind: str, values: str, vectors: str) -> None:
    R = oracle_matrix(name, kind, values, vectors)
    assert R.nnz == rows_of(ORACLE, name).indptr[-1]
    for _, A in all_stored(name, kind, values, vectors):
        assert (A.n, A.halo, A.values, A.vectors, A.nnz) == (R.n, R.halo, values, vectors, R.nnz)
        assert A.storage in STORAGES
        assert A.lower >= R.lower
        assert A.upper >= R.upper
        assert 0 <= A.index_bytes <= A.bytes - PRECISIONS[values].bytes * (A.lower + A.upper)


@every_host
@pytest.mark.parametrize("place", PLACES)
def test_packed_the_stencil_is_runs_alone_whose_columns_take_two_hundredths_of_its_values(
    host: Any, place: str
) -> None:
    """Of 64 rows a slot has 64·8 bytes of values and a base of 4, which is 0.8 %; the rest tells of the chunks."""
    rows = host.stencil_rows(Box(16, 16, 16, *PLACES[place]), CLASSIC)
    order = host.order(rows, "greedy")
    A, ell = (host.store(rows, order, "fp64", "fp64", storage) for storage in ("packed", "ell"))
    local = int((rows.indices < rows.n).sum()) - rows.n
    assert A.index_bytes < 0.02 * 8 * local
    assert A.lower + A.upper < 1.2 * local
    assert ell.index_bytes >= 4 * local


@every_host
@pytest.mark.parametrize("name", ["(8, 6, 10) in a corner", "irregular rows"])
def test_row_sums_and_row_numbers_are_in_the_new_order(host: Any, name: str) -> None:
    for kind in KINDS:
        order, exact = order_of(host, name, kind), order_of(ORACLE, name, kind)
        sums, exact_sums = (k.row_sums(rows_of(k, name), order_of(k, name, kind)) for k in (host, ORACLE))
        near(sums, exact_sums, 100 * 64 * unit("fp64"))  # of up to 100 entries, the sum of whose sizes is below 64·2
        numbers = [5, 0, 17, 5]
        assert host.reordered(order, host.indices(numbers)).tolist() == [exact.inverse[i] for i in numbers]


@every_host
@pytest.mark.parametrize("kinds", list(product(KINDS, KINDS)))
def test_coarse_rows_are_every_second_point(host: Any, kinds: tuple[str, str]) -> None:
    box = BOXES["(8, 6, 10) in the middle"]
    fine, coarse = host.stencil_rows(box, CLASSIC), host.stencil_rows(box.coarser(), CLASSIC)
    order, coarser = host.order(fine, kinds[0]), host.order(coarse, kinds[1])
    found = host.coarse_rows(order, coarser, box)
    assert found.tolist() == ORACLE.coarse_rows(order, coarser, box).tolist()
    nx, ny, _ = box.shape
    for place, row in zip(coarser.places, found):
        z, y, x = np.unravel_index(place, box.coarser().shape[::-1])
        assert order.places[row] == (2 * z * ny + 2 * y) * nx + 2 * x


# --- vectors and bases ------------------------------------------------------------------------------------------

SIZES = (0, 1, 5, 511, 513, 2048, 2049, 7000)
vector_types = pytest.mark.parametrize("vectors", ["fp64", "fp32"])


def sum_bound(vectors: str, *factors: Any) -> float:
    """Of sums of products: 512 of them in the vectors' type, which fp64 takes over."""
    n = len(factors[0])
    return (512 * unit(vectors) + (n + 8) * unit("fp64")) * float(np.prod([np.abs(wide(x)) for x in factors], 0).sum())


@every_host
@vector_types
def test_new_vectors_are_zero_and_take_what_is_assigned(host: Any, vectors: str) -> None:
    name = "(5, 7, 3) in the middle"
    A = host.store(rows_of(host, name), order_of(host, name, "greedy"), "fp32", vectors, "packed")
    x = host.operand(A)
    assert not x.any()
    assert (len(host.own(A, x)), len(host.halo(A, x))) == (A.n, A.halo)
    host.assign(host.own(A, x), 1 / 3)
    host.assign(host.halo(A, x), np.arange(A.halo))
    assert (host.own(A, x) == x.dtype.type(1 / 3)).all()
    assert host.halo(A, x).tolist() == list(range(A.halo))
    own(host, A, x)
    assert not host.vector(7, vectors).any()
    assert len(host.vector(7, vectors)) == 7


@every_host
@vector_types
@pytest.mark.parametrize("n", SIZES)
def test_vectors_are_combined_as_their_definitions_say(host: Any, n: int, vectors: str, rng: Any) -> None:
    x, y, u = random(rng, n, vectors), random(rng, n, vectors), unit(vectors)
    bound = 4 * u * (np.abs(wide(x)) + np.abs(wide(y)))  # the factor's rounding, the product's, the sum's, and one more
    for operation in ("add_scaled", "scale_and_add"):
        found, exact = Guarded(n, vectors, y), y.copy()
        getattr(host, operation)(found.inner, 0.7, Guarded(n, vectors, x).inner)
        getattr(ORACLE, operation)(exact, 0.7, x)
        near(found.checked(), exact, bound)
    found, exact = Guarded(n, vectors, y), y.copy()
    square, exact_square = host.subtract_from(Guarded(n, vectors, x).inner, found.inner), ORACLE.subtract_from(x, exact)
    near(found.checked(), exact, bound)
    assert square == pytest.approx(exact_square, abs=sum_bound(vectors, exact, exact) + 4 * u * exact_square)
    assert host.dot(x, y) == pytest.approx(ORACLE.dot(x, y), rel=0.0, abs=sum_bound(vectors, x, y))
    assert host.distance(x, 0.3) == pytest.approx(ORACLE.distance(x, 0.3), rel=0.0, abs=4 * u)


@every_host
@vector_types
@pytest.mark.parametrize("n", [1, 600, 5000])
def test_the_largest_distance_is_nan_wherever_one_is(host: Any, n: int, vectors: str) -> None:
    for at in {0, n // 2, n - 1}:
        x = np.ones(n, host.vector(0, vectors).dtype)
        x[at] = np.nan
        assert math.isnan(host.distance(x, 1.0))
        x[at] = -np.inf
        assert host.distance(x, 1.0) == math.inf


@every_host
@pytest.mark.parametrize("n", SIZES)
def test_vectors_of_two_types_meet(host: Any, n: int, rng: Any) -> None:
    x, y = random(rng, n, "fp32"), random(rng, n, "fp64")
    found, exact = Guarded(n, "fp64", y), y.copy()
    host.add_scaled(found.inner, 0.7, x)
    ORACLE.add_scaled(exact, 0.7, x)
    near(found.checked(), exact, 4 * unit("fp64") * 2)
    narrow = Guarded(n, "fp32")
    host.scaled(Guarded(n, "fp64", y).inner, 1 / 3, narrow.inner)
    exact = x.copy()
    ORACLE.scaled(y, 1 / 3, exact)
    near(narrow.checked(), exact, 2 * unit("fp32") * np.abs(exact))
    wider = Guarded(n, "fp64")
    host.scaled(x, 1 / 3, wider.inner)
    near(wider.checked(), wide(x) / 3, 2 * unit("fp64"))


@every_host
@vector_types
@pytest.mark.parametrize("n", SIZES)
def test_entries_are_taken_from_places_and_added_there(host: Any, n: int, vectors: str, rng: Any) -> None:
    x, places = random(rng, 2 * n, vectors), host.indices(rng.permutation(2 * n)[:n].tolist())
    out = Guarded(n, vectors)
    host.take(Guarded(2 * n, vectors, x).inner, places, out.inner)
    assert out.checked().tolist() == x[places].tolist()
    found, exact, y = Guarded(2 * n, vectors, x), x.copy(), random(rng, n, vectors)
    host.add_at(found.inner, places, Guarded(n, vectors, y).inner)
    ORACLE.add_at(exact, places, y)
    assert found.checked().tolist() == exact.tolist()


@every_host
@vector_types
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("k", [0, 1, 3, 4, 30])
def test_bases_are_projected_and_combined(host: Any, n: int, k: int, vectors: str, rng: Any) -> None:
    most, u = 31, unit(vectors)
    bases = [kernels.basis(n, most, vectors) for kernels in (host, ORACLE)]
    for j, q in enumerate(random(rng, n, vectors) for _ in range(k)):
        for kernels, Q in zip((host, ORACLE), bases):
            kernels.assign(kernels.member(Q, j), q)
    Q, exact_Q = bases
    Q[k:] = np.nan  # of the others nothing is read
    w, h = random(rng, n, vectors), rng.uniform(-1.0, 1.0, k)
    near(host.project(Q, k, w), ORACLE.project(exact_Q, k, w), sum_bound(vectors, w, np.ones(n)))
    after = w.copy()
    exact_h = ORACLE.subtract_and_project(exact_Q, k, after, h)
    step = 2 * (k + 3) * u * (1 + np.abs(h).sum())  # of an entry: k products and sums, the rounding of h
    found = Guarded(n, vectors, w)
    near(host.subtract_and_project(Q, k, found.inner, h), exact_h, sum_bound(vectors, after, np.ones(n)) + n * step)
    near(found.checked(), after, step)
    found = Guarded(n, vectors, w)
    square = host.subtract_and_square(Q, k, found.inner, h)
    near(found.checked(), after, step)
    spread = sum_bound(vectors, after, after) + 2 * step * float(np.abs(wide(after)).sum()) + n * step * step
    assert square == pytest.approx(ORACLE.dot(after, after), rel=0.0, abs=spread)
    for type_ in ("fp64", "fp32"):
        out, exact = Guarded(n, type_), np.zeros(n, host.vector(0, type_).dtype)
        host.combine(Q, h.tolist(), out.inner)
        ORACLE.combine(exact_Q, h.tolist(), exact)
        near(out.checked(), exact, 2 * (k + 3) * max(u, unit(type_)) * np.abs(h).sum())


@every_host
def test_a_basis_of_many_vectors_is_projected(host: Any, rng: Any) -> None:
    n, k = 40, 1100
    Q, w = host.basis(n, k, "fp64"), random(rng, n, "fp64")
    host.assign(Q, rng.uniform(-1.0, 1.0, (k, n)))
    near(host.project(Q, k, w), ORACLE.project(Q, k, w), sum_bound("fp64", w, np.ones(n)))


# --- sweeps -----------------------------------------------------------------------------------------------------


def gauss_seidel(rows: Rows, b: Any, x: Any, halo: Any, sequence: Any) -> Any:
    """x_i = (b_i - Σ_{j≠i} a_ij x_j) / a_ii, row after row, all of it in the old numbers."""
    x, everything = x.copy(), np.concatenate([x, halo])
    for i in sequence:
        row = dict(listed_row(rows, i))
        everything[i] = (b[i] - sum(a * everything[j] for j, a in row.items() if j != i)) / row[i]
        x[i] = everything[i]
    return x


def listed_row(rows: Rows, i: int) -> list[tuple[int, float]]:
    entries = slice(rows.indptr[i], rows.indptr[i + 1])
    return list(zip(rows.indices[entries].tolist(), rows.data[entries].tolist()))


@pytest.mark.parametrize("kernels", [ORACLE, *HOSTS], ids=["reference", "one thread", "three threads"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MATRICES)
def test_a_sweep_is_gauss_seidel_in_its_order_and_the_natural_one_row_after_row(
    kernels: Any, name: str, kind: str, rng: Any
) -> None:
    rows, order, R = rows_of(ORACLE, name), order_of(kernels, name, kind), oracle_matrix(name, kind, "fp64", "fp64")
    b, x, halo = (random(rng, size, "fp64") for size in (rows.n, rows.n, rows.halo))
    sequence = range(rows.n) if kind == "natural" else order.places
    for backward in (False, True):
        exact = gauss_seidel(rows, b, x, halo, reversed(sequence) if backward else sequence)[order.places]
        A = kernels.store(rows_of(kernels, name), order, "fp64", "fp64", "packed")
        found = operand(kernels, A, x[order.places], halo)
        kernels.relax(A, b[order.places], found, backward=backward)
        largest = np.concatenate([larger(exact, x[order.places]), halo])
        near(
            own(kernels, A, found), exact,
            sweep_bound(R, b[order.places], largest, unit("fp64"), backward=backward),
        )  # fmt: skip


class Sweep:
    """b, x and halo of a matrix, and what the reference makes of them."""

    def __init__(self, name: str, kind: str, values: str, vectors: str):
        self.R = R = oracle_matrix(name, kind, values, vectors)
        self.vectors, self.u = vectors, unit(vectors)
        rng = np.random.default_rng(R.n)
        self.b, self.x, self.halo = (random(rng, size, vectors) for size in (R.n, R.n, R.halo))

    def fresh(self, kernels: Any, A: Any, fill: Any = None) -> Any:
        """A vector with this x, or so filled, and this halo."""
        return operand(kernels, A, self.x if fill is None else fill, self.halo)

    def right_side(self) -> Guarded:
        return Guarded(self.R.n, self.vectors, self.b)

    def bound(self, exact: Any, *, backward: bool = False, more: float = 1.0) -> Any:
        """How far a result may be from the exact one."""
        largest = np.concatenate([larger(exact, self.x), np.abs(self.halo)])
        return more * sweep_bound(self.R, self.b, largest, self.u, backward=backward)


@every_case
def test_a_sweep_is_the_references(name: str, kind: str, values: str, vectors: str) -> None:
    s = Sweep(name, kind, values, vectors)
    for backward in (False, True):
        exact = s.fresh(ORACLE, s.R)
        ORACLE.relax(s.R, s.b, exact, backward=backward)
        for host, A in all_stored(name, kind, values, vectors):
            x, b = s.fresh(host, A), s.right_side()
            host.relax(A, b.inner, x, backward=backward)
            near(own(host, A, x), exact[: s.R.n], s.bound(exact[: s.R.n], backward=backward))
            assert (host.halo(A, x) == s.halo).all()
            assert (b.checked() == s.b).all()


@every_case
def test_a_sweep_from_zero_is_one_on_zero(name: str, kind: str, values: str, vectors: str) -> None:
    s = Sweep(name, kind, values, vectors)
    exact = ORACLE.operand(s.R)
    ORACLE.relax(s.R, s.b, exact)
    exact = exact[: s.R.n]
    for host, A in all_stored(name, kind, values, vectors):
        for before in (0.0, s.x, FAR_OFF):
            x, b = s.fresh(host, A, before), s.right_side()
            host.relax(A, b.inner, x, from_zero=True)
            near(own(host, A, x), exact, s.bound(exact))
            assert (b.checked() == s.b).all()


@every_case
def test_what_a_forward_sweep_keeps_serves_the_backward_one(name: str, kind: str, values: str, vectors: str) -> None:
    s = Sweep(name, kind, values, vectors)
    for from_zero in (False, True):
        exact, keep = s.fresh(ORACLE, s.R, 0.0 if from_zero else None), np.zeros_like(s.b)
        if from_zero:
            ORACLE.assign(ORACLE.halo(s.R, exact), 0.0)
        ORACLE.relax(s.R, s.b, exact)
        forward = exact[: s.R.n].copy()
        ORACLE.relax(s.R, s.b, exact, backward=True)
        bound = s.bound(forward)
        again = s.bound(larger(forward, exact[: s.R.n]), backward=True) + inherited(s.R, bound)
        for kernels, A in [(ORACLE, s.R), *all_stored(name, kind, values, vectors)]:
            x, b, keep = s.fresh(kernels, A), s.right_side(), Guarded(A.n, vectors)
            kernels.relax(A, b.inner, x, from_zero=from_zero, keep=keep.inner)
            near(own(kernels, A, x), forward, bound)
            assert np.isfinite(keep.checked()).all()
            kernels.relax(A, b.inner, x, backward=True, keep=keep.inner)
            near(own(kernels, A, x), exact[: s.R.n], again)
            assert (b.checked() == s.b).all()


def inherited(R: ReferenceMatrix, errors: Any) -> Any:
    """What a backward sweep makes of errors in the x that it begins with."""
    found = np.zeros(R.n)
    for r in reversed(range(R.n)):
        row = R.rows[r]
        total = float(np.abs(row.lower.values) @ errors[row.lower.columns])
        total += float(np.abs(row.upper.values) @ found[row.upper.columns])
        found[r] = total / abs(row.diagonal)
    return found


@every_case
def test_two_halves_are_a_sweep_and_the_first_reads_nothing_of_other_ranks(
    name: str, kind: str, values: str, vectors: str
) -> None:
    s = Sweep(name, kind, values, vectors)
    for host, A in all_stored(name, kind, values, vectors):
        for backward in (False, True):
            whole, x = s.fresh(host, A), s.fresh(host, A)
            kept, keep = (None if backward else Guarded(A.n, vectors) for _ in range(2))
            host.relax(A, s.b, whole, backward=backward, keep=kept and kept.inner)
            host.assign(host.halo(A, x), FAR_OFF)
            host.relax(A, s.b, x, late=False, backward=backward, keep=keep and keep.inner)
            host.assign(host.halo(A, x), s.halo)
            host.relax(A, s.b, x, late=True, backward=backward, keep=keep and keep.inner)
            assert x.tolist() == whole.tolist()
            if keep and kept:
                assert keep.checked().tolist() == kept.checked().tolist()


@every_case
def test_threads_do_not_change_a_bit(name: str, kind: str, values: str, vectors: str) -> None:
    s = Sweep(name, kind, values, vectors)
    stored = all_stored(name, kind, values, vectors)
    for (one, A), (three, B) in zip(stored, stored[len(STORAGES) :]):
        results = []
        for host, matrix in ((one, A), (three, B)):
            x, y = s.fresh(host, matrix), host.vector(s.R.n, vectors)
            host.relax(matrix, s.b, x)
            host.multiply(matrix, x, y)
            results.append([*x.tolist(), *y.tolist()])
        assert results[0] == results[1]


#: In a dimension, ranks and this one's place: no neighbour, one after it, one before it, both.
SIDES = ((1, 0), (2, 0), (2, 1), (3, 1))
#: With these and small whole numbers nothing is rounded in eight colours: x is a multiple of 2^-48 and below 2^4.
EXACT = tuple(32.0 if d == 13 else (-1.0, 0.5, 1.0, -0.5)[d % 4] for d in range(27))


@pytest.mark.parametrize("sides", list(product(SIDES, repeat=3)))
def test_overlapped_sweeps_are_exact_whatever_the_neighbours(sides: tuple[tuple[int, int], ...]) -> None:
    """Early rows before anything is received, late ones after it: to the bit what one row after the other gives."""
    ranks, places = zip(*sides)
    box, rng = Box(6, 5, 4, *ranks, *places), np.random.default_rng(7)
    rows = ORACLE.stencil_rows(box, EXACT)
    order = ORACLE.order(rows, "greedy")
    b, x0, halo = (rng.integers(-8, 9, size).astype(float) for size in (rows.n, rows.n, rows.halo))
    exact = gauss_seidel(rows, b, x0, halo, order.places)[order.places]
    for host, storage in product(HOSTS, STORAGES):
        mine = host.stencil_rows(box, EXACT)
        mine_order = host.order(mine, "greedy")
        A = host.store(mine, mine_order, "fp64", "fp64", storage)
        x = operand(host, A, x0[order.places], rng.integers(-8, 9, rows.halo))
        host.relax(A, b[order.places], x, late=False)
        host.assign(host.halo(A, x), halo)
        host.relax(A, b[order.places], x, late=True)
        assert own(host, A, x).tolist() == exact.tolist()


# --- products and residuals -------------------------------------------------------------------------------------


@every_case
def test_products_are_the_references_in_two_halves_and_in_one(name: str, kind: str, values: str, vectors: str) -> None:
    s = Sweep(name, kind, values, vectors)
    x = s.fresh(ORACLE, s.R)
    inside, whole = np.zeros(s.R.n), np.zeros(s.R.n)
    ORACLE.multiply(s.R, x, inside, outside=False)
    ORACLE.multiply(s.R, x, whole)
    bound = s.u * magnitudes(s.R, x)
    for host, A in all_stored(name, kind, values, vectors):
        x, y, z = s.fresh(host, A), Guarded(A.n, vectors), Guarded(A.n, vectors)
        host.multiply(A, x, y.inner)
        near(y.checked(), whole, bound)
        host.assign(host.halo(A, x), FAR_OFF)
        host.multiply(A, x, z.inner, outside=False)
        near(z.checked(), inside, bound)
        host.assign(host.halo(A, x), s.halo)
        host.multiply(A, x, z.inner, outside=True)
        assert z.checked().tolist() == y.checked().tolist()
        assert own(host, A, x).tolist() == wide(s.x).tolist()


@every_case
def test_residuals_at_some_rows_are_the_references_in_two_halves_and_in_one(
    name: str, kind: str, values: str, vectors: str
) -> None:
    s = Sweep(name, kind, values, vectors)
    n = s.R.n
    some = np.random.default_rng(1).permutation(n)[: n // 3 + 1].tolist()
    for picked in (some, list(range(n)), []):
        exact = np.zeros(len(picked))
        ORACLE.residual_at(s.R, s.b, s.fresh(ORACLE, s.R), np.array(picked, int), exact, swept=False)
        bound = s.u * magnitudes(s.R, s.fresh(ORACLE, s.R), s.b)[np.array(picked, int)]
        for host, A in all_stored(name, kind, values, vectors):
            rows, x, b = host.indices(picked), s.fresh(host, A), s.right_side()
            whole, halves = Guarded(len(picked), vectors), Guarded(len(picked), vectors)
            host.residual_at(A, b.inner, x, rows, whole.inner, swept=False)
            near(whole.checked(), exact, bound)
            host.assign(host.halo(A, x), FAR_OFF)
            host.residual_at(A, b.inner, x, rows, halves.inner, swept=False, outside=False)
            host.assign(host.halo(A, x), s.halo)
            host.residual_at(A, b.inner, x, rows, halves.inner, swept=False, outside=True)
            assert halves.checked().tolist() == whole.checked().tolist()


@every_case
def test_after_a_sweep_from_zero_the_residual_needs_u_alone(name: str, kind: str, values: str, vectors: str) -> None:
    s = Sweep(name, kind, values, vectors)
    n = s.R.n
    picked = np.random.default_rng(2).permutation(n)[: n // 2 + 1]
    for kernels, A in [(ORACLE, s.R), *all_stored(name, kind, values, vectors)]:
        x, rows = s.fresh(kernels, A), kernels.indices(picked.tolist())
        kernels.relax(A, s.b, x, from_zero=True)
        exact, found, long = np.zeros(len(picked)), Guarded(len(picked), vectors), Guarded(len(picked), vectors)
        ORACLE.residual_at(s.R, s.b, x, picked, exact, swept=False)
        kernels.residual_at(A, Guarded(n, vectors).inner, x, rows, found.inner, swept=True)
        kernels.residual_at(A, s.b, x, rows, long.inner, swept=False)
        bound = 2 * s.u * magnitudes(s.R, x, s.b)[picked]  # (D + L) x is b up to the sweep's rounding
        near(found.checked(), exact, bound)
        near(long.checked(), exact, bound)


@every_host
def test_the_same_matrix_in_two_types_of_vectors_gives_what_two_matrices_give(host: Any, rng: Any) -> None:
    for name, storage in product(("(8, 6, 10) in a corner", "irregular rows"), STORAGES):
        rows, order = rows_of(host, name), order_of(host, name, "greedy")
        b, x0, halo = (random(rng, size, "fp32") for size in (rows.n, rows.n, rows.halo))
        for values, other in (("fp32", "fp32"), ("fp32", "bf16"), ("bf16", "bf16")):
            first = host.store(rows, order, values, "fp64", storage)
            results = []
            for like in (None, first):
                A = host.store(rows, order, other, "fp32", storage, like)
                x = operand(host, A, x0, halo)
                host.relax(A, b, x)
                results.append((x.tolist(), A.values, A.vectors, A.nnz))
                assert A.bytes_beside(first) == A.bytes if like is None else A.bytes_beside(first) <= A.bytes
            assert results[0] == results[1]


# --- formats ----------------------------------------------------------------------------------------------------

TYPES = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp8": ml_dtypes.float8_e4m3fn}


@every_host
@vector_types
@pytest.mark.parametrize("values", TYPES)
def test_every_number_of_a_narrow_format_is_read_as_it_is(host: Any, values: str, vectors: str) -> None:
    """A matrix that shifts: entry (i, n + i) times 1 is the number; in chunks of runs, and in single columns."""
    bits = np.arange(2 ** (8 * PRECISIONS[values].bytes), dtype=np.uint16 if values != "fp8" else np.uint8)
    with np.errstate(invalid="ignore"):
        numbers = bits.view(TYPES[values]).astype(np.float64)
    numbers = numbers[np.isfinite(numbers)][:: 1 if values == "fp8" else 37]
    k = len(numbers)
    rows = [{i: 1.0, k + i: float(a)} for i, a in enumerate(numbers)] + [{k + i: 1.0, i: 0.0} for i in range(k)]
    given = compressed(2 * k, 0, rows)
    mine = host.rows_of(given.indptr, given.indices, given.data, 2 * k, 0)
    for kind, storage in product(("greedy", "natural"), STORAGES):
        order = host.order(mine, kind)
        A = host.store(mine, order, values, vectors, storage)
        x, y = host.operand(A), host.vector(2 * k, vectors)
        host.assign(host.own(A, x), order.places >= k)
        host.multiply(A, x, y)
        assert y[order.inverse][:k].tolist() == numbers.tolist()


@every_host
@pytest.mark.parametrize("values", TYPES)
def test_values_are_rounded_once(host: Any, values: str) -> None:
    """Just above the middle of two numbers: through fp32 it would be the middle, and go to the even one."""
    middle = 1 + PRECISIONS[values].u
    given = compressed(2, 0, [{0: 1.0, 1: middle + 2.0**-40}, {0: 0.0, 1: 1.0}])
    rows = host.rows_of(given.indptr, given.indices, given.data, 2, 0)
    A = host.store(rows, host.order(rows, "natural"), values, "fp64", "packed")
    x, y = operand(host, A, [0.0, 1.0], []), host.vector(2, "fp64")
    host.multiply(A, x, y)
    assert y[0] == 1 + 2 * PRECISIONS[values].u


@every_host
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("values", ["fp32", *TYPES])
def test_all_values_are_in_the_matrixs_format(host: Any, values: str, storage: str) -> None:
    """Also those of the diagonal and those in columns of other ranks."""
    given = compressed(2, 1, [{0: math.pi, 1: math.e}, {0: -math.e, 1: math.pi, 2: math.sqrt(3)}])
    R = ORACLE.store(given, ORACLE.order(given, "natural"), values, "fp64", storage)
    rows = host.rows_of(given.indptr, given.indices, given.data, 2, 1)
    A = host.store(rows, host.order(rows, "natural"), values, "fp64", storage)
    for x0, halo in (([1.0, 0.0], [0.0]), ([0.0, 1.0], [0.0]), ([0.0, 0.0], [1.0])):
        y, exact = host.vector(2, "fp64"), np.zeros(2)
        host.multiply(A, operand(host, A, x0, halo), y)
        ORACLE.multiply(R, operand(ORACLE, R, x0, halo), exact)
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
    exact = np.bincount(row, value * x0[column], n)  # whole multiples of 1/8: no rounding
    for storage in STORAGES:
        A = host.store(rows, order, "fp8", "fp64", storage)
        x, y = operand(host, A, x0[order.places], []), host.vector(n, "fp64")
        host.multiply(A, x, y)
        assert (y[order.inverse] == exact).all()
        host.assign(host.own(A, x), 0.0)
        host.relax(A, y, x, from_zero=True)
        swept = wide(host.own(A, x))[order.inverse]
        before = order.inverse[column] <= order.inverse[row]
        sums = np.bincount(row[before], (value * swept[column])[before], n)
        sizes = np.bincount(row[before], np.abs(value * swept[column])[before], n) + np.abs(exact)
        longest = int(np.bincount(row).max())
        near(sums, exact, 2 * (longest + 4) * unit("fp64") * sizes)


def test_reading_a_matrix_changes_nothing() -> None:
    for kernels, name in product([ORACLE, *HOSTS], MATRICES):
        A = kernels.store(rows_of(kernels, name), order_of(kernels, name, "greedy"), "bf16", "fp32", "packed")
        x, y, again = kernels.operand(A), *(kernels.vector(A.n, "fp32") for _ in range(2))
        kernels.assign(kernels.own(A, x), 1.0)
        kernels.multiply(A, x, y)
        assert 0 <= kernels.read_all(A) <= A.bytes
        kernels.multiply(A, x, again)
        assert y.tolist() == again.tolist()

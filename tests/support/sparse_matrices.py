"""Create sparse matrices for comparisons of kernels, with bounds of the differences.

The reference rounds a row's sum once; the other kernels round every product and every sum. The results for a row of m
entries may therefore differ by 2(m + 4)·u·(|b| + Σ|a||x|). These are m products, m sums, the conversion of values, the
difference from b, the quotient and its rounding, with at most u each. The factor 2 covers the roundings of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from itertools import product
from typing import Any

import numpy as np

from mxpeak.kernels.contract.sparse import Part, Rows
from mxpeak.kernels.reference.sparse import ReferenceMatrix
from mxpeak.layout.stencil import Box
from mxpeak.precision import PRECISIONS
from tests.support.notes import note_case
from tests.support.on_arrays import SLICES, OnArrays, every_backend, sparse_kernels

ORACLE: Any = sparse_kernels("reference")
#: Storages in chunks, which every backend has, and all storages of the host.
CHUNKS = ("ell", "sell", "packed")
STORAGES = ("rows", *CHUNKS)
#: Storages for rows one after the other.
ROWWISE = ("rows", "sell", "packed")
KINDS = ("greedy", "jpl", "levels", "natural", "surface_last")
#: Storages by order of the rows, because chunks need large groups.
SUITING = {"greedy": STORAGES, "jpl": CHUNKS, "levels": CHUNKS, **dict.fromkeys(("natural", "surface_last"), ROWWISE)}
VECTORS = ("fp64", "fp32")
#: Formats of a matrix and of its vectors: every format of both, but not every pair, because each pair is compiled
#: separately. Kernels convert matrix values to the vectors' format before use.
FORMATS = [("fp64", "fp64"), ("bf16", "fp32"), ("fp32", "fp32"), ("fp16", "fp32"), ("fp8", "fp32"), ("bf16", "fp64")]
DTYPES = {"fp64": np.float64, "fp32": np.float32}
#: The value of halo entries before they are received; it reveals early reads.
FAR_OFF = 1e30
#: The number of guard entries on either side of a vector.
GUARD = 80

# --- matrices ---------------------------------------------------------------------------------------------------

CLASSIC = tuple(26.0 if d == 13 else -1.0 for d in range(27))
#: 27 different fp8 weights, which reveal a mix-up of two neighbors.
UNEQUAL = tuple(64.0 if d == 13 else (-1) ** d * (1 + d % 15) / (8 if d < 15 else 16) for d in range(27))
#: Boxes alone, with one neighbor, in the middle and in a corner of a grid of ranks; with one chunk and with several.
BOXES = {
    "a small box between others": Box(4, 3, 2, 2, 3, 2, 0, 1, 1),
    "a box with a neighbour": Box(7, 5, 3, 1, 1, 2, 0, 0, 1),
    "a box of several chunks": Box(18, 10, 3, 1, 2, 1, 0, 1, 0),
    "a box in a corner": Box(8, 6, 10, 2, 3, 2, 1, 2, 0),
    "a box alone": Box(16, 8, 8),
    "long lines that end at a neighbour": Box(64, 4, 3, 2, 1, 1, 0, 0, 0),
}


def random_rows(
    n: int, halo: int, near: int, anywhere: int, hubs: Sequence[tuple[int, int]] = (), alone: Sequence[int] = ()
) -> Rows:
    """Return a diagonally dominant matrix with a symmetric pattern and up to about 2(near + anywhere) entries per row.

    A hub (i, m) has m additional columns; rows `alone` have only a diagonal. Narrow formats must round the entries of L
    and U, some of them to subnormal fp8 numbers; the entries of D and H are fp8 numbers.
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
    """Return the rows of {column: value} in compressed form."""
    entries = [(j, a) for row in rows for j, a in sorted(row.items())]
    indptr = np.cumsum([0, *map(len, rows)])
    return ORACLE.rows_of(indptr, [j for j, _ in entries], [a for _, a in entries], n, halo)


def dense(n: int) -> Rows:
    return compressed(n, 0, [{j: 128.0 if i == j else math.sin(1 + i * n + j) / 2 for j in range(n)} for i in range(n)])


def arrow(n: int) -> Rows:
    """Return a diagonal matrix plus a full last row and column: two groups, and one chunk with one row."""
    last = {j: -0.25 for j in range(n - 1)} | {n - 1: 128.0}
    return compressed(n, 0, [*({i: 4.0, n - 1: 0.125} for i in range(n - 1)), last])


OTHERS = {
    "a matrix without rows": lambda: compressed(0, 0, []),
    "one row": lambda: compressed(1, 2, [{0: 4.0, 2: -1.5}]),
    "a diagonal": lambda: compressed(150, 0, [{i: 2.0 ** (i % 5)} for i in range(150)]),
    "a dense one": lambda: dense(130),
    "an arrow": lambda: arrow(400),
    "few columns anywhere": lambda: random_rows(700, 60, 0, 3),
    "irregular rows": lambda: random_rows(230, 17, 2, 1, hubs=((17, 40), (200, 25)), alone=(0, 5, 100)),
    "long rows": lambda: random_rows(600, 37, 10, 12, hubs=((17, 90), (200, 70), (599, 60)), alone=(0, 5, 300)),
    "rows of hundreds": lambda: random_rows(1300, 90, 4, 4, hubs=((3, 700), (700, 400), (1290, 600)), alone=(7,)),
}
MATRICES = (*BOXES, *OTHERS)


@cache
def oracle_rows(name: str) -> Rows:
    """Return a matrix of MATRICES as rows of the reference."""
    return ORACLE.stencil_rows(BOXES[name], UNEQUAL) if name in BOXES else OTHERS[name]()


@cache
def rows_of(kernels: Any, name: str) -> Rows:
    """Return a matrix of MATRICES as rows of these kernels."""
    rows = oracle_rows(name)
    return kernels.rows_of(rows.indptr, rows.indices, rows.data, rows.n, rows.halo)


def storages_of(kernels: Any) -> tuple[str, ...]:
    """Return the storages of these kernels."""
    return CHUNKS if isinstance(kernels, OnArrays) else STORAGES


@cache
def order_of(kernels: Any, name: str, kind: str) -> Any:
    return kernels.order(rows_of(kernels, name), kind)


def listed(rows: Rows) -> list[list[tuple[int, float]]]:
    """Return the (column, value) pairs of every row."""
    entries = list(zip(rows.indices.tolist(), rows.data.tolist()))
    return [entries[rows.indptr[i] : rows.indptr[i + 1]] for i in range(rows.n)]


# --- vectors ----------------------------------------------------------------------------------------------------


class Guarded:
    """A vector between NaN guards; it is NaN itself unless it gets values."""

    def __init__(self, n: int, vectors: str, values: Any = np.nan):
        self._memory = np.full(n + 2 * GUARD, np.nan, DTYPES[vectors])
        self.inner = self._memory[GUARD : GUARD + n]
        self.inner[:] = values

    def checked(self) -> Any:
        """Check the guards, and return the vector."""
        assert np.isnan(self._memory[:GUARD]).all()
        assert np.isnan(self._memory[len(self._memory) - GUARD :]).all()
        return self.inner


def halo_vector(kernels: Any, A: Any, own: Any, halo: Any) -> Any:
    """Return a vector that A can multiply, with these entries."""
    x = kernels.halo_vector(A)
    x[: A.n], x[A.n : A.n + A.halo] = own, halo
    return x


def own(A: Any, x: Any) -> Any:
    """Check that the padding of such a vector is still zero, and return the rank's own part."""
    assert not np.any(x[A.n + A.halo :])
    return wide(x[: A.n])


def unit(vectors: str) -> float:
    return PRECISIONS[vectors].u


def wide(x: Any) -> Any:
    return np.asarray(x).astype(np.float64)


def random(rng: Any, n: int, vectors: str) -> Any:
    return rng.uniform(-1.0, 1.0, n).astype(DTYPES[vectors])


# --- bounds -----------------------------------------------------------------------------------------------------


def near(actual: Any, exact: Any, bound: Any) -> None:
    actual, exact = wide(actual), wide(exact)
    assert actual.shape == exact.shape
    assert (np.abs(actual - exact) <= bound).all(), (actual, exact)  # false if one of them is NaN


def larger(x: Any, y: Any) -> Any:
    return np.maximum(np.abs(wide(x)), np.abs(wide(y)))


def sweep_backward(R: ReferenceMatrix, b: Any, x: Any) -> None:
    """Run a sweep from the last row to the first by its definition, without results of a forward sweep."""
    for r in reversed(range(R.n)):
        row = R.rows[r]
        others = row.lower.times(x) + row.upper.times(x) + row.halo.times(x[R.n :])
        x[r] = (float(b[r]) - others) / row.diagonal


def inherited(R: ReferenceMatrix, errors: Any) -> Any:
    """Return the errors after a backward sweep due to errors in its initial x."""
    bounds = np.zeros(R.n)
    for r in reversed(range(R.n)):
        row = R.rows[r]
        total = float(np.abs(row.lower.values) @ errors[row.lower.columns])
        total += float(np.abs(row.upper.values) @ bounds[row.upper.columns])
        bounds[r] = total / abs(row.diagonal)
    return bounds


# --- examples ---------------------------------------------------------------------------------------------------


class Example:
    """A matrix in an order and in formats, with b, x and the halo, and the reference's results."""

    def __init__(self, name: str, kind: str, values: str, vectors: str):
        self.name, self.kind, self.values, self.vectors, self.u = name, kind, values, vectors, unit(vectors)
        self.order = order_of(ORACLE, name, kind)
        self.R = R = ORACLE.store(oracle_rows(name), self.order, values, vectors, "")
        rng = np.random.default_rng(R.n)
        self.b, self.x, self.halo = (random(rng, size, vectors) for size in (R.n, R.n, R.halo))
        entries = [
            (r, np.concatenate([row.lower.columns, [r], row.upper.columns, row.halo.columns + R.n]), part)
            for r, row in enumerate(R.rows)
            for part in [np.concatenate([row.lower.values, [row.diagonal], row.upper.values, row.halo.values])]
        ]
        self._lengths = np.array([len(part) for _, _, part in entries], np.int64)
        self._rows = np.repeat(np.arange(R.n), self._lengths)
        self._columns = np.concatenate([np.empty(0, np.int64), *(columns for _, columns, _ in entries)]).astype(int)
        self._values = np.concatenate([np.empty(0), *(part for _, _, part in entries)])

    def stored(self, kernels: Any, storage: str) -> Any:
        """Return the matrix as other kernels store it."""
        rows, order = rows_of(kernels, self.name), order_of(kernels, self.name, self.kind)
        return kernels.store(rows, order, self.values, self.vectors, storage)

    def fresh(self, kernels: Any, A: Any, fill: Any = None) -> Any:
        """Return a vector with this x or this value, and with this halo."""
        return halo_vector(kernels, A, self.x if fill is None else fill, self.halo)

    def right_side(self) -> Guarded:
        return Guarded(self.R.n, self.vectors, self.b)

    @cached_property
    def forward(self) -> tuple[Any, Any]:
        """Return x after a sweep, and a bound of the difference of other kernels."""
        x = self.fresh(ORACLE, self.R)
        ORACLE.sweep_forward(self.R, self.b, x)
        return self._with_bound(x)

    @cached_property
    def from_zero(self) -> tuple[Any, Any]:
        """Return x after a sweep from zero, which equals a sweep with x and halo zero."""
        x = ORACLE.halo_vector(self.R)
        ORACLE.sweep_forward(self.R, self.b, x)
        return self._with_bound(x)

    @cached_property
    def symmetric(self) -> dict[bool, tuple[Any, Any]]:
        """Return x and the bound after a forward sweep, from zero or not, and a backward sweep."""
        results = {}
        for from_zero, (before, bound) in ((True, self.from_zero), (False, self.forward)):
            x = halo_vector(ORACLE, self.R, before, 0.0 if from_zero else self.halo)
            sweep_backward(self.R, self.b, x)
            after = x[: self.R.n].copy()
            errors = self._bound(larger(before, after), backward=True) + inherited(self.R, bound)
            results[from_zero] = after, errors
        return results

    def product(self, x: Any) -> Any:
        """Return A x in fp64 by the definition."""
        return np.bincount(self._rows, self._values * wide(x)[self._columns], self.R.n)

    def magnitudes(self, x: Any, b: Any = 0.0) -> Any:
        """Return 2(m + 4)·(|b_i| + Σ|a_ij||x_j|) of every row of m entries."""
        sums = np.bincount(self._rows, np.abs(self._values * wide(x)[self._columns]), self.R.n)
        return 2 * (self._lengths + 4) * (np.abs(wide(b)) + sums)

    @cached_property
    def products(self) -> tuple[Any, Any, Any]:
        """Return A x without H and with it, and bounds of the differences of other kernels."""
        x, inside = self.fresh(ORACLE, self.R), np.zeros(self.R.n)
        ORACLE.matvec(inside, self.R, x, part=Part.INTERIOR)
        return inside, self.product(x), self.u * self.magnitudes(x)

    @cached_property
    def residuals(self) -> tuple[Any, Any]:
        """Return b - A x, and a bound of the difference of other kernels."""
        x = self.fresh(ORACLE, self.R)
        return wide(self.b) - self.product(x), self.u * self.magnitudes(x, self.b)

    def _with_bound(self, x: Any) -> tuple[Any, Any]:
        found = x[: self.R.n].copy()
        return found, self._bound(found)

    def _bound(self, x: Any, *, backward: bool = False) -> Any:
        """Return bounds of a sweep's errors: a row's own error plus those of earlier rows, over its diagonal."""
        largest = np.concatenate([larger(x, self.x), np.abs(self.halo)])
        own_errors, errors = self.u * self.magnitudes(largest, self.b), np.zeros(self.R.n)
        for r in reversed(range(self.R.n)) if backward else range(self.R.n):
            row = self.R.rows[r]
            before = row.upper if backward else row.lower
            errors[r] = (own_errors[r] + float(np.abs(before.values) @ errors[before.columns])) / abs(row.diagonal)
        return errors


example = cache(Example)
#: Small matrices for an interpreter; each storage, format, order and vector type occurs with several of the others.
FEW = [
    ("a small box between others", "greedy", "fp64", "fp64", "ell"),
    ("a small box between others", "levels", "fp8", "fp32", "packed"),
    ("a box with a neighbour", "jpl", "fp16", "fp64", "sell"),
    ("a small box between others", "jpl", "bf16", "fp64", "packed"),
    ("a box of several chunks", "greedy", "bf16", "fp32", "packed"),
    ("a box of several chunks", "greedy", "fp32", "fp32", "sell"),
    ("irregular rows", "greedy", "fp32", "fp64", "packed"),
    ("irregular rows", "jpl", "fp16", "fp32", "ell"),
    ("a matrix without rows", "greedy", "bf16", "fp32", "packed"),
]


#: Otherwise every matrix occurs in every order and storage, and each order with every pair of formats.
MANY = [
    (name, kind, *FORMATS[at % len(FORMATS)], storage)
    for at, (name, kind) in enumerate(product(MATRICES, KINDS))
    for storage in SUITING[kind]
]


@cache
def stored(kernels: Any, name: str, kind: str, values: str, vectors: str, storage: str) -> Any:
    return example(name, kind, values, vectors).stored(kernels, storage)


def cases_of(kernels: Any) -> list[tuple[str, ...]]:
    """Return the cases for the tests of these kernels."""
    if isinstance(kernels, OnArrays):
        return FEW
    return [case for case in MANY if case[-1] == "rows"] if kernels is sparse_kernels(SLICES) else MANY


def on_examples(check: Callable[[Any, Example, Any], None]) -> Any:
    """Turn a check of (kernels, example, stored matrix) into a test per backend that covers all of its examples."""

    def test(kernels: Any) -> None:
        for case in cases_of(kernels):
            with note_case(case=case):
                check(kernels, example(*case[:-1]), stored(kernels, *case))

    test.__name__, test.__doc__ = check.__name__, check.__doc__
    return every_backend(test)

"""Test that matrices with 16-bit vectors are summed in fp32, and that every number is rounded once.

A sum in fp32 and one in fp64 nearly always round to the same 16 bits.  So almost all numbers of a result are those of
the reference, and the others, and what sweeps make of them, differ by a few units of the last place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mxpeak.errors import UsageError
from mxpeak.kernels.contract.sparse import Part
from mxpeak.kernels.reference.sparse import BASIS_TYPES
from mxpeak.layout.stencil import Box
from tests.support.notes import note_case
from tests.support.on_arrays import HOSTS, every_backend, every_host, interpreted
from tests.support.sparse_matrices import CLASSIC, ORACLE, near, oracle_rows, order_of, rows_of, unit, wide

NARROW = ("bf16", "fp16")
#: Matrices, orders, formats of values, and storages. Each value is combined with several of the others.
CASES = [
    ("a small box between others", "greedy", "bf16", "packed"),
    ("a box with a neighbour", "jpl", "fp8", "ell"),
    ("a small box between others", "levels", "fp32", "sell"),
    ("irregular rows", "greedy", "fp16", "packed"),
    ("a matrix without rows", "greedy", "bf16", "packed"),
    ("a box of several chunks", "greedy", "fp8", "packed"),
    ("a box in a corner", "greedy", "fp32", "ell"),
    ("long lines that end at a neighbour", "jpl", "bf16", "sell"),
    ("rows of hundreds", "greedy", "bf16", "packed"),
]
#: The number of these cases that an interpreter runs.
FEW = 5


class Case:
    """A matrix with narrow vectors as stored by some kernels and by the reference, and vectors for it."""

    def __init__(self, kernels: Any, name: str, kind: str, values: str, storage: str, vectors: str):
        self.kernels, self.type, self.u = kernels, BASIS_TYPES[vectors], unit(vectors)
        self.order = order_of(ORACLE, name, kind)
        self.R = ORACLE.store(oracle_rows(name), self.order, values, vectors, "")
        self.A = kernels.store(rows_of(kernels, name), order_of(kernels, name, kind), values, vectors, storage)
        rng = np.random.default_rng(self.R.n + 1)
        self.b, self.halo, self.before = (
            rng.uniform(-1.0, 1.0, size).astype(self.type) for size in (self.R.n, self.R.halo, self.R.n)
        )

    def vector(self, kernels: Any, A: Any, own: Any, halo: Any = 0.0) -> Any:
        x = kernels.halo_vector(A)
        assert x.dtype == self.type
        assert not wide(x).any()
        x[: A.n], x[A.n : A.n + A.halo] = own, halo
        return x

    def both(self, own: Any, halo: Any = 0.0) -> tuple[Any, Any]:
        """Return a vector of the kernels and one of the reference."""
        return self.vector(self.kernels, self.A, own, halo), self.vector(ORACLE, self.R, own, halo)

    def new(self, size: int | None = None) -> Any:
        return np.zeros(self.R.n if size is None else size, self.type)

    def same(self, actual: Any, exact: Any, *, once: bool = True) -> None:
        """Check that nearly all numbers are equal if each is rounded `once`, and the others differ by few roundings."""
        n = len(exact)
        actual, exact = wide(actual[:n]), wide(exact)
        assert actual.shape == exact.shape
        largest = np.abs(exact).max(initial=0.0)
        assert (np.abs(actual - exact) <= 2 * self.u * (np.abs(exact) + largest)).all()
        assert np.count_nonzero(actual != exact) <= 2 + n // 10 or not once


@every_backend
@pytest.mark.parametrize("vectors", NARROW)
def test_sweeps_products_and_residuals_are_the_references(kernels: Any, vectors: str) -> None:
    for name, kind, values, storage in CASES[: FEW if interpreted(kernels) else None]:
        with note_case(case=(name, kind, values, storage)):
            case = Case(kernels, name, kind, values, storage, vectors)
            check_sweeps(case)
            check_products(case)
            check_residuals(case)


def check_sweeps(c: Case) -> None:
    k, A, R, b = c.kernels, c.A, c.R, c.b
    assert (A.vectors, A.values) == (R.vectors, R.values)
    keep, exact_keep = c.new(), c.new()
    x, exact = c.both(c.before, c.halo)
    k.sweep_from_zero(A, b, x, keep=keep)
    ORACLE.sweep_from_zero(R, b, exact, keep=exact_keep)
    c.same(x, exact[: R.n])
    c.same(keep, exact_keep)
    halves, _ = c.both(c.before)
    for part in (Part.BOUNDARY, Part.INTERIOR):
        k.sweep_from_zero(A, b, halves, part=part)
    assert wide(halves[: R.n]).tolist() == wide(x[: R.n]).tolist()
    k.sweep_backward(A, exact_keep, x)
    ORACLE.sweep_backward(R, exact_keep, exact)
    c.same(x, exact[: R.n])
    x, exact = c.both(c.before, c.halo)
    before = b.copy()
    k.sweep_forward(A, b, x)
    ORACLE.sweep_forward(R, b, exact)
    c.same(x, exact[: R.n], once=not R.halo)  # the host stores b - H x in b during the sweep
    assert wide(b).tolist() == wide(before).tolist()
    halves, _ = c.both(c.before)
    k.sweep_forward(A, b, halves, part=Part.INTERIOR)
    halves[A.n : A.n + A.halo] = c.halo
    k.sweep_forward(A, b, halves, part=Part.BOUNDARY)
    assert wide(halves[: R.n]).tolist() == wide(x[: R.n]).tolist()


def check_products(c: Case) -> None:
    """Check that y is in fp32, and as accurate as fp32 sums are."""
    k, A, R = c.kernels, c.A, c.R
    x, exact_x = c.both(c.before, c.halo)
    y, exact = np.full(R.n, np.nan, np.float32), np.zeros(R.n)
    k.matvec(y, A, x)
    ORACLE.matvec(exact, R, exact_x)
    sizes = [
        abs(row.diagonal * float(exact_x[r]))
        + sum(
            float(np.abs(part.values) @ np.abs(wide(at)[part.columns]))
            for part, at in ((row.lower, exact_x), (row.upper, exact_x), (row.halo, exact_x[R.n :]))
        )
        for r, row in enumerate(R.rows)
    ]
    lengths = [1 + len(row.lower.values) + len(row.upper.values) + len(row.halo.values) for row in R.rows]
    near(y, exact, 2 * unit("fp32") * (np.array(lengths) + 4) * np.array(sizes))
    whole = y.copy()
    for part in (Part.INTERIOR, Part.BOUNDARY):
        k.matvec(y, A, x, part=part)
    assert y.tolist() == whole.tolist()


def check_residuals(c: Case) -> None:
    """Check residuals without a sweep, after one from zero and after a symmetric one; two parts round twice."""
    k, A, R, b = c.kernels, c.A, c.R, c.b
    rows = np.random.default_rng(3).permutation(R.n)[: R.n // 3 + 1].astype(np.int32)
    keep = c.new()
    for swept, kept in ((False, None), (True, None), (False, keep)):
        start, x = c.both(c.before, c.halo)[1], None
        if swept or kept is not None:
            ORACLE.sweep_from_zero(R, b, start, keep=kept)
        if kept is not None:
            ORACLE.sweep_backward(R, kept, start)
        x, exact_x = c.both(start[: R.n], c.halo)
        r, exact = c.new(len(rows)), c.new(len(rows))
        for part in (Part.INTERIOR, Part.BOUNDARY) if R.halo else (Part.ALL,):
            k.residual_at(A, b, x, rows, r, swept=swept, keep=kept, part=part)
            ORACLE.residual_at(R, b, exact_x, rows, exact, swept=swept, keep=kept, part=part)
        c.same(r, exact, once=not R.halo)


@every_backend
@pytest.mark.parametrize("vectors", NARROW)
def test_numbers_are_gathered_and_added_in_16_bits(kernels: Any, vectors: str, rng: Any) -> None:
    type_ = BASIS_TYPES[vectors]
    for n, count in ((1, 1), (700, 300), (5000, 5000)):
        x, y = (rng.uniform(-1.0, 1.0, size).astype(type_) for size in (n, count))
        rows = rng.permutation(n)[:count].astype(np.int32)
        actual, exact = x.copy(), x.copy()
        kernels.scatter_add(actual, rows, y)
        ORACLE.scatter_add(exact, rows, y)
        assert wide(actual).tolist() == wide(exact).tolist()
        gathered = np.zeros(count, type_)
        kernels.gather(actual, rows, gathered)
        assert wide(gathered).tolist() == wide(actual[rows]).tolist()
        for wider in (np.float64, np.float32):
            z = rng.uniform(-1.0, 1.0, n).astype(wider)
            sums, exact_sums = z.copy(), z.copy()
            kernels.add_scaled(sums, 0.7, x)
            ORACLE.add_scaled(exact_sums, 0.7, x)
            near(sums, exact_sums, 8 * np.finfo(wider).eps)


@every_host
def test_threads_do_not_change_a_bit_of_narrow_vectors(host: Any) -> None:
    for vectors in NARROW:
        x = [Case(each, "a box of several chunks", "greedy", "bf16", "packed", vectors) for each in (HOSTS[0], host)]
        actual = []
        for case in x:
            vector = case.both(case.before, case.halo)[0]
            case.kernels.sweep_forward(case.A, case.b, vector)
            actual.append(wide(vector).tolist())
        assert actual[0] == actual[1]


@every_host
def test_overflow_and_nan_are_not_hidden(host: Any) -> None:
    """A number that exceeds fp16's range becomes infinite, and NaN stays NaN."""
    box = Box(8, 8, 8)
    rows = host.stencil_rows(box, CLASSIC)
    A = host.store(rows, host.order(rows, "greedy"), "bf16", "fp16", "packed")
    x, b = host.halo_vector(A), np.zeros(A.n, np.float16)
    b[0] = np.nan
    host.sweep_from_zero(A, b, x)
    assert np.isnan(x[0])
    small = host.rows_of([0, 1], [0], [1e-3], 1, 0)
    D = host.store(small, host.order(small, "greedy"), "fp32", "fp16", "packed")
    x = host.halo_vector(D)
    host.sweep_from_zero(D, np.full(1, 1000.0, np.float16), x)
    assert np.isinf(x[0])


@every_host
@pytest.mark.parametrize(("kind", "storage"), [("natural", "packed"), ("surface_last", "sell"), ("greedy", "rows")])
def test_sweeps_in_natural_order_refuse_narrow_vectors(host: Any, kind: str, storage: str) -> None:
    rows = host.stencil_rows(Box(4, 4, 4), CLASSIC)
    with pytest.raises(UsageError, match="do not support vectors in bf16; use colors, or fp32"):
        host.store(rows, host.order(rows, kind), "bf16", "bf16", storage)

"""Test that stored formats of sparse matrices keep every number, with columns far apart, in rows or slices."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache, partial
from itertools import cycle, product
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest

from mxpeak.kernels.contract.sparse import Rows
from mxpeak.kernels.host.sparse.matrix import HostMatrix
from mxpeak.kernels.host.sparse.natural import autotune
from mxpeak.kernels.host.sparse.natural.gs_csr import CsrColumns
from mxpeak.kernels.host.sparse.natural.slot_format import SlotColumns
from mxpeak.kernels.host.sparse.slot_sums import SUCCESSIVE
from mxpeak.kernels.host.sparse.sparse import HostSparse
from mxpeak.precision import PRECISIONS
from tests.support.notes import note_case
from tests.support.on_arrays import SLICES, OnArrays, every_backend, every_host, sparse_kernels
from tests.support.sparse_matrices import (
    CHUNKS,
    DTYPES,
    ORACLE,
    STORAGES,
    Example,
    compressed,
    halo_vector,
    near,
    on_examples,
    own,
    rows_of,
    storages_of,
    unit,
)

TYPES = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp8": ml_dtypes.float8_e4m3fn}


def read_back(kernels: Any, numbers: list[float], values: str, forms: Iterable[tuple[str, str, str]]) -> None:
    """Read numbers with a matrix whose row i has the entry (i, n + i), in chunks of runs and in single columns."""
    k = len(numbers)
    rows = [{i: 1.0, k + i: a} for i, a in enumerate(numbers)] + [{k + i: 1.0, i: 0.0} for i in range(k)]
    shift = compressed(2 * k, 0, rows)
    own_rows = kernels.rows_of(shift.indptr, shift.indices, shift.data, 2 * k, 0)
    for vectors, kind, storage in forms:
        order = kernels.order(own_rows, kind)
        A, y = kernels.store(own_rows, order, values, vectors, storage), np.zeros(2 * k, DTYPES[vectors])
        kernels.matvec(y, A, halo_vector(kernels, A, order.new_to_old >= k, []))
        assert y[order.old_to_new][:k].tolist() == numbers, (values, vectors, kind, storage)


@every_backend
def test_every_number_of_a_narrow_format_is_read_as_it_is(kernels: Any) -> None:
    """Read all numbers of fp8, and every 37th of 16-bit formats; on an interpreter a few, also the extremes.

    The interpreter has no subnormal numbers of bf16.
    """
    for values in TYPES:
        check_read(kernels, values)


def check_read(kernels: Any, values: str) -> None:
    format_ = PRECISIONS[values]
    if values == "fp8" or not isinstance(kernels, OnArrays):
        bits = np.arange(2 ** (8 * format_.bytes), dtype=np.uint16 if values != "fp8" else np.uint8)
        with np.errstate(invalid="ignore"):
            every = bits.view(TYPES[values]).astype(np.float64)
        numbers = every[np.isfinite(every)][:: 1 if values == "fp8" else 37].tolist()
        storages = STORAGES if not isinstance(kernels, OnArrays) else ("packed",)
        forms = [*product(("fp32",), ("greedy", "levels"), storages), ("fp64", "greedy", "packed")]
    else:
        smallest = 2.0**-24 if values == "fp16" else 2.0**-126
        numbers = [format_.largest, -format_.largest, 1 + 2 * format_.u, smallest, -3 * smallest, 0.0, -1.5]
        forms = [("fp64", "greedy", storage) for storage in CHUNKS]
    read_back(kernels, numbers, values, forms)


@every_backend
def test_values_are_rounded_once_also_where_a_wider_form_is_known(kernels: Any, rng: Any) -> None:
    """The values are next to the midpoint of two numbers, where rounding to fp32 gives the midpoint, or subnormal."""
    for values in TYPES:
        with note_case(case=values):
            check_rounded_once(kernels, values, rng)


def check_rounded_once(kernels: Any, values: str, rng: Any) -> None:
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
    own_rows = kernels.rows_of(given.indptr, given.indices, given.data, 2 * k, 0)
    order = kernels.order(own_rows, "levels")
    wider = kernels.store(own_rows, order, "fp64", "fp64", "packed")
    for like in (None, wider):
        A, y = kernels.store(own_rows, order, values, "fp64", "packed", like), np.zeros(2 * k)
        kernels.matvec(y, A, halo_vector(kernels, A, order.new_to_old >= k, []))
        assert y.tolist() == exact.tolist()


@every_backend
def test_all_values_are_in_the_matrixs_format(kernels: Any) -> None:
    """Exceptions are diagonal entries and entries in columns of other ranks, which have the format of the vectors."""
    given = compressed(2, 1, [{0: math.pi, 1: math.e}, {0: -math.e, 1: math.pi, 2: math.sqrt(3)}])
    rows, exact_order = kernels.rows_of(given.indptr, given.indices, given.data, 2, 1), ORACLE.order(given, "levels")
    for values, storage in product(("fp32", *TYPES), storages_of(kernels)):
        R = ORACLE.store(given, exact_order, values, "fp64", "")
        A = kernels.store(rows, kernels.order(rows, "levels"), values, "fp64", storage)
        for x0, halo in (([1.0, 0.0], [0.0]), ([0.0, 1.0], [0.0]), ([0.0, 0.0], [1.0])):
            y, exact = np.zeros(2), np.zeros(2)
            kernels.matvec(y, A, halo_vector(kernels, A, x0, halo))
            ORACLE.matvec(exact, R, halo_vector(ORACLE, R, x0, halo))
            assert y.tolist() == exact.tolist(), (values, storage)


# --- columns that are far apart ---------------------------------------------------------------------------------


@every_host
def test_columns_further_apart_than_16_bits_can_say_are_reached(host: Any, rng: Any) -> None:
    """Row i has columns i - s and i + s with a different shift s for each row, up to 70,000."""
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
        host.sweep_from_zero(A, y, x)
        swept = own(A, x)[order.old_to_new]
        before = order.old_to_new[column] <= order.old_to_new[row]
        sums = np.bincount(row[before], (value * swept[column])[before], n)
        sizes = np.bincount(row[before], np.abs(value * swept[column])[before], n) + np.abs(exact)
        longest = int(np.bincount(row).max())
        near(sums, exact, 2 * (longest + 4) * unit("fp32") * sizes)


def here(x: Any) -> Any:
    """Return a NumPy array, also for device memory."""
    return x if isinstance(x, np.ndarray) else np.asarray(x.cpu())


def columns_of(A: Any) -> Any:
    """Return the bases and columns of slots; the pattern of a device has them as its own attributes."""
    return getattr(A.pattern, "columns", None) if isinstance(A, HostMatrix) else A.pattern


@cache
def near_and_far(n: int, last: int) -> tuple[list[dict[int, float]], Rows]:
    """Return the same matrix for every backend."""
    entries = [{i: 2.0} for i in range(n)]
    for k in range(8):
        first = 100 + 8500 * k
        for j, a in ((first, k + 1.0), (69_000 + 10 * k if k % 2 else first + 1, -0.5 * k)):
            entries[last + k][j], entries[j][last + k] = a, 1.0
    return entries, compressed(n, 0, entries)


@every_backend
def test_columns_that_15_and_16_bits_cannot_tell_apart_are_reached(kernels: Any, rng: Any) -> None:
    """Each of the last eight rows has an entry within 59,500 columns and one within 69,000; only they are read."""
    n, last = 70_000, 69_992
    entries, given = near_and_far(n, last)
    rows = kernels.rows_of(given.indptr, given.indices, given.data, n, 0)
    order = kernels.order(rows, "levels")
    A = kernels.store(rows, order, "fp8", "fp32", "packed")
    assert (here(columns_of(A).near).astype(np.int32) & 0xFFFF).max() == 59_500
    assert here(columns_of(A).far).max() == 69_070
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
    filled = 64 if s.order.row_by_row or A.storage == "rows" else 1  # for these, the last line is padded once
    assert A.lower + A.upper <= stored_values < A.lower + A.upper + filled
    assert before is None or before.tobytes() == A.entries.tobytes()


# --- single rows or slices --------------------------------------------------------------------------------------


class Invented:
    """A fake clock, and work that takes given times: each kind of work cycles through its times."""

    def __init__(self, one_by_one: tuple[float, ...], successive: tuple[float, ...]):
        self.now, self.trials = 0.0, 0
        self.times = {1: cycle(one_by_one), SUCCESSIVE: cycle(successive)}

    def perf_counter(self) -> float:
        return self.now

    def trial(self) -> Any:
        self.trials += 1
        return {way: partial(self.work, way) for way in autotune.WAYS}

    def work(self, way: int) -> None:
        self.now += next(self.times[way])

    def choice(self, monkeypatch: pytest.MonkeyPatch) -> int:
        """Return the choice of a new process."""
        monkeypatch.setattr(autotune, "_chosen", {})
        monkeypatch.setattr(autotune, "time", self)
        return autotune.rows_at_a_time("fp64", "fp64", self.trial)


@pytest.fixture
def no_choice_yet(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Use an empty folder of compiled kernels, in which no choice is stored, and return it."""
    monkeypatch.setattr(autotune, "cache_directory", lambda: tmp_path)
    return tmp_path


#: The times of single and of successive rows, and the choice.
TRIALS: list[tuple[tuple[float, ...], tuple[float, ...], int]] = [
    ((1.0,), (2.0,), 1),
    ((2.0,), (1.0,), SUCCESSIVE),
    ((0.95,), (1.0,), SUCCESSIVE),  # no gain
    ((0.88, 0.92), (1.0,), SUCCESSIVE),  # on either side of the limit
    ((1.0, 1.0, 1.0, 5.0), (2.0, 2.0, 2.0, 10.0), 1),  # a slow minute, which affects both
    ((9.0, 1.0, 1.0, 1.0, 1.0, 1.0), (2.0,), 1),  # a first round, which is not counted
]


def test_the_faster_way_to_take_rows_is_tried_once_and_kept(
    no_choice_yet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one_by_one, successive, way in TRIALS:
        with note_case(case=(one_by_one, successive)):
            clear = Invented(one_by_one, successive)
            assert [clear.choice(monkeypatch) for _ in range(3)] == [way] * 3
            assert clear.trials == 1
            assert Invented(successive, one_by_one).choice(monkeypatch) == way
            for file in no_choice_yet.iterdir():
                file.write_text("not a number")
            assert clear.choice(monkeypatch) == way
            assert clear.trials == 2
            for file in no_choice_yet.iterdir():
                file.unlink()


def test_the_choice_of_a_disturbed_trial_is_not_stored(no_choice_yet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # in two of the counted rounds, other work delays the kind that is otherwise faster
    disturbed = Invented((1.0, 1.0, 4.0, 1.0, 4.0, 1.0), (2.0,))
    assert [disturbed.choice(monkeypatch) for _ in range(2)] == [1, 1]
    assert (disturbed.trials, list(no_choice_yet.iterdir())) == (2, [])
    assert Invented((2.0,), (1.0,)).choice(monkeypatch) == SUCCESSIVE
    assert disturbed.choice(monkeypatch) == SUCCESSIVE
    assert disturbed.trials == 2


class Recorded(HostSparse):
    """Host kernels that record the matrices that they store."""

    stored: ClassVar[list[Any]] = []

    def store(self, *args: Any) -> Any:
        self.stored.append(super().store(*args))
        return self.stored[-1]


def test_a_trial_gives_work_on_a_box_that_is_stored_so() -> None:
    work = autotune.trial(Recorded, "bf16", "fp32")
    for way, columns, A in zip((1, SUCCESSIVE), (CsrColumns, SlotColumns), Recorded.stored):
        work[way]()
        assert isinstance(A.pattern.columns, columns)
        assert (A.values, A.vectors, A.storage, A.rows_at_a_time) == ("bf16", "fp32", "rows", way)


def test_uneven_rows_are_processed_individually() -> None:
    slices = sparse_kernels(SLICES)
    for name, way in (("a box alone", SUCCESSIVE), ("irregular rows", 1), ("long rows", 1), ("an arrow", 1)):
        rows = rows_of(slices, name)
        order = slices.order(rows, "natural")
        A = slices.store(rows, order, "fp64", "fp64", "rows")
        assert A.rows_at_a_time == way, name
        B = slices.store(rows, order, "bf16", "fp32", "rows", like=A)
        assert B.pattern is A.pattern

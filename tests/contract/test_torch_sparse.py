"""The sparse kernels of torch devices give what their definitions give, by torch's operations and by Triton's kernels.

These kernels are held against the reference as the host's are: with the same matrices, vectors amid NaN, and bounds
(`test_sparse_kernels`).  On the CPU the Triton kernels are interpreted, which takes milliseconds a chunk: matrices are
small, but have several chunks in a group and several groups.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from mxpeak.kernels.host.sparse import HostSparse
from mxpeak.kernels.host.team import Team
from mxpeak.kernels.torch.device import Device
from mxpeak.kernels.torch.replay import Replay
from mxpeak.kernels.torch.sparse import TorchSparse
from mxpeak.kernels.torch.sparse_matrix import narrowed
from mxpeak.layout.stencil import Box
from mxpeak.precision import PRECISIONS
from tests.contract import test_sparse_kernels as definitions
from tests.support import torch_devices
from tests.support.torch_devices import ON_GPU, Copy, array_like, tensor, torch_device

ORACLE, STORAGES, UNEQUAL, FAR_OFF = definitions.ORACLE, definitions.STORAGES, definitions.UNEQUAL, definitions.FAR_OFF
Guarded, near, operand, own, random, unit = (
    definitions.Guarded, definitions.near, definitions.operand, definitions.own, definitions.random, definitions.unit,
)  # fmt: skip
larger, magnitudes = definitions.larger, definitions.magnitudes
inherited, sweep_bound = definitions.inherited, definitions.sweep_bound


class OnArrays:
    """Kernels of tensors, for arrays: these share the tensors' memory, or are sent to a GPU and brought back."""

    def __init__(self, kernels: TorchSparse):
        self.kernels = kernels
        self._indices: list[tuple[Any, torch.Tensor]] = []

    def rows_of(self, *given: Any) -> Any:
        """Rows are made of arrays."""
        return self.kernels.rows_of(*given)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.kernels, name)

        def call(*args: Any, **named: Any) -> Any:
            sent: list[tuple[Any, Copy]] = []
            tensors = [self._tensor(value, sent) for value in args]
            result = method(*tensors, **{key: self._tensor(value, sent) for key, value in named.items()})
            for _, copy in sent:
                copy.bring_back()
            return self._array(result, sent)

        return call

    def _tensor(self, given: Any, sent: list[tuple[Any, Copy]]) -> Any:
        """The tensor that an array came from where it was one of indices: matrices know those by identity."""
        if not isinstance(given, np.ndarray) or given.dtype == np.bool_:
            return given
        for known, indices in self._indices:
            if known is given:
                return indices
        if given.dtype.kind != "f" or not ON_GPU:
            return tensor(given)
        sent.append((given, Copy(given)))
        return sent[-1][1].tensor

    def _array(self, result: Any, sent: list[tuple[Any, Copy]]) -> Any:
        """A tensor as an array; a view of what was sent as the same view of the array."""
        if not isinstance(result, torch.Tensor):
            return result
        for source, copy in sent:
            if result.untyped_storage().data_ptr() == copy.room.untyped_storage().data_ptr():
                return same_view(source, result, result.storage_offset() - copy.tensor.storage_offset())
        made = array_like(result)
        if result.dtype == torch.int32:
            self._indices.append((made, result))
        return made


def same_view(source: Any, view: torch.Tensor, offset: int) -> Any:
    """The part of an array that a tensor is of its copy."""
    if not view.numel():
        return np.empty(tuple(view.shape), source.dtype)
    start = []
    for stride in source.strides:
        first, offset = divmod(offset, stride // source.itemsize)
        start.append(slice(first, None))
    strides = [stride * source.itemsize for stride in view.stride()]
    return np.lib.stride_tricks.as_strided(source[tuple(start)], view.shape, strides)


FORMS = {
    name: OnArrays(TorchSparse(torch_device(triton), HostSparse(Team(1))))
    for name, triton in torch_devices.FORMS.items()
}
PLAIN = FORMS["torch's operations"]
every_form = pytest.mark.parametrize("kernels", FORMS.values(), ids=FORMS)
vector_types = pytest.mark.parametrize("vectors", ["fp64", "fp32"])

# --- matrices ---------------------------------------------------------------------------------------------------

#: Boxes alone and among others, and what is no stencil; the last two have several chunks in a group.
MATRICES = {
    "a small box between others": lambda: ORACLE.stencil_rows(Box(4, 3, 2, 2, 3, 2, 0, 1, 1), UNEQUAL),
    "a box with a neighbour": lambda: ORACLE.stencil_rows(Box(7, 5, 3, 1, 1, 2, 0, 0, 1), UNEQUAL),
    "a box of several chunks": lambda: ORACLE.stencil_rows(Box(18, 10, 3, 1, 2, 1, 0, 1, 0), UNEQUAL),
    "irregular rows": lambda: definitions.random_rows(230, 17, 2, 1, hubs=((17, 40), (200, 25)), alone=(0, 5, 100)),
}
#: Every storage, format of values, order and type of vectors meets several of the others.
CASES = [
    ("a small box between others", "greedy", "ell", "fp64", "fp64"),
    ("a small box between others", "natural", "packed", "fp8", "fp32"),
    ("a box with a neighbour", "jpl", "sell", "fp16", "fp64"),
    ("a small box between others", "jpl", "packed", "bf16", "fp64"),
    ("a box of several chunks", "greedy", "packed", "bf16", "fp32"),
    ("a box of several chunks", "greedy", "sell", "fp32", "fp32"),
    ("irregular rows", "greedy", "packed", "fp32", "fp64"),
    ("irregular rows", "jpl", "ell", "fp16", "fp32"),
]
every_case = pytest.mark.parametrize("case", CASES, ids=[" ".join(case) for case in CASES])


@cache
def rows_of(name: str) -> Any:
    rows = MATRICES[name]()
    return PLAIN.rows_of(rows.indptr, rows.indices, rows.data, rows.n, rows.halo)


@cache
def order_of(name: str, kind: str) -> Any:
    return PLAIN.order(rows_of(name), kind)


@cache
def stored(form: str, case: tuple[str, ...]) -> Any:
    name, kind, storage, values, vectors = case
    return FORMS[form].store(rows_of(name), order_of(name, kind), values, vectors, storage)


class Example:
    """A matrix as the reference and as every form have it; b, x and the halo."""

    def __init__(self, case: tuple[str, ...]):
        name, kind, _, values, self.vectors = case
        self.R = R = ORACLE.store(rows_of(name), order_of(name, kind), values, self.vectors, "")
        self.forms = [(kernels, stored(form, case)) for form, kernels in FORMS.items()]
        self.u, rng = unit(self.vectors), np.random.default_rng(R.n)
        self.b, self.x, self.halo = (random(rng, size, self.vectors) for size in (R.n, R.n, R.halo))

    def fresh(self, kernels: Any, A: Any, fill: Any = None) -> Any:
        return operand(kernels, A, self.x if fill is None else fill, self.halo)

    def b_amid_nan(self) -> Guarded:
        return Guarded(self.R.n, self.vectors, self.b)

    def bound(self, exact: Any, *, backward: bool = False) -> Any:
        largest = np.concatenate([larger(exact, self.x), np.abs(self.halo)])
        return sweep_bound(self.R, self.b, largest, self.u, backward=backward)


# --- set-up -----------------------------------------------------------------------------------------------------


@every_case
def test_a_stored_matrix_says_what_the_hosts_says(case: tuple[str, ...]) -> None:
    name, kind, storage, values, vectors = case
    exact = HostSparse(Team(1)).store(rows_of(name), order_of(name, kind), values, vectors, storage)
    for _, A in Example(case).forms:
        for what in ("n", "halo", "nnz", "foreign", "lower", "upper", "values", "vectors", "storage", "index_bytes"):
            assert getattr(A, what) == getattr(exact, what)
        assert A.bytes >= A.index_bytes + PRECISIONS[values].bytes * (A.lower + A.upper) + A.diagonal.nbytes


@every_form
def test_forms_of_a_matrix_share_what_is_equal_in_both(kernels: Any) -> None:
    name = "a small box between others"
    rows, order = rows_of(name), order_of(name, "greedy")
    first = kernels.store(rows, order, "fp64", "fp64", "packed")
    same = kernels.store(rows, order, "fp64", "fp32", "packed", like=first)
    narrow = kernels.store(rows, order, "bf16", "fp32", "packed", like=first)
    others = kernels.store(rows, order, "bf16", "fp32", "sell", like=first)
    assert same.entries is first.entries
    assert same.pattern is narrow.pattern is first.pattern
    assert same.bytes_beside(first) == same.bytes - first.pattern.bytes - first.entries.nbytes
    assert narrow.bytes_beside(first) == narrow.bytes - first.pattern.bytes
    assert others.bytes_beside(first) == others.bytes
    alone = kernels.store(rows, order, "bf16", "fp32", "packed")
    for what in ("entries", "diagonal", "outside"):
        assert getattr(narrow, what).tolist() == getattr(alone, what).tolist()
    assert same.diagonal.dtype == narrow.outside.dtype == torch.float32


@pytest.mark.parametrize("values", ["fp32", "bf16", "fp16", "fp8"])
def test_fp64_entries_are_narrowed_to_what_the_host_makes_of_them(values: str, rng: Any) -> None:
    """Also just beside the middle of two numbers, and where the narrow format has subnormal numbers only."""
    u, smallest = PRECISIONS[values].u, 2.0**-9 if values == "fp8" else 2.0**-24
    middles = np.concatenate([1 + (2 * np.arange(50) + 1) * u, smallest * (np.arange(40) + 0.5)])
    beside = np.concatenate([middles, middles * (1 + 2.0**-50), middles * (1 - 2.0**-50), rng.uniform(-4, 4, 500)])
    a = np.concatenate([beside, -beside, [0.0, -0.0, PRECISIONS[values].largest]])
    exact = torch.from_numpy(HostSparse(Team(1))._narrowed(a, values))
    found = narrowed(tensor(a), values)
    assert found.view(torch.uint8).tolist() == exact.view(torch.uint8).tolist()


@every_form
def test_row_numbers_and_sums_are_the_references(kernels: Any) -> None:
    box = Box(8, 6, 4, 1, 2, 1, 0, 1, 0)
    fine, half = (kernels.stencil_rows(one, UNEQUAL) for one in (box, box.coarser()))
    for kind, other in (("greedy", "jpl"), ("natural", "greedy")):
        order, coarse = kernels.order(fine, kind), kernels.order(half, other)
        assert kernels.coarse_rows(order, coarse, box).tolist() == ORACLE.coarse_rows(order, coarse, box).tolist()
        numbers = [5, 0, 17, 5]
        assert kernels.reordered(order, kernels.indices(numbers)).tolist() == [order.inverse[i] for i in numbers]
        near(kernels.row_sums(fine, order), ORACLE.row_sums(fine, order), 27 * 64 * unit("fp64"))
    assert kernels.kernels.threads == 1


# --- vectors and bases: the host's own tests, which ask for what the definitions say --------------------------------


@every_form
@vector_types
@pytest.mark.parametrize("n", [0, 1, 513, 7000])
def test_vectors_are_combined_as_their_definitions_say(kernels: Any, n: int, vectors: str, rng: Any) -> None:
    definitions.test_vectors_are_combined_as_their_definitions_say(kernels, n, vectors, rng)
    definitions.test_entries_are_taken_from_places_and_added_there(kernels, n, vectors, rng)
    definitions.test_vectors_of_two_types_meet(kernels, n, rng)


@every_form
@vector_types
def test_the_largest_distance_is_nan_wherever_one_is(kernels: Any, vectors: str) -> None:
    definitions.test_the_largest_distance_is_nan_wherever_one_is(kernels, 600, vectors)


@every_form
@vector_types
@pytest.mark.parametrize(("n", "k"), [(0, 3), (5, 0), (301, 1), (1601, 8), (1601, 30), (700, 31)])
def test_bases_are_projected_and_combined(kernels: Any, n: int, k: int, vectors: str, rng: Any) -> None:
    definitions.test_bases_are_projected_and_combined(kernels, n, k, vectors, rng)


@every_form
@pytest.mark.parametrize("k", [64, 65, 150])
def test_many_vectors_are_projected_and_subtracted(kernels: Any, k: int, rng: Any) -> None:
    n = 40
    Q, exact_Q = kernels.basis(n, k, "fp64"), ORACLE.basis(n, k, "fp64")
    for basis in (Q, exact_Q):
        basis[:] = np.random.default_rng(k).uniform(-1.0, 1.0, (k, n))
    w, h = random(rng, n, "fp64"), rng.uniform(-1.0, 1.0, k)
    step = 2 * (k + 3) * unit("fp64") * (1 + np.abs(h).sum())  # k products and sums
    found, exact = w.copy(), w.copy()
    sums, exact_sums = kernels.subtract_and_project(Q, k, found, h), ORACLE.subtract_and_project(exact_Q, k, exact, h)
    near(found, exact, step)
    near(sums, exact_sums, 2 * n * (step + unit("fp64") * np.abs(exact).sum()))
    found = w.copy()
    square = kernels.subtract_and_square(Q, k, found, h)
    near(found, exact, step)
    assert square == pytest.approx(float(exact @ exact), rel=0, abs=3 * n * step * np.abs(exact).max())


@every_form
def test_what_is_assigned_may_be_a_number_a_list_an_array_or_a_tensor(kernels: Any) -> None:
    x = kernels.vector(3, "fp32")
    for given, exact in ((0.1, [np.float32(0.1)] * 3), ([1, 2.5, 3], [1, 2.5, 3]), (np.arange(3) > 0, [0, 1, 1]),
                         (torch.arange(3), [0, 1, 2]), (np.float32(2), [2, 2, 2])):  # fmt: skip
        kernels.assign(x, given)
        assert x.tolist() == exact


# --- sweeps -----------------------------------------------------------------------------------------------------


@every_case
def test_sweeps_are_the_references_in_one_and_in_two_halves(case: tuple[str, ...]) -> None:
    s = Example(case)
    for backward in (False, True):
        exact = s.fresh(ORACLE, s.R)
        ORACLE.relax(s.R, s.b, exact, backward=backward)
        bound = s.bound(exact[: s.R.n], backward=backward)
        for kernels, A in s.forms:
            x, halves, b = s.fresh(kernels, A), s.fresh(kernels, A, s.x), s.b_amid_nan()
            kernels.relax(A, b.inner, x, backward=backward)
            near(own(kernels, A, x), exact[: s.R.n], bound)
            assert (kernels.halo(A, x) == s.halo).all()
            kernels.assign(kernels.halo(A, halves), FAR_OFF)
            kernels.relax(A, b.inner, halves, late=False, backward=backward)
            kernels.assign(kernels.halo(A, halves), s.halo)
            kernels.relax(A, b.inner, halves, late=True, backward=backward)
            assert halves.tolist() == x.tolist()
            assert (b.checked() == s.b).all()


@every_case
def test_what_sweeps_from_zero_and_others_keep_serves_the_backward_one(case: tuple[str, ...]) -> None:
    s = Example(case)
    for from_zero in (False, True):
        exact = s.fresh(ORACLE, s.R, 0.0 if from_zero else None)
        if from_zero:
            ORACLE.assign(ORACLE.halo(s.R, exact), 0.0)
        ORACLE.relax(s.R, s.b, exact)
        forward = exact[: s.R.n].copy()
        ORACLE.relax(s.R, s.b, exact, backward=True)
        bound = s.bound(forward)
        again = s.bound(larger(forward, exact[: s.R.n]), backward=True) + inherited(s.R, bound)
        for kernels, A in s.forms:
            x, keep, b = s.fresh(kernels, A, FAR_OFF if from_zero else None), Guarded(A.n, s.vectors), s.b_amid_nan()
            kernels.relax(A, b.inner, x, from_zero=from_zero, keep=keep.inner)
            near(own(kernels, A, x), forward, bound)
            assert np.isfinite(keep.checked()).all()
            kernels.relax(A, b.inner, x, backward=True, keep=keep.inner)
            near(own(kernels, A, x), exact[: s.R.n], again)
            assert (b.checked() == s.b).all()


# --- products and residuals -------------------------------------------------------------------------------------


@every_case
def test_products_are_the_references_in_one_and_in_two_halves(case: tuple[str, ...]) -> None:
    s = Example(case)
    given = s.fresh(ORACLE, s.R)
    inside, whole, bound = np.zeros(s.R.n), np.zeros(s.R.n), s.u * magnitudes(s.R, given)
    ORACLE.multiply(s.R, given, inside, outside=False)
    ORACLE.multiply(s.R, given, whole)
    for kernels, A in s.forms:
        x, y, z = s.fresh(kernels, A), Guarded(A.n, s.vectors), Guarded(A.n, s.vectors)
        kernels.multiply(A, x, y.inner)
        near(y.checked(), whole, bound)
        kernels.assign(kernels.halo(A, x), FAR_OFF)
        kernels.multiply(A, x, z.inner, outside=False)
        near(z.checked(), inside, bound)
        kernels.assign(kernels.halo(A, x), s.halo)
        kernels.multiply(A, x, z.inner, outside=True)
        assert z.checked().tolist() == y.checked().tolist()


@every_case
def test_residuals_at_some_rows_are_the_references(case: tuple[str, ...]) -> None:
    s = Example(case)
    n = s.R.n
    for picked in (np.random.default_rng(1).permutation(n)[: n // 9 + 1], np.arange(0)):
        exact, given = np.zeros(len(picked)), s.fresh(ORACLE, s.R)
        ORACLE.residual_at(s.R, s.b, given, picked, exact, swept=False)
        bound = s.u * magnitudes(s.R, given, s.b)[picked]
        for kernels, A in s.forms:
            rows, x, b = kernels.indices(picked.tolist()), s.fresh(kernels, A), s.b_amid_nan()
            whole, halves = Guarded(len(picked), s.vectors), Guarded(len(picked), s.vectors)
            kernels.residual_at(A, b.inner, x, rows, whole.inner, swept=False)
            near(whole.checked(), exact, bound)
            kernels.assign(kernels.halo(A, x), FAR_OFF)
            kernels.residual_at(A, b.inner, x, rows, halves.inner, swept=False, outside=False)
            kernels.assign(kernels.halo(A, x), s.halo)
            kernels.residual_at(A, b.inner, x, rows, halves.inner, swept=False, outside=True)
            assert halves.checked().tolist() == whole.checked().tolist()


@every_case
def test_after_a_sweep_from_zero_the_residual_needs_u_alone(case: tuple[str, ...]) -> None:
    s = Example(case)
    n = s.R.n
    picked = np.random.default_rng(2).permutation(n)[: n // 2 + 1]
    for kernels, A in s.forms:
        x, rows = s.fresh(kernels, A), kernels.indices(picked.tolist())
        kernels.relax(A, s.b, x, from_zero=True)
        exact, found = np.zeros(len(picked)), Guarded(len(picked), s.vectors)
        ORACLE.residual_at(s.R, s.b, x, picked, exact, swept=False)
        kernels.residual_at(A, Guarded(n, s.vectors).inner, x, rows, found.inner, swept=True)
        near(found.checked(), exact, 2 * s.u * magnitudes(s.R, x, s.b)[picked])  # (D + L) x is b up to rounding


@every_form
def test_columns_that_15_and_16_bits_cannot_tell_apart_are_reached(kernels: Any, rng: Any) -> None:
    """The last eight rows have an entry each within 59 500 columns, and one within 69 000; only they are asked for."""
    n, last = 70_000, 69_992
    entries = [{i: 2.0} for i in range(n)]
    for k in range(8):
        first = 100 + 8500 * k
        for j, a in ((first, k + 1.0), (69_000 + 10 * k if k % 2 else first + 1, -0.5 * k)):
            entries[last + k][j], entries[j][last + k] = a, 1.0
    given = definitions.compressed(n, 0, entries)
    rows = kernels.rows_of(given.indptr, given.indices, given.data, n, 0)
    order = kernels.order(rows, "natural")
    A = kernels.store(rows, order, "fp8", "fp32", "packed")
    assert (A.pattern.near.to(torch.int32) & 0xFFFF).max() == 59_500
    assert A.pattern.far.max() == 69_070
    x0 = rng.integers(-8, 9, n).astype(float)
    asked, r = kernels.reordered(order, kernels.indices(range(last, n))), kernels.vector(8, "fp32")
    x, b = operand(kernels, A, x0[order.places], []), kernels.vector(n, "fp32")
    kernels.residual_at(A, b, x, asked, r, swept=False)
    assert r.tolist() == [-sum(a * x0[j] for j, a in entries[last + k].items()) for k in range(8)]  # nothing is rounded


# --- formats ----------------------------------------------------------------------------------------------------


@every_form
@vector_types
def test_every_number_of_fp8_is_read_as_it_is(kernels: Any, vectors: str) -> None:
    definitions.test_every_number_of_a_narrow_format_is_read_as_it_is(kernels, "fp8", vectors)


@every_form
@pytest.mark.parametrize("values", ["bf16", "fp16"])
def test_numbers_of_sixteen_bits_are_read_as_they_are(kernels: Any, values: str) -> None:
    """The largest, the smallest (of bf16 the smallest that the interpreter knows), and some between."""
    format_ = PRECISIONS[values]
    smallest = 2.0**-24 if values == "fp16" else 2.0**-126
    numbers = [format_.largest, -format_.largest, 1 + 2 * format_.u, smallest, -3 * smallest, 0.0, -1.5]
    k = len(numbers)
    given = definitions.compressed(2 * k, 0, [{i: 1.0, k + i: a} for i, a in enumerate(numbers)]
                                   + [{k + i: 1.0, i: 0.0} for i in range(k)])  # fmt: skip
    rows = kernels.rows_of(given.indptr, given.indices, given.data, 2 * k, 0)
    for storage in STORAGES:
        order = kernels.order(rows, "greedy")
        A = kernels.store(rows, order, values, "fp64", storage)
        x, y = kernels.operand(A), kernels.vector(2 * k, "fp64")
        kernels.assign(kernels.own(A, x), order.places >= k)
        kernels.multiply(A, x, y)
        assert y[order.inverse][:k].tolist() == numbers


@every_form
def test_reading_a_matrix_tells_how_many_bytes_its_values_take(kernels: Any) -> None:
    A = kernels.store(rows_of("irregular rows"), order_of("irregular rows", "greedy"), "bf16", "fp32", "packed")
    assert kernels.read_all(A) == 2 * (A.lower + A.upper)


@every_form
def test_a_matrix_without_rows_takes_all_operations(kernels: Any) -> None:
    rows = kernels.rows_of([0], [], [], 0, 0)
    A = kernels.store(rows, kernels.order(rows, "greedy"), "bf16", "fp32", "packed")
    x, b, nowhere = kernels.operand(A), kernels.vector(0, "fp32"), kernels.indices([])
    for from_zero, backward in product((False, True), repeat=2):
        kernels.relax(A, b, x, from_zero=from_zero, backward=backward)
    kernels.multiply(A, x, b)
    kernels.residual_at(A, b, x, nowhere, b, swept=False)
    assert (A.nnz, A.lower, A.upper, kernels.read_all(A), x.any()) == (0, 0, 0, 0, False)


# --- replaying --------------------------------------------------------------------------------------------------


class FakeRecorder:
    """Counts what is recorded, and replays by calling."""

    def __init__(self) -> None:
        self.busy, self.recorded, self.replayed = False, 0, 0

    def is_busy(self) -> bool:
        return self.busy

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            work()

        return replay


def test_work_is_run_then_recorded_then_replayed_and_what_is_not_used_is_forgotten() -> None:
    recorder, done = FakeRecorder(), []
    replay = Replay(recorder, most=2)

    def run(*keys: str) -> tuple[int, int, int]:
        for key in keys:
            replay(key, lambda key=key: done.append(key))
        return len(done), recorder.recorded, recorder.replayed

    assert run("a") == (1, 0, 0)
    assert run("a") == (2, 1, 1)
    assert run("a", "a") == (4, 1, 3)
    assert run("b", "a", "c") == (7, 1, 4)  # b, used longest ago, makes room
    assert run("a", "b") == (9, 1, 5)  # and c does for b
    assert run("b") == (10, 2, 6)
    assert run("c") == (11, 2, 6)
    recorder.busy = True  # part of somebody else's graph
    assert run("b", "new", "new") == (14, 2, 6)
    assert done == ["a", "a", "a", "a", "b", "a", "c", "a", "b", "b", "c", "b", "new", "new"]


def test_without_a_recorder_work_is_only_run() -> None:
    done: list[int] = []
    replay = Replay(None)
    for k in range(3):
        replay("always", lambda k=k: done.append(k))
    assert done == [0, 1, 2]


def test_operations_are_told_apart_by_their_vectors_and_by_what_they_do() -> None:
    """Each is called three times with each of two sets of vectors: once run, once recorded, twice replayed."""
    device, name = Device(torch.device("cpu"), triton=False), "a small box between others"
    kernels = TorchSparse(device, HostSparse(Team(1)))
    kernels._recorder = recorder = FakeRecorder()
    A = kernels.store(rows_of(name), order_of(name, "greedy"), "fp64", "fp64", "packed")
    rows = kernels.indices([1, 5])
    vectors = [(kernels.vector(A.n, "fp64"), kernels.operand(A), kernels.vector(A.n, "fp64")) for _ in range(2)]
    for _ in range(3):
        for b, x, y in vectors:
            kernels.relax(A, b, x, from_zero=True)
            kernels.relax(A, b, x, from_zero=True, keep=y)
            kernels.relax(A, b, x, backward=True, keep=y)
            kernels.relax(A, b, x, late=True)
            kernels.multiply(A, x, y, outside=False)
            kernels.multiply(A, x, y, outside=True)
            kernels.residual_at(A, b, x, rows, y[:2], swept=True, outside=False)
            kernels.residual_at(A, b, x, rows, y[:2], swept=False, outside=False)
    assert (recorder.recorded, recorder.replayed) == (2 * 8, 2 * 2 * 8)

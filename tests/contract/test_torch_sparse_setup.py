"""Compare the rows, orders and chunks of a device with those of the host, and test where the host waits."""

from __future__ import annotations

import weakref
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mxpeak.bench import stencil_sizes
from mxpeak.bench.stencil_sizes import INDEX_BYTES, PACKED_BYTES, PIECE, SETUP_BYTES, HierarchySize, memory_need
from mxpeak.kernels.contract.sparse import Order, Part, Rows
from mxpeak.kernels.torch.engine.device import TYPES, Device
from mxpeak.kernels.torch.sparse import chunk_format
from mxpeak.kernels.torch.sparse import rows as sparse_rows
from mxpeak.kernels.torch.sparse.rows import halo_of
from mxpeak.kernels.torch.sparse.setup import TorchSparseSetup
from mxpeak.kernels.torch.sparse.steps import marked
from mxpeak.layout.stencil import STENCIL, Box
from tests.support.notes import note_case
from tests.support.on_arrays import HOSTS
from tests.support.queues import runs
from tests.support.queues.log import HOST, Wait
from tests.support.sparse_matrices import BOXES, CHUNKS, KINDS, MATRICES, UNEQUAL, order_of, rows_of
from tests.support.torch_devices import array, torch_device

SIDES = (Box(5, 7, 3, 2, 3, 2, 0, 1, 1), Box(1, 1, 1), Box(2, 1, 4, 1, 1, 2), Box(9, 1, 1, 2, 1, 1, 1, 0, 0))
#: The number of rows or entries that are processed together: all of them, or a few, which gives many pieces.
PIECES = (2**19, 700)
#: Matrices that are cut into many pieces: the rows of a box with a neighbor, and irregular ones.
IN_PIECES = ("a box of several chunks", "irregular rows")


def setup() -> TorchSparseSetup:
    return TorchSparseSetup(torch_device(), HOSTS[0].threads, lambda: HOSTS[0])


def same(actual: Any, exact: Any) -> None:
    """Check that arrays have equal numbers and the same type."""
    actual = array(actual)
    assert actual.dtype == exact.dtype
    assert np.array_equal(actual, exact)


def test_the_stencils_rows_are_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    for piece, box in product(PIECES, (*BOXES.values(), *SIDES)):
        monkeypatch.setattr(sparse_rows, "PIECE", piece)
        with note_case(case=(piece, box)):
            rows, exact = setup().stencil_rows(box, UNEQUAL), HOSTS[0].stencil_rows(box, UNEQUAL)
            assert (rows.n, rows.halo) == (exact.n, exact.halo)
            for part in ("indptr", "indices", "data"):
                same(getattr(rows, part), getattr(exact, part))


def test_orders_of_rows_on_the_device_are_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [*product(MATRICES, PIECES[:1]), *product(IN_PIECES, PIECES[1:])]
    for (name, piece), kind in product(cases, KINDS):
        monkeypatch.setattr(sparse_rows, "PIECE", piece)
        with note_case(case=(name, kind, piece)):
            order, exact = setup().order(on_device(rows_of(HOSTS[0], name)), kind), order_of(HOSTS[0], name, kind)
            assert order.kind == kind
            same(order.starts, exact.starts)
            same(order.new_to_old, exact.new_to_old)
            same(order.old_to_new, exact.old_to_new)


def test_triton_makes_the_same_rows_and_puts_them_in_the_same_order() -> None:
    """Test more and fewer rows than a program has, neighbors on some and on all sides, and short and long lines."""
    device = torch_device(triton=True)
    from mxpeak.kernels.torch.triton.sparse_rows import groups, make_rows

    for box in (*SIDES, Box(3, 2, 4), Box(4, 3, 3, 3, 3, 3, 1, 1, 1), Box(34, 1, 2, 2, 1, 1)):
        with note_case(case=box):
            exact = HOSTS[0].stencil_rows(box, UNEQUAL)
            indptr, halo, weights = (device.tensor(part) for part in (exact.indptr, halo_of(box), np.array(UNEQUAL)))
            indices = torch.full((len(exact.indices),), -7, dtype=torch.int32, device=device.where)
            data = device.empty(len(exact.data))
            make_rows(indptr, halo, weights, indices, data, box)
            same(indices, exact.indices)
            same(data, exact.data)
            for kind in ("greedy", "levels"):
                found, order = groups(indptr, indices, 27, levels=kind == "levels"), HOSTS[0].order(exact, kind)
                group = np.searchsorted(order.starts, order.old_to_new, side="right") - 1
                same(found, group)


def on_device(rows: Rows) -> Rows:
    device = torch_device()
    return Rows(rows.n, rows.halo, *(device.tensor(part) for part in (rows.indptr, rows.indices, rows.data)))


def ordered(rows: Rows, order: Order) -> chunk_format.DeviceRows:
    device = torch_device()
    there = Order(device.tensor(order.new_to_old), device.tensor(order.old_to_new), order.starts, order.kind)
    return chunk_format.DeviceRows(on_device(rows), there)


def test_chunks_their_columns_and_values_are_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test each matrix in every order and storage; each order has another storage, and the value formats rotate."""
    cases = [*product(MATRICES, PIECES[:1]), *product(IN_PIECES, PIECES[1:])]
    for at, ((name, piece), kind) in enumerate(product(cases, ("greedy", "jpl", "levels"))):
        storage, values = CHUNKS[(at + at // 3) % 3], ("fp64", "bf16", "fp8", "fp32")[at % 4]
        monkeypatch.setattr(chunk_format, "PIECE", piece)
        with note_case(case=(name, kind, storage, values, piece)):
            rows, order = rows_of(HOSTS[0], name), order_of(HOSTS[0], name, kind)
            exact, here = HOSTS[0].store(rows, order, values, "fp64", storage), ordered(rows, order)
            packed = chunk_format.packed(here, order.starts, storage, values)
            columns = exact.pattern.columns
            same(packed.table, columns.table)
            same(packed.bases, columns.bases)
            same(packed.near, columns.near.view(np.int16))
            same(packed.far, columns.far)
            same(packed.entries.view(torch.uint8), exact.entries.view(np.uint8))
            same(chunk_format.diagonal_of(here, TYPES["fp64"]), exact.diagonal)
            H = chunk_format.halo_of(here, TYPES["fp64"])
            for part, of_host in zip(H, (*exact.pattern.halo, exact.halo_entries)):
                same(part, of_host)
            of_host = (exact.pattern.steps[Part.BOUNDARY], exact.pattern.from_zero[Part.BOUNDARY])
            for backward, steps in zip((False, True), of_host):
                chunks = marked(here, packed.table, packed.group, H[0], backward=backward)
                assert chunks.nonzero().view(-1).tolist() == sorted(steps.chunks.tolist())


def test_a_row_without_a_diagonal_entry_has_a_zero_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows exchange two unknowns, and the memory contained other numbers before."""

    def used(shape: Any, dtype: Any = float, **options: Any) -> Any:
        result = np.zeros(shape, dtype, **options)
        if result.dtype.kind == "f":
            result.fill(np.nan)
        return result

    n = 64
    partner = np.arange(n) ^ 1
    rows = HOSTS[0].rows_of(np.arange(n + 1), partner, np.ones(n), n, 0)
    order = HOSTS[0].order(rows, "greedy")
    HOSTS[0].store(rows, order, "fp64", "fp64", "sell")  # compiled before NumPy is changed
    monkeypatch.setattr(np, "empty", used)
    assert HOSTS[0].store(rows, order, "fp64", "fp64", "sell").diagonal.tolist() == [0.0] * n
    assert array(chunk_format.diagonal_of(ordered(rows, order), TYPES["fp64"])).tolist() == [0.0] * n


# --- memory


class Peak(TorchDispatchMode):
    """Records the peak memory of the tensors that were created in this context, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self.now = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for output in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(output, torch.Tensor) and (key := output.untyped_storage()._cdata) not in self._known:
                self._known[key] = output.untyped_storage().nbytes()
                weakref.finalize(output.untyped_storage(), self._gone, key)
                self.now += self._known[key]
                self.peak = max(self.peak, self.now)
        return result

    def _gone(self, key: int) -> None:
        self.now -= self._known.pop(key)


@pytest.mark.parametrize(("storage", "piece"), [("ell", 2**22), ("sell", 2**16), ("packed", 2**22), ("packed", 2**16)])
def test_the_set_up_takes_no_more_memory_than_the_formula(
    storage: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Store the inner box of a grid, in one piece and in several: first the rows, then the chunks in addition."""
    assert chunk_format.PIECE == PIECE
    assert STENCIL * sparse_rows.PIECE <= PIECE
    box = Box(24, 24, 24, 3, 3, 3, 1, 1, 1)
    for module, name, value in ((chunk_format, "PIECE", piece), (stencil_sizes, "PIECE", piece)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(sparse_rows, "PIECE", piece // STENCIL)
    kernels = TorchSparseSetup(Device(torch.device("cpu"), triton=True), HOSTS[0].threads, lambda: HOSTS[0])
    form = HierarchySize((8,), 8, index_bytes=PACKED_BYTES if storage == "packed" else INDEX_BYTES, joined=True)
    need = memory_need(box, [form])
    with Peak() as making:
        rows = kernels.stencil_rows(box, UNEQUAL)
    order = kernels.order(rows, "greedy")
    with Peak() as packing:
        stored = kernels.store(rows, order, "fp64", "fp64", storage)
    assert stored.bytes <= 1.1 * need["matrix"]
    entries = SETUP_BYTES * STENCIL * box.rows
    assert making.peak <= need["setup"] + need["matrix"]
    assert packing.peak + entries <= need["setup"] + need["matrix"]
    assert packing.peak + entries > 0.7 * need["setup"]


# --- on virtual queues


def numbers(body: Any) -> tuple[Any, int]:
    """Return the result of `body` on a virtual GPU, and the number of times that the host waits for a number."""
    (result,), (log,) = runs.played(1, "mpi", lambda comm: body(runs.kernels_here().sparse))
    return result, sum(isinstance(one, Wait) and one.actor == HOST and one.number for one in log.records)


def test_rows_are_made_without_a_wait_and_orders_with_two_for_each_front() -> None:
    box = Box(6, 5, 4, 1, 1, 2)
    levels = HOSTS[0].order(HOSTS[0].stencil_rows(box, UNEQUAL), "levels").groups

    def rows_alone(kernels: Any) -> None:
        kernels.stencil_rows(box, UNEQUAL)

    def ordered_too(kernels: Any) -> Any:
        order = kernels.order(kernels.stencil_rows(box, UNEQUAL), "greedy")
        return order.groups

    assert numbers(rows_alone)[1] == 0
    groups, waits = numbers(ordered_too)
    assert groups == 8
    # the longest row, the first front, the number of colors, and their first rows; no wait for the empty front
    assert waits == 2 * levels - 1 + 4


def test_a_matrix_is_stored_with_waits_that_do_not_grow_with_it() -> None:
    """The larger matrix has eight times the rows: some waits occur only with few chunks, or per level of chunks."""
    counts = []
    for box in (Box(8, 8, 8, 1, 1, 2), Box(16, 16, 16, 1, 1, 2)):
        order = HOSTS[0].order(HOSTS[0].stencil_rows(box, UNEQUAL), "greedy")

        def stored(kernels: Any, box: Box = box, order: Order = order) -> Any:
            return kernels.store(kernels.stencil_rows(box, UNEQUAL), order, "bf16", "fp32", "packed").nnz

        nnz, waits = numbers(stored)
        assert nnz == HOSTS[0].stencil_rows(box, UNEQUAL).indptr[-1]
        counts.append(waits)
    assert counts[1] < 1.25 * counts[0]

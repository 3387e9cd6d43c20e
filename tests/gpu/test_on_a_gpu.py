"""Test graphs, streams, clock and memory of a GPU, and rows that are far apart in its memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from time import perf_counter

import numpy as np
import pytest

if not os.environ.get("CI"):  # there, a missing torch is a failure
    pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

from mxpeak.comm.transports.threads import run_ranks
from mxpeak.distributed.spaces import zeros
from mxpeak.errors import ResourceError
from mxpeak.kernels.choose import device_failure
from mxpeak.kernels.contract.norms import Tile
from mxpeak.kernels.contract.sparse import Part
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.host.sparse.sparse import HostSparse
from mxpeak.kernels.torch.engine.device import TYPES, Device, count, open_device
from mxpeak.kernels.torch.engine.messages import StagedTensors
from mxpeak.kernels.torch.kernels import TorchKernels
from mxpeak.kernels.torch.sparse.sparse import TorchSparse
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.index_map import consecutive
from mxpeak.layout.stencil import Box
from mxpeak.layout.structure import WHOLE
from mxpeak.spans import Spans
from tests.gpu.factors import FACTORS
from tests.support.blocks import STORED, globals_of, within
from tests.support.generated import KINDS, entries_of, slack
from tests.support.sparse_matrices import CLASSIC, UNEQUAL
from tests.support.tensor_checks import check_tensors, nothing, numbers, same
from tests.support.torch_devices import FORMS, ON_GPU, WHERE, array, torch_device

pytestmark = pytest.mark.skipif(not ON_GPU, reason="for a GPU: TEST_DEVICE=cuda")

#: Clock cycles of a GPU: some hundredths of a second.
LONG = 100_000_000
#: The number of entries between rows: row 33 begins beyond 2^31 entries.
APART = 2**26 + 32


@pytest.fixture(params=FORMS.values(), ids=FORMS)
def device(request: pytest.FixtureRequest) -> Device:
    return torch_device(request.param)


@pytest.fixture
def kernels(device: Device) -> TorchKernels:
    return TorchKernels(device, HostKernels(2))


def sleep() -> None:
    """Keep the current stream busy."""
    torch.cuda._sleep(LONG)


# --- graphs


class Sweeps:
    """Operations on a sparse matrix that are recorded, or never recorded if `launched`."""

    def __init__(self, device: Device, weights: tuple[float, ...] = UNEQUAL, *, launched: bool = False):
        self.kernels = TorchSparse(device, 1, lambda: HostSparse(Team(1)))
        if launched:
            self.kernels._recorder = None
        rows = self.kernels.stencil_rows(Box(18, 10, 6, 1, 2, 1, 0, 1, 0), weights)
        self.A = self.kernels.store(rows, self.kernels.order(rows, "greedy"), "bf16", "fp64", "packed")
        self.rows = self.kernels.xp.asarray([1, 5, 700], dtype=torch.int32)

    def vectors(self) -> list[torch.Tensor]:
        """Return new vectors, x first."""
        n = self.A.n
        return [self.kernels.halo_vector(self.A), *(zeros(self.kernels, size, "fp64") for size in (n, n, n, 3))]

    def done(self, seed: int, vectors: list[torch.Tensor]) -> list[list[float]]:
        """Return the vectors after the operations on random numbers."""
        kernels, A, rng = self.kernels, self.A, np.random.default_rng(seed)
        x, b, kept, y, r = vectors
        b[:] = kernels.xp.asarray(rng.uniform(-1.0, 1.0, A.n))
        x[A.n : A.n + A.halo] = kernels.xp.asarray(rng.uniform(-1.0, 1.0, A.halo))
        kernels.sweep_from_zero(A, b, x, keep=kept)
        kernels.residual_at(A, b, x, self.rows, r, swept=True)
        kernels.sweep_backward(A, kept, x)
        kernels.sweep_forward(A, b, x, part=Part.INTERIOR)
        kernels.sweep_forward(A, b, x, part=Part.BOUNDARY)
        kernels.matvec(y, A, x)
        return [vector.tolist() for vector in vectors]

    @property
    def recorded(self) -> int:
        return sum(graph is not None for graph in self.A.replay._graphs.values())


def test_what_is_replayed_has_the_bits_of_launches(device: Device) -> None:
    replayed, launched = Sweeps(device), Sweeps(device, launched=True)
    exact, vectors = launched.done(1, launched.vectors()), replayed.vectors()
    assert np.isfinite(np.concatenate(exact)).all()
    for _ in range(4):
        assert replayed.done(1, vectors) == exact
    assert (replayed.recorded, launched.recorded) == (6, 0)


def test_a_vector_at_the_address_of_one_that_is_gone_is_not_taken_for_it(device: Device) -> None:
    """This also holds for two matrices whose vectors alternately have the same addresses."""
    pairs = [(Sweeps(device, weights), Sweeps(device, weights, launched=True)) for weights in (UNEQUAL, CLASSIC)]
    for seed in range(5):
        for replayed, launched in pairs:
            exact = launched.done(seed, launched.vectors())
            assert replayed.done(seed, replayed.vectors()) == exact
    assert all(replayed.recorded for replayed, _ in pairs), "no address came back"


# --- streams


def in_one_stream(kernels: TorchKernels) -> TorchKernels:
    """Make the kernels run all operations in one stream."""
    kernels.beside, kernels.join = nullcontext, lambda: None  # type: ignore[method-assign]
    return kernels


@pytest.mark.parametrize("name", FACTORS)
def test_look_ahead_on_two_streams_computes_what_one_stream_does(device: Device, name: str) -> None:
    factors, bound = FACTORS[name]

    def kernels_of(turn: int) -> TorchKernels:
        kernels = TorchKernels(device, HostKernels(2))
        return kernels if turn else in_one_stream(kernels)

    n, nb = 1531, 128
    single, *two = (factors(kernels_of(turn), n, nb, 1) for turn in range(4))
    for other in two:
        assert np.array_equal(other, single)
    # Without look-ahead products have other shapes, so their sums have another order.
    assert np.abs(factors(kernels_of(1), n, nb, 0) - single).max() <= bound(n) * np.abs(single).max()


def test_work_in_the_side_stream_overlaps_and_join_waits_for_it(device: Device) -> None:
    for _ in range(2):  # a kernel's first launch waits until it is loaded, and loading waits until the device is idle
        begin, spans = perf_counter(), Spans(stopwatch=device)
        x, y = (torch.zeros(1, device=WHERE) for _ in range(2))
        with device.side_stream(), spans("beside"):
            sleep()
            x += 1.0
        with spans("meanwhile"):
            sleep()
        device.join()
        y += x
        device.wait()
        elapsed = perf_counter() - begin
    assert spans.time_of("beside") + spans.time_of("meanwhile") > 1.3 * elapsed
    assert y.item() == 1.0


def test_numbers_are_fetched_while_the_device_is_busy(kernels: TorchKernels) -> None:
    v = kernels.xp.asarray([1.0, 2.0, 3.0])
    kernels.fetch(v)()  # pinned memory is allocated now
    kernels.wait()
    sleep()
    v.add_(1.0)
    arrive = kernels.fetch(v)
    v.add_(1.0)
    assert not torch.cuda.current_stream().query(), "nobody waited"
    assert arrive() == [2.0, 3.0, 4.0]
    assert v.tolist() == [3.0, 4.0, 5.0]


def test_marks_and_spans_measure_what_the_device_did(device: Device) -> None:
    sleep()
    device.wait()
    spans, started, begin = Spans(stopwatch=device), perf_counter(), device.mark()
    with spans("asleep"):
        sleep()
    end = device.mark()
    returned = perf_counter() - started
    device.wait()
    waited = perf_counter() - started
    assert returned < 0.5 * waited, "work goes on in the background"
    for found in (device.seconds(begin, end), spans.time_of("asleep")):
        assert 0.5 * waited < found < 1.01 * waited


# --- messages


@pytest.mark.parametrize("dtype", dict.fromkeys(TYPES.values()), ids=str)
def test_staged_messages_wait_for_what_makes_them_and_arrive_whole(dtype: torch.dtype) -> None:
    staged, x = StagedTensors(torch_device()), numbers(dtype, 3, WHERE)
    late, into = nothing(dtype, where=WHERE), nothing(dtype, where=WHERE)
    sleep()
    late.copy_(x)
    memory = staged.outgoing(late).fulfilled()
    pinned, land = staged.incoming(into)
    assert land is not None
    pinned[:] = memory
    land()
    assert same(into, x)


def test_ranks_that_share_a_gpu_exchange_tensors_through_the_host() -> None:
    run_ranks(3, lambda comm: check_tensors(comm, StagedTensors(torch_device()), WHERE))


# --- devices and their memory


def test_a_device_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(
        ResourceError, match=rf"device cuda:99 does not exist, because this machine has {count()} GPUs?; use cuda:0"
    ):
        open_device("cuda:99")
    assert open_device("cuda:0").where == open_device("cuda").where == torch.device("cuda", 0)
    assert open_device("cuda", number=count()).where == torch.device("cuda", 0)


def test_free_memory_is_below_what_there_is_and_what_is_taken_is_not_free(device: Device) -> None:
    total, free = device.memory()
    assert 0 < free <= total
    taken = device.empty(2**27)
    assert device.memory()[1] <= total - taken.nbytes


def test_memory_that_is_not_there_is_an_error_that_says_what_to_do(device: Device) -> None:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        device.empty(device.memory()[0])  # of eight bytes each
    message = device_failure(caught.value)
    assert message is not None
    assert message.startswith("the device ran out of memory: ")
    assert message.endswith("use a smaller problem, or a smaller --mem")
    assert device.zeros(3).sum().item() == 0.0


# --- generated matrices


@pytest.mark.parametrize("kind", KINDS)
def test_generated_matrices_have_the_hosts_bits(kernels: TorchKernels, kind: str) -> None:
    n, nb, P, Q = 2003, 61, 2, 3
    host, entries = HostKernels(4), entries_of(kind, n)
    for p, q in ((0, 0), (1, 2)):
        rows, cols = BlockCyclic(n, nb, p, P), BlockCyclic(n, nb, q, Q)
        for precision, (_, u) in STORED.items():
            A_device, exact = (one.matrix(rows.local_size, cols.local_size, precision) for one in (kernels, host))
            for one, A in ((kernels, A_device), (host, exact)):
                one.generate(A, rows, cols, entries)
            # Gaussian entries may differ by their slack, and then be neighbors in fp32.
            off = slack(entries) and slack(entries) + (2 * u * np.abs(exact) if precision == "fp32" else 0.0)
            assert within(array(A_device), exact, off)


@pytest.fixture
def far(device: Device) -> Iterator[torch.Tensor]:
    """Return a 37×259 matrix of small integers in fp32, whose last rows begin beyond 2^31 entries."""
    needed = 4 * 37 * APART
    if device.memory()[1] < 2 * needed:
        pytest.skip(f"takes {needed / 1e9:.1f} GB of the GPU's memory")
    room = torch.empty(37 * APART, dtype=torch.float32, device=WHERE)
    A = room.view(37, APART)[:, :259]
    A.copy_(torch.from_numpy(np.random.default_rng(3).integers(-8, 9, (37, 259)).astype(np.float32)))
    yield A
    del A, room
    torch.cuda.empty_cache()


def test_rows_more_than_2_to_the_31_entries_apart_are_generated(kernels: TorchKernels, far: torch.Tensor) -> None:
    n = 259
    rows, cols, host = BlockCyclic(n, 37, 6, 7), BlockCyclic(n, 37, 0, 1), HostKernels(1)
    assert len(globals_of(rows)) == 37
    for kind in ("HPL's", "unit-factors"):
        exact = host.matrix(37, n, "fp32")
        kernels.generate(far, rows, cols, entries_of(kind, n))
        host.generate(exact, rows, cols, entries_of(kind, n))
        assert np.array_equal(array(far), exact)


def test_rows_more_than_2_to_the_31_entries_apart_are_read_and_written(
    kernels: TorchKernels, far: torch.Tensor
) -> None:
    """Sums of integers are exact in any order: the results are those of contiguous rows."""
    m, n = far.shape
    rows, cols = BlockCyclic(m, m, 0, 1), BlockCyclic(n, n, 0, 1)
    results = []
    for A in (far, far.clone(memory_format=torch.contiguous_format)):
        by_row, by_column, y, z = (kernels.xp.zeros(size) for size in (m, n, m, n))
        kernels.abs_sums(A, by_row, by_column)
        kernels.add_matvec(y, A, by_column)
        kernels.add_matvec(z, A, by_row, transposed=True)
        kernels.add_triangle_matvec(y, A, by_column, rows, cols, "upper")
        parts = kernels.norms.norm_pass(
            [Tile(A, consecutive(m), consecutive(n), 0, 0)], WHOLE, ("max", "squares", "rows", "columns"), m, n
        )
        operand = kernels.operand_matrix(kernels.operand_buffer(m, n, "fp16", "left"), m, n, "fp16", "left")
        kernels.cast(A, operand, "fp16")
        kernels.scale_rows_columns(A, by_row, by_column)
        vectors = [by_row, by_column, y, z, parts.squares, parts.by_row, parts.by_column, A, operand]
        largest = [parts.top, kernels.max_abs_upper(A, rows, cols)]
        results.append([largest, *(array(vector).tolist() for vector in vectors)])
    assert results[0] == results[1]

"""Compare the solvers of HPG-MxP and HPCG on tensors with those on the host, on any grid."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from mxpeak.bench.hpcg.check import spectral_test, symmetry_test
from mxpeak.bench.hpcg.rules import form
from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.solo import Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.distributed.stencil import StencilProblem, make_stencil, weights
from mxpeak.distributed.system import CgSystem
from mxpeak.errors import Outcome
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.sparse.sparse import HostSparse
from mxpeak.kernels.torch.engine.messages import HostTensors, StagedTensors
from mxpeak.kernels.torch.sparse.sparse import TorchSparse
from mxpeak.layout.stencil import Box
from mxpeak.precision import PRECISIONS
from mxpeak.solvers.cg import conjugate_gradients
from mxpeak.solvers.multigrid import cycle
from mxpeak.spans import Spans
from tests.support.hpg_mxp_solves import DOUBLE, TOLERANCE, Triple, agree, error_bound, mixed_form, solved
from tests.support.torch_devices import ON_GPU, torch_device

GRIDS = [(1, 1, 1), (1, 1, 2), (2, 1, 1)]


def on_tensors(comm: Communicator) -> tuple[Any, Communicator]:
    """Return kernels for tensors, with Triton on a GPU, and a communicator that sends tensors."""
    device = torch_device(triton=ON_GPU)
    return TorchSparse(device, 1, lambda: HostSparse(Team(1))), comm.with_transport(
        StagedTensors(device) if ON_GPU else HostTensors()
    )


@pytest.mark.parametrize(
    ("grid", "storage"), [(GRIDS[0], "sell"), (GRIDS[0], "packed"), (GRIDS[1], "packed"), (GRIDS[2], "sell")]
)
def test_gmres_ir_takes_the_hosts_steps(grid: Triple, storage: str) -> None:
    shape = tuple(8 * p for p in grid)
    forms = [DOUBLE, mixed_form("bf16", storage=storage), mixed_form("fp32", storage=storage)]

    def tensors(comm: Communicator) -> list[Any]:
        kernels, ranks = on_tensors(comm)
        return solved(ranks, shape, grid, forms, kernels=kernels)  # type: ignore[arg-type]

    solves = run_ranks(math.prod(grid), tensors)
    wanted = run_ranks(math.prod(grid), lambda comm: solved(comm, shape, grid, forms))  # type: ignore[arg-type]
    assert all(one == solves[0] for one in solves), "every rank gets the same numbers"
    for one, other in zip(solves[0], wanted[0]):
        assert (one.values, one.vectors) == (other.values, other.vectors)
        assert one.solve.outcome == Outcome.SOLVED
        assert abs(one.solve.steps - other.solve.steps) <= 1
        assert one.max_error <= error_bound(shape, one.solve.residual, False)  # type: ignore[arg-type]
    agree(solves[0][0].solve.estimates, wanted[0][0].solve.estimates)
    u = PRECISIONS["fp32"].u
    for one, other in zip(solves[0][1:], wanted[0][1:]):
        same = zip(one.solve.estimates[:5], other.solve.estimates[:5])  # later ones are near the accuracy of fp32
        assert all(abs(a - b) <= 100 * u * other.solve.estimates[0] for a, b in same)
        assert one.solve.residual <= TOLERANCE


@pytest.mark.parametrize("basis", ["bf16", "fp16"])
def test_gmres_ir_stores_the_basis_in_16_bits_as_the_host_does(basis: str) -> None:
    shape, grid = (8, 8, 16), (1, 1, 2)
    forms = [mixed_form("bf16", storage="packed", basis=basis)]

    def tensors(comm: Communicator) -> list[Any]:
        kernels, ranks = on_tensors(comm)
        return solved(ranks, shape, grid, forms, kernels=kernels)

    (outcome,), _ = run_ranks(2, tensors)
    (wanted,), _ = run_ranks(2, lambda comm: solved(comm, shape, grid, forms))
    assert outcome.solve.outcome == wanted.solve.outcome == Outcome.SOLVED
    assert abs(outcome.solve.steps - wanted.solve.steps) <= 1
    assert outcome.max_error <= error_bound(shape, outcome.solve.residual, False)
    u, first = PRECISIONS[basis].u, wanted.solve.estimates[0]
    for one, other in zip(outcome.solve.estimates[:5], wanted.solve.estimates[:5]):
        assert abs(one - other) <= 4 * u * first, "numbers that fp32 sums in another order may be rounded differently"


@pytest.mark.parametrize("mg_vectors", ["bf16", "fp16"])
def test_multigrid_vectors_in_16_bits_are_as_on_the_host(mg_vectors: str) -> None:
    shape, grid = (8, 8, 16), (1, 1, 2)
    forms = [mixed_form("bf16", storage="packed", mg_vectors=mg_vectors)]

    def tensors(comm: Communicator) -> list[Any]:
        kernels, ranks = on_tensors(comm)
        return solved(ranks, shape, grid, forms, kernels=kernels)

    (outcomes,), _ = run_ranks(2, tensors)
    (wanted,), _ = run_ranks(2, lambda comm: solved(comm, shape, grid, forms))
    assert outcomes.vectors == wanted.vectors == mg_vectors
    assert outcomes.solve.outcome == wanted.solve.outcome == Outcome.SOLVED
    assert abs(outcomes.solve.steps - wanted.solve.steps) <= 1
    assert outcomes.max_error <= error_bound(shape, outcomes.solve.residual, False)
    u, first = PRECISIONS[mg_vectors].u, wanted.solve.estimates[0]
    for one, other in zip(outcomes.solve.estimates[:5], wanted.solve.estimates[:5]):
        assert abs(one - other) <= 4 * u * first, "numbers that fp32 sums in another order may be rounded differently"


def made_for_hpcg(kernels: Any, comm: Communicator, box: Box, storage: str) -> StencilProblem:
    return make_stencil(kernels, comm, box.levels(4), [form(storage)], "greedy", weights(), Spans())


def cg(kernels: Any, comm: Communicator, box: Box, storage: str) -> Any:
    made = made_for_hpcg(kernels, comm, box, storage)
    top = made.hierarchies[0].top
    system = CgSystem(kernels, comm, top.A, made.b, partial(cycle, top), Spans())
    done = conjugate_gradients(system, max_steps=60, tolerance=1e-10)
    return done.outcome, done.steps, done.history, system.max_error(1.0)


@pytest.mark.parametrize("grid", GRIDS)
def test_conjugate_gradients_take_the_hosts_steps(grid: Triple) -> None:
    def body(comm: Communicator, tensors: bool) -> Any:
        kernels, ranks = on_tensors(comm) if tensors else (HostSparse(Team(1)), comm)
        return cg(kernels, ranks, Box.of(comm.rank, (16, 8, 8), grid), "packed")

    found, wanted = (run_ranks(math.prod(grid), lambda comm, t=tensors: body(comm, t)) for tensors in (True, False))
    assert all(one == found[0] for one in found)
    (outcome, steps, history, error), (_, host_steps, host_history, _) = found[0], wanted[0]
    assert outcome == Outcome.SOLVED
    assert steps == host_steps
    assert np.allclose(history, host_history, rtol=1e-6, atol=1e-15)
    assert error < 1e-8


def test_hpcgs_own_tests_of_a_code_are_passed() -> None:
    kernels, comm = on_tensors(Solo())
    box = Box(16, 16, 16)
    top = made_for_hpcg(kernels, comm, box, "packed").hierarchies[0].top
    assert spectral_test(kernels, comm, top, box, "greedy", Spans()).passed
    assert symmetry_test(kernels, comm, top.A, partial(cycle, top)).passed

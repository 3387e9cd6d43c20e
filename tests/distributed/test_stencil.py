from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.distributed.sparse import Optimizations
from mxpeak.distributed.stencil import Form, coarse_points, make_stencil, weights
from mxpeak.kernels.contract.sparse import Order
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.reference.sparse import ReferenceSparse
from mxpeak.layout.stencil import Box
from mxpeak.solvers.multigrid import cycle
from mxpeak.spans import Spans
from tests.support.roundoff import U


def shuffled(rows: int, seed: int) -> Order:
    """Return rows in a random order, each in a group of its own."""
    new_to_old = np.random.default_rng(seed).permutation(rows).astype(np.int32)
    return Order(new_to_old, np.argsort(new_to_old).astype(np.int32), np.arange(rows + 1), "shuffled")


@pytest.mark.parametrize("shape", [(2, 2, 2), (4, 2, 6), (8, 6, 4)])
def test_coarse_points_are_every_second_point_in_both_orders(shape: tuple[int, int, int]) -> None:
    box = Box(*shape)
    half = box.coarser()
    order, coarse = shuffled(box.rows, 1), shuffled(half.rows, 2)
    points = coarse_points(order, coarse, box)
    for row, fine in enumerate(points):
        at, under = order.new_to_old[fine], coarse.new_to_old[row]
        found = np.unravel_index(at, shape[::-1])
        assert found == tuple(2 * c for c in np.unravel_index(under, half.shape[::-1])), row
    assert len(points) == half.rows


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("order", "storage"), [("greedy", "packed"), ("surface_last", "packed"), ("levels", "sell")])
def test_the_halo_sent_during_a_sweep_is_that_of_the_residual(order: str, storage: str, symmetric: bool) -> None:
    """The results are bitwise those of a sweep, a halo exchange and a residual one after the other, done twice."""

    def compared(comm: Communicator) -> None:
        kernels, rng = HostKernels(1).sparse, np.random.default_rng(comm.rank)
        box = Box(8, 8, 16, npy=2, npz=2, py=comm.rank % 2, pz=comm.rank // 2)
        form = Form(("fp64",) * 2, "fp64", storage, symmetric=symmetric)
        stencil = weights(nonsymmetric=True)
        level = make_stencil(kernels, comm, box.levels(2), [form], order, stencil, Spans()).hierarchies[0].top
        A, x, r = level.A, level.A.halo_vector(), np.zeros_like(level.r)
        keep = np.zeros(A.n) if symmetric else None
        for _ in range(2):
            b = rng.random(A.n)
            level.presmooth(b)
            level.restrict(b)
            A.relax_from_zero(b, x, keep)
            if keep is not None:
                A.relax_backward(b, x, keep)
            A.residual_at(b, x, level.points, r, swept=keep is None, keep=keep)
            assert A.own(level.x).tolist() == A.own(x).tolist()
            assert level.r.tolist() == r.tolist()

    run_ranks(4, compared)


OFF = [Optimizations(*on) for on in product((True, False), repeat=3) if not all(on)]


@pytest.mark.parametrize("off", OFF, ids=str)
@pytest.mark.parametrize("symmetric", [True, False])
def test_without_an_optimization_a_level_computes_the_same_vectors(off: Optimizations, symmetric: bool) -> None:
    """Use 2x3 boxes of 4x6x2 points, with three different sizes. A row has 27 entries of at most 26, and |x| <= 1/10.

    The smoothed x and the residual are sums of 28 terms in another order, each at most 1 + 52·|x|.
    """

    def vectors(comm: Communicator, optimizations: Optimizations) -> list[Any]:
        kernels, rng = ReferenceSparse(), np.random.default_rng(comm.rank)
        box = Box(4, 6, 2, npy=2, npz=3, py=comm.rank % 2, pz=comm.rank // 2)
        form = Form(("fp64",) * 2, "fp64", "ell", symmetric=symmetric)
        stencil = weights(nonsymmetric=True)
        problem = make_stencil(kernels, comm, box.levels(2), [form], "greedy", stencil, Spans(), optimizations)
        level, results = problem.hierarchies[0].top, []
        for _ in range(2):
            b = rng.random(level.A.n)
            results.append(level.A.own(cycle(level, b)).copy())
            results.append(level.r.copy())
        return results

    plain = run_ranks(6, lambda comm: vectors(comm, Optimizations()))
    changed = run_ranks(6, lambda comm: vectors(comm, off))
    for of_plain, of_changed in zip(plain, changed):
        for one, other in zip(of_plain, of_changed):
            x = float(np.abs(one).max())
            assert other == pytest.approx(one, abs=4 * 28 * U * (1 + 52 * x))

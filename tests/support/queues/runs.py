"""Run small problems of benchmarks and solvers on virtual GPUs, with each grid and transport."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import scipy.sparse
import torch

import mxpeak as mx
from mxpeak.bench.registry import BENCHMARKS
from mxpeak.comm.base import Communicator
from mxpeak.comm.devices import check_device_messages
from mxpeak.comm.grid import make_grid
from mxpeak.distributed.dense import dist_matrix
from mxpeak.distributed.stencil import Form, make_stencil, weights
from mxpeak.distributed.system import CgSystem, InnerIteration, MixedSystem
from mxpeak.kernels.contract.sparse import Order, Rows
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.kernels import TorchKernels
from mxpeak.layout.generators import generator
from mxpeak.layout.grid import ProcessGrid
from mxpeak.layout.stencil import Box
from mxpeak.solvers import cholesky
from mxpeak.solvers.cg import conjugate_gradients
from mxpeak.solvers.krylov import gmres_ir
from mxpeak.solvers.lu.pivoted_lu import PivotedLuOptions, factorize
from mxpeak.solvers.lu.triangular import solve_augmented
from mxpeak.solvers.multigrid import cycle
from mxpeak.spans import Spans
from tests.support.hpg_mxp_solves import mixed_form
from tests.support.queues.device import on_virtual_gpus
from tests.support.queues.log import Log
from tests.support.queues.rank import here
from tests.support.queues.transports import TRANSPORTS

#: Settings of small problems for whole runs of benchmarks, with several steps of LU.
CASES: dict[str, dict[str, Any]] = {
    "hpl": {"n": (100,), "nb": (8,)},
    "hpl-mxp": {"n": (20,), "nb": (6,), "precision": ("fp16",)},
    "hpg-mxp": {"nx": 8, "ny": 8, "nz": 8, "rt": 0.0, "precision": "bf16", "mode": "explore", "iterations": 3},
    "hpcg": {"nx": 8, "ny": 8, "nz": 8, "rt": 0.0, "mode": "explore", "storage": "packed", "smoother": "coloured"},
    "norms": {"n": (90,), "kind": ("all",), "structure": ("general",), "dtype": ("float32",)},
}
Found = tuple[list[Any], list[Log]]


def kernels_here() -> TorchKernels:
    """Return the kernels of this rank's virtual GPU."""
    return TorchKernels(Device(torch.device("cuda", 0), triton=False, poison=True), HostKernels(1))


def played(size: int, transport: str, body: Callable[[Communicator], Any]) -> Found:
    """Run a function on virtual ranks; return the results and the logs."""
    with TRANSPORTS[transport]() as of:
        return on_virtual_gpus(size, body, of)


def benchmark(name: str, shape: tuple[int, int], transport: str, **settings: Any) -> Found:
    """Run a benchmark on P×Q ranks with one virtual GPU each."""
    P, Q = shape
    asked = CASES[name] | ({"P": (P,), "Q": (Q,)} if name in ("hpl", "hpl-mxp") else {}) | settings
    config = BENCHMARKS[name].config(kernels="torch", device="cuda", threads=1, warmup="none", **asked)
    module = import_module(f"mxpeak.bench.{name.replace('-', '_')}.run")
    return played(P * Q, transport, lambda comm: module.run(config, comm))


def hpl(
    shape: tuple[int, int], transport: str, options: PivotedLuOptions, n: int = 100, nb: int = 8, **choices: Any
) -> Found:
    """Run HPL's factorization and solve alone; the caller compares b̂."""

    def body(comm: Communicator) -> Any:
        kernels = kernels_here()
        for name, choice in choices.items():
            setattr(kernels, name, choice)
        grid = make_grid(ProcessGrid(*shape), check_device_messages(comm, kernels.transport))
        assert grid is not None
        A = dist_matrix(grid, n, n + 1, nb, kernels)
        kernels.generate(A.local, A.rows, A.cols, generator("hpl", n).entries)
        spans = Spans(stopwatch=kernels.stopwatch)
        singular = factorize(A, options, kernels, spans)
        x = solve_augmented(A, kernels)
        spans.finish()
        return {A.cols.to_global(jl): value for jl, value in enumerate(x.tolist())}, singular

    return played(shape[0] * shape[1], transport, body)


def factor_positive_definite(shape: tuple[int, int], transport: str, precision: str, n: int = 40, nb: int = 6) -> Found:
    """Factor a positive definite matrix; return the entries of L that each rank owns, by their global indices."""

    def body(comm: Communicator) -> Any:
        kernels = kernels_here()
        grid = make_grid(ProcessGrid(*shape), check_device_messages(comm, kernels.transport))
        assert grid is not None
        A = dist_matrix(grid, n, n, nb, kernels, "fp32" if precision == "fp16" else "fp64")
        whole = kernels.device.tensor(positive_definite(n))
        rows, columns = ([index.to_global(i) for i in range(index.local_size)] for index in (A.rows, A.cols))
        A.local.copy_(whole[rows][:, columns])
        minor = cholesky.factorize(A, precision, kernels, Spans(stopwatch=kernels.stopwatch))
        kernels.wait()
        L = A.local.cpu().numpy()
        return minor, {
            (i, j): L[il, jl] for il, i in enumerate(rows) for jl, j in enumerate(columns) if i // nb > j // nb
        }

    return played(shape[0] * shape[1], transport, body)


def positive_definite(n: int) -> Any:
    """Return a positive definite matrix of order n."""
    B = np.random.default_rng(1).standard_normal((n, n))
    return B @ B.T + n * np.eye(n)


def hpg_mxp(
    grid: tuple[int, int, int],
    transport: str,
    max_steps: int = 3,
    side: int = 8,
    levels: int = 2,
    *,
    colours: bool = False,
    only_cycles: bool = False,
) -> Found:
    """Run some iterations of HPG-MxP's solver with one box per rank.

    colours        compute the colors on the device, front by front, in about 80,000 operations for 8 boxes of 32³;
                   otherwise on the host, with the same result
    only_cycles    do not record the setup
    """

    def body(comm: Communicator) -> Any:
        kernels, log = kernels_here(), here().log
        comm = check_device_messages(comm, kernels.transport)
        sparse = kernels.sparse
        if not colours:
            sparse.order = partial(_order_of_the_host, kernels.device, sparse)
        box = Box.of(comm.rank, (side,) * 3, grid)
        log.paused = only_cycles
        problem = make_stencil(
            sparse, comm, box.levels(levels), [mixed_form(("bf16",) * levels)], "greedy", weights(), Spans()
        )
        spans = Spans(stopwatch=kernels.stopwatch)
        hierarchy = problem.hierarchies[0]
        top = hierarchy.top
        inner = InnerIteration(top.A, lambda q: cycle(top, q), 30)
        system = MixedSystem(sparse, comm, hierarchy.outer, problem.b, inner, spans)
        norm_of_b = system.norm_of_b()
        log.paused = False
        done = gmres_ir(system, norm_of_b, restart=30, max_steps=max_steps, tolerance=0.0)
        kernels.wait()
        return list(done.history)

    return played(grid[0] * grid[1] * grid[2], transport, body)


def _order_of_the_host(device: Device, sparse: Any, rows: Rows, kind: str) -> Order:
    """Return the host's order of the rows, on the device."""
    found = HostKernels(1).sparse.order(sparse.on_host(rows), kind)
    return Order(device.tensor(found.new_to_old), device.tensor(found.old_to_new), found.starts, found.kind)


def hpcg(grid: tuple[int, int, int], transport: str, max_steps: int = 3, side: int = 8) -> Found:
    """Run some iterations of HPCG's solver with one box per rank and the host's colors."""

    def body(comm: Communicator) -> Any:
        kernels = kernels_here()
        comm = check_device_messages(comm, kernels.transport)
        sparse = kernels.sparse
        sparse.order = partial(_order_of_the_host, kernels.device, sparse)
        box = Box.of(comm.rank, (side,) * 3, grid)
        form = Form(("fp64",) * 2, "fp64", "sell", symmetric=True)
        problem = make_stencil(sparse, comm, box.levels(2), [form], "greedy", weights(), Spans())
        top = problem.hierarchies[0].top
        spans = Spans(stopwatch=kernels.stopwatch)
        system = CgSystem(sparse, comm, top.A, problem.b, lambda r: cycle(top, r), spans)
        return list(conjugate_gradients(system, max_steps=max_steps, tolerance=0.0).history)

    return played(grid[0] * grid[1] * grid[2], transport, body)


def solve(precision: str = "fp64", n: int = 60) -> Found:
    """Run `mx.solve` on one device; more than 512 rows make several panels."""
    A, b = np.random.default_rng(0).standard_normal((n, n)) + 8.0 * np.eye(n), np.ones(n)

    def body(comm: Communicator) -> Any:
        x, _ = mx.solve(A, b, precision=precision, device="cuda")
        return float(np.abs(A @ x - b).max())

    return played(1, "mpi", body)


def gmres(n: int = 64) -> Found:
    """Run `mx.gmres` on one device."""
    A = scipy.sparse.diags_array([-1.0, 4.0, -1.0], offsets=[-1, 0, 1], shape=(n, n), format="csr")

    def body(comm: Communicator) -> Any:
        x, _ = mx.gmres(A, np.ones(n), device="cuda", preconditioner="gs")
        return np.abs(A @ x - 1.0).max()

    return played(1, "mpi", body)

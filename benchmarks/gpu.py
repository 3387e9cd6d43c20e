"""Compare the torch backend's kernels on a GPU with its limits, copy bandwidth and GEMM, in one process.

    python benchmarks/gpu.py --sections limits,dense,lu,sparse,norms --out result.json
    python benchmarks/gpu.py --sections solve --out solve.json

Times are medians over several calls, measured by events of the device after one call that is not counted. A share is
the rate of a kernel, from its minimum number of bytes or from its flops, divided by the limit. The sizes fill a large
GPU. With --small, they are a hundredth of these sizes, to test that all sections run (with --device cpu also on a CPU).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mxpeak as mx
from mxpeak.bench.lu import gemm_probe
from mxpeak.comm.grid import make_grid
from mxpeak.comm.transports.solo import Solo
from mxpeak.distributed.dense import dist_matrix
from mxpeak.distributed.halo import Exchange
from mxpeak.distributed.sources import GeneratedSystem
from mxpeak.distributed.spaces import zeros
from mxpeak.distributed.sparse import SparseMatrix
from mxpeak.distributed.stencil import coarse_points, weights
from mxpeak.distributed.system import SparseBasis
from mxpeak.kernels.choose import choose, resolve
from mxpeak.kernels.contract.lu import Panel
from mxpeak.kernels.contract.norms import Tile
from mxpeak.kernels.torch.kernels import TorchKernels
from mxpeak.kernels.torch.lu import solves
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.entries import Entries
from mxpeak.layout.generators import generator
from mxpeak.layout.grid import ProcessGrid
from mxpeak.layout.index_map import consecutive
from mxpeak.layout.panel_plan import panel_plan
from mxpeak.layout.stencil import Box
from mxpeak.layout.structure import WHOLE, structure
from mxpeak.perf.host import host_facts, one_core_each, software_facts
from mxpeak.solvers.lu.lu import MixedLuOptions, factorize
from mxpeak.solvers.lu.pivoted_lu import PivotedLuOptions
from mxpeak.solvers.lu.pivoted_lu import factorize as factorize_with_pivots
from mxpeak.solvers.lu.proof import Proof, prove
from mxpeak.spans import Spans

Row = dict[str, Any]
#: The forms of HPG-MxP's matrix: formats of values and vectors, and storage.
FORMS = (
    ("fp64", "fp64", "packed"), ("fp32", "fp32", "packed"), ("bf16", "fp32", "packed"), ("fp8", "fp32", "packed"),
    ("fp64", "fp64", "sell"), ("fp32", "fp32", "sell"), ("bf16", "fp32", "sell"),
)  # fmt: skip


class Bench:
    """The kernels, the sizes, and the two limits after their measurement."""

    def __init__(self, device: str, small: bool, repeat: int, n: int | None, choices: Sequence[str]):
        name, device = resolve("torch", device)
        cores = one_core_each()
        kernels = choose(name, device, len(cores), cores)
        assert isinstance(kernels, TorchKernels)
        self.kernels, self.repeat, self.rows = kernels, repeat, list[Row]()
        self.n, self.nb, self.nx = (1024, 128, 32) if small else (65536, 1024, 256)
        self.n, self.choices = n or self.n, choices
        self.copy_bytes, self.gemm = 0.0, dict[str, float]()

    def seconds(self, call: Callable[[], Any]) -> float:
        """Return the median time of a call, after one call that is not counted."""
        device, times = self.kernels.device, []
        call()
        for _ in range(self.repeat):
            begin = device.mark()
            call()
            times.append(device.seconds(begin, device.mark()))
        return statistics.median(times)

    def note(
        self, section: str, name: str, time_s: float, *, flops: float = 0.0, bytes: float = 0.0, **more: Any
    ) -> None:
        """Store a row of results, and print it."""
        row: Row = {"section": section, "name": name, "time_s": time_s, **more}
        if flops:
            row["rate_flops"] = flops / time_s
        if bytes:
            row["rate_bytes"] = bytes / time_s
            row["share_of_copy"] = bytes / time_s / self.copy_bytes if self.copy_bytes else None
        self.rows.append(row)
        shown = " ".join(f"{key} {value:.4g}" for key, value in row.items() if isinstance(value, float))
        print(f"{section:8} {name:44} {shown}", flush=True)

    def fresh(self, rows: int, columns: int, precision: str) -> torch.Tensor:
        """Return a matrix of random numbers, because products of zeros would be faster."""
        A = self.kernels.matrix(rows, columns, precision)
        A.copy_(torch.rand(rows, columns, device=A.device) - 0.5)
        return A


def copy(bench: Bench) -> None:
    """Measure the copy bandwidth, with the bytes that are read and written."""
    kernels, n = bench.kernels, bench.n
    a, b = (kernels.buffer(n * n // 4) for _ in range(2))
    a.fill_(1.0)
    time_s = bench.seconds(partial(b.copy_, a))
    bench.copy_bytes = 2.0 * 8 * a.numel() / time_s
    bench.note("limits", "copy", time_s, bytes=2.0 * 8 * a.numel())


def limits(bench: Bench) -> None:
    """Measure the copy bandwidth, and the rate of GEMM for a large square matrix and for an LU's inner dimension."""
    copy(bench)
    kernels, n = bench.kernels, bench.n
    side = n // 4
    for precision in ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8"):
        for k in (bench.nb // 2, bench.nb, 2 * bench.nb, side // 2):
            time_s = bench.seconds(gemm_probe(kernels, side, side, k, precision))
            flops = 2.0 * side * side * k
            bench.gemm[precision] = max(bench.gemm.get(precision, 0.0), flops / time_s)
            bench.note("limits", f"gemm {precision} {side}x{side}x{k}", time_s, flops=flops)


def dense(bench: Bench) -> None:
    """Measure the parts of an LU: panels, solves, casts, row moves, and the generation of A."""
    kernels, n, nb = bench.kernels, bench.n, bench.nb
    rows, cols = BlockCyclic(n, nb, 0, 1), BlockCyclic(n // 2, nb, 0, 1)
    entries = Entries("lcg", n, seed=100, scale=1.0, shift=-0.5)
    A = kernels.matrix(n, n // 2, "fp32")
    generate = partial(kernels.generate, A, rows, cols, entries)
    bench.note("dense", "generate fp32", bench.seconds(generate), bytes=4.0 * n * n / 2)
    x, y = kernels.xp.zeros(n // 2), kernels.xp.zeros(n)
    matvec = partial(kernels.generated_matvec, y, rows, cols, entries, None, x)
    bench.note("dense", "generated matvec", bench.seconds(matvec), flops=float(n) * n)
    bench.note("dense", "matvec fp32 x fp64", bench.seconds(partial(kernels.add_matvec, y, A, x)), bytes=2.0 * n * n)
    transposed = partial(kernels.add_matvec, x, A, y, transposed=True)
    bench.note("dense", "transposed matvec", bench.seconds(transposed), bytes=2.0 * n * n)

    D = kernels.panel(kernels.buffer(kernels.panel_size(nb, nb, "fp32"), "fp32"), nb, nb)
    flag, identity = kernels.buffer(1), torch.eye(nb, device=D.device) * nb

    def factor_block() -> None:
        D.copy_(identity)
        kernels.factor_block(D, flag)

    bench.note("dense", f"factor block {nb}", bench.seconds(factor_block), flops=2 / 3 * nb**3)
    for way in ("library", "inverse"):
        kernels.trsm = way
        right, left = A[:, :nb], A[:nb]
        time_s = bench.seconds(partial(kernels.solve_right_upper, right, D, "fp16"))
        bench.note("dense", f"L21 = A21 U11^-1 by {way}", time_s, flops=float(n * nb**2))
        time_s = bench.seconds(partial(kernels.solve_unit_lower, D, left, "fp16"))
        bench.note("dense", f"U12 = L11^-1 A12 by {way}", time_s, flops=float(n // 2 * nb**2))
    generate()  # repeated solves have produced zeros, and products of zeros are faster
    for precision in ("fp16", "bf16", "fp8"):
        left, right = (n, nb, precision, "left"), (nb, n // 2, precision, "right")
        L = kernels.operand_matrix(kernels.operand_buffer(*left), *left)
        U = kernels.operand_matrix(kernels.operand_buffer(*right), *right)
        size = 4.0 + (1.0 if precision == "fp8" else 2.0)
        time_s = bench.seconds(partial(kernels.cast, A[:, :nb], L, precision))
        bench.note("dense", f"cast of L21 to {precision}", time_s, bytes=size * n * nb)
        time_s = bench.seconds(partial(kernels.cast, A[:nb], U, precision))
        bench.note("dense", f"transposing cast of U12 to {precision}", time_s, bytes=size * n / 2 * nb)
        for way in ("library", "triton") if precision != "fp8" else ("triton",):
            kernels.gemm = way
            time_s = bench.seconds(partial(kernels.subtract_product, A, L, U))
            bench.note("dense", f"A22 -= L21 U12 {precision} by {way}", time_s, flops=1.0 * n * n * nb)
    del A, L, U
    _panels(bench)
    _refinement(bench)


def _panels(bench: Bench) -> None:
    """Measure HPL's panels on the device and on the host, and its row moves."""
    kernels, n = bench.kernels, bench.n
    jb = bench.nb // 2
    values = torch.rand(jb, n, dtype=torch.float64, device=kernels.device.where).T - 0.5
    A = kernels.panel(kernels.buffer(kernels.panel_size(n, jb)), n, jb)
    L1 = kernels.panel(kernels.buffer(kernels.panel_size(jb, jb)), jb, jb)
    panel = Panel(
        A, L1, kernels.buffer(jb + 1), BlockCyclic(n, jb, 0, 1), 0, jb, panel_plan(jb, 8, 2, "right"), "right"
    )

    def factor() -> None:
        A.copy_(values)
        kernels.factor_panel(panel, None)

    for where in ("device", "host"):
        kernels.panel_on = where
        bench.note("dense", f"panel {n}x{jb} on the {where}", bench.seconds(factor), flops=float(n) * jb**2)
    B = bench.fresh(n, n // 8, "fp64")
    rng = np.random.default_rng(1)
    far = kernels.indices(sorted(rng.choice(np.arange(jb, n), jb, replace=False).tolist()))
    near = kernels.indices(list(range(jb)))
    move = partial(kernels.permute_rows, B, 0, far, far, near)
    bench.note("dense", "row swaps", bench.seconds(move), bytes=4.0 * 8 * jb * n / 8)


def _refinement(bench: Bench) -> None:
    """Measure a triangular solve with one diagonal block. Refinement needs two such solves per block of the matrix."""
    kernels, nb = bench.kernels, bench.nb
    T, x = bench.fresh(nb, nb, "fp32"), kernels.xp.zeros(nb)
    T.diagonal().add_(float(nb))
    x.fill_(1.0)
    bench.note("dense", f"solve with an upper block {nb}", bench.seconds(partial(kernels.solve_upper, T, x)))
    ready = kernels.block_solver(T, "upper")
    bench.note("dense", f"solve with an upper block {nb} made ready", bench.seconds(partial(ready, x)))


def lu(bench: Bench) -> None:
    """Measure complete factorizations, and compare each choice with the default.

    For HPL-MxP, `prove` checks the factors.
    """
    for name, choices in LU_CHOICES.items():
        if bench.choices and name not in bench.choices:
            continue
        torch.cuda.empty_cache()  # free the buffers of other block sizes
        time_s, proof = _mixed_lu(bench, **choices)
        more = {"proof_passed": proof.passed, "proof_error": proof.error, "proof_bound": proof.bound}
        bench.note("lu", f"fp16 n={bench.n} {name}", time_s, flops=2 / 3 * bench.n**3, **more)
    if bench.choices:
        return
    n = bench.n * 5 // 8
    for nb, where in product((bench.nb // 4, bench.nb // 2, bench.nb), ("device", "host")):
        time_s = _pivoted_lu(bench, n, nb, where)
        bench.note("lu", f"fp64 n={n} nb={nb}, panels on the {where}", time_s, flops=2 / 3 * n**3)


#: The choices that are changed one at a time.
LU_CHOICES: dict[str, dict[str, Any]] = {
    "for nothing": {}, "as usual": {}, "no look-ahead": {"lookahead": 0}, "trsm library": {"trsm": "library"},
    "gemm triton": {"gemm": "triton"}, "nb halved": {"blocks": 0.5}, "nb doubled": {"blocks": 2},
    "nb doubled, no look-ahead": {"blocks": 2, "lookahead": 0},
    "nb doubled, inverses of 128": {"blocks": 2, "inverses": 128},
    "nb doubled, inverses of 512": {"blocks": 2, "inverses": 512},
    "nb tripled": {"blocks": 3}, "nb fourfold": {"blocks": 4},
}  # fmt: skip


def _mixed_lu(
    bench: Bench,
    *,
    lookahead: int = 1,
    trsm: str | None = None,
    gemm: str | None = None,
    blocks: float = 1.0,
    inverses: int = solves.BLOCK,
) -> tuple[float, Proof]:
    """Measure HPL-MxP's factorization in fp16."""
    kernels, n, nb = bench.kernels, bench.n, int(bench.nb * blocks)
    before = kernels.trsm, kernels.gemm, solves.BLOCK
    kernels.trsm, kernels.gemm, solves.BLOCK = trsm or kernels.trsm, gemm or kernels.gemm, inverses
    grid = make_grid(ProcessGrid(1, 1, "row", None), Solo())
    assert grid is not None
    A = dist_matrix(grid, n, n, nb, kernels, "fp32")
    system = GeneratedSystem(grid, n, nb, generator("sqrt-n", n), kernels)
    system.store(A)
    begin = kernels.device.mark()
    factorize(A, MixedLuOptions("fp16", lookahead=lookahead, forwards=False), kernels, Spans((), kernels.stopwatch))
    time_s = kernels.device.seconds(begin, kernels.device.mark())
    proof = prove(system, A, "fp16", kernels, [], 4711)
    kernels.trsm, kernels.gemm, solves.BLOCK = before
    return time_s, proof


def _pivoted_lu(bench: Bench, n: int, nb: int, where: str) -> float:
    """Measure HPL's factorization."""
    kernels = bench.kernels
    before, kernels.panel_on = kernels.panel_on, where
    grid = make_grid(ProcessGrid(1, 1, "row", None), Solo())
    assert grid is not None
    A = dist_matrix(grid, n, n + 1, nb, kernels)
    kernels.generate(A.local, A.rows, A.cols, generator("hpl", n).entries)
    begin = kernels.device.mark()
    factorize_with_pivots(A, PivotedLuOptions(), kernels, Spans((), kernels.stopwatch))
    time_s = kernels.device.seconds(begin, kernels.device.mark())
    kernels.panel_on = before
    return time_s


def sparse(bench: Bench) -> None:
    """Measure the motifs of HPG-MxP by their minimum number of bytes.

    They are compared with a copy and with reading the values.
    """
    kernels, nx = bench.kernels.sparse, bench.nx
    box = Box(nx, nx, nx)
    rows = kernels.stencil_rows(box, weights())
    order = kernels.order(rows, "greedy")
    half = kernels.stencil_rows(box.coarser(), weights())
    points = kernels.xp.asarray(coarse_points(order, kernels.order(half, "greedy"), box))
    for values, vectors, storage in FORMS:
        spans = Spans((), bench.kernels.stopwatch)
        stored = kernels.store(rows, order, values, vectors, storage)
        A = SparseMatrix(kernels, stored, Exchange(kernels, Solo(), (), None, vectors), spans)
        name = f"{values}/{vectors} {storage}"
        time_s = bench.seconds(partial(kernels.read_values, stored))
        bench.note("sparse", f"{name} reading", time_s, bytes=float(kernels.read_values(stored)))
        x, y, b = A.halo_vector(), zeros(kernels, A.n, vectors), zeros(kernels, A.n, vectors)
        b[:] = 1.0
        calls: dict[str, tuple[str, Callable[[], Any]]] = {
            "sweep": ("gs", partial(A.relax, b, x)),
            "sweep from zero": ("gs", partial(A.relax_from_zero, b, x)),
            "product": ("spmv", partial(A.multiply, x, y)),
        }
        r = zeros(kernels, len(points), vectors)
        calls["residual at coarse points"] = ("restriction", partial(A.residual_at, b, x, points, r, swept=True))
        for motif, (phase, call) in calls.items():
            _motif(bench, spans, f"{name} {motif}", phase, call)
        del A, stored, x, y, b, r
    _bases(bench, box.rows)


def setup(bench: Bench) -> None:
    """Measure the set-up of HPG-MxP: the rows of the finest level, their orders, and chunks."""
    kernels, box = bench.kernels.sparse, Box(bench.nx, bench.nx, bench.nx)
    make = partial(kernels.stencil_rows, box, weights())
    bench.note("setup", "rows", bench.seconds(make))
    rows = make()
    for kind in ("greedy", "levels"):
        bench.note("setup", f"{kind} order", bench.seconds(partial(kernels.order, rows, kind)))
    order = kernels.order(rows, "greedy")
    for storage in ("packed", "sell"):
        bench.note(
            "setup", f"{storage} chunks", bench.seconds(partial(kernels.store, rows, order, "fp64", "fp64", storage))
        )


def _bases(bench: Bench, n: int) -> None:
    for precision in ("fp64", "fp32"):
        spans = Spans((), bench.kernels.stopwatch)
        for k in (8, 30):
            basis = SparseBasis(bench.kernels.sparse, Solo(), n, k + 2, precision, spans)
            first = zeros(bench.kernels.sparse, n, precision)
            first[:] = 1.0
            basis.append(first, 1.0)

            def step(basis: SparseBasis = basis, k: int = k) -> None:
                basis._k = k
                basis.next[:] = 1.0
                basis.orthogonalize(basis.next)

            _motif(bench, spans, f"cgs2 {precision} k={k}", "ortho", step)
            del basis, first


def _motif(bench: Bench, spans: Spans, name: str, phase: str, call: Callable[[], Any]) -> None:
    """Measure a call that reports its own minimum number of bytes."""
    for _ in range(3):  # direct execution, capture of a graph, replay
        call()
    spans.start("", 0.0)
    for _ in range(bench.repeat):
        call()
    found = spans.phases[phase]
    calls = found.calls or 1
    bench.note("sparse", name, found.time_s / calls, flops=found.flops / calls, bytes=found.bytes / calls)


def norms(bench: Bench) -> None:
    """Measure one pass for each norm and for all four norms, for every type, both orders and a triangle."""
    kernels, side = bench.kernels.norms, bench.n // 2
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.complex64):
        A = torch.randn(side, side, dtype=dtype, device=bench.kernels.device.where)
        for order, given in (("C", A), ("F", A.T)):
            places = consecutive(side)
            tiles = [Tile(given, places, places, 0, 0)]
            for wants in (("max",), ("columns",), ("rows",), ("squares",), ("max", "columns", "rows", "squares")):
                call = partial(kernels.norm_pass, tiles, WHOLE, wants, side, side)
                bench.note("norms", f"{dtype} {order} {'+'.join(wants)}", bench.seconds(call), bytes=1.0 * A.nbytes)
        lower = structure("triangular", side, side, uplo="lower").band
        tiles = [Tile(A, consecutive(side), consecutive(side), 0, 0)]
        time_s = bench.seconds(partial(kernels.norm_pass, tiles, lower, ("squares",), side, side))
        bench.note("norms", f"{dtype} C lower triangle squares", time_s, bytes=A.nbytes / 2)
        del A, tiles, given


def solve(bench: Bench) -> None:
    """Compare mx.solve with torch.linalg.solve in fp64, on random and on diagonally dominant matrices."""
    n, where = bench.n // 2, bench.kernels.device.where
    for name, shift in (("random", 0.0), ("dominant", float(n))):
        A = torch.randn(n, n, dtype=torch.float64, device=where)
        A.diagonal().add_(shift)
        b = torch.randn(n, dtype=torch.float64, device=where)
        torch_s = bench.seconds(partial(torch.linalg.solve, A, b))
        eta = _backward_error(A, torch.linalg.solve(A, b), b)
        bench.note("solve", f"torch.linalg.solve fp64 {name} n={n}", torch_s, flops=2 / 3 * n**3, backward_error=eta)
        for precision in ("auto", "fp16", "bf16", "tf32", "fp32", "fp64"):
            x, info = mx.solve(A, b, precision=precision)
            time_s = bench.seconds(partial(mx.solve, A, b, precision=precision))
            bench.note(
                "solve",
                f"mx.solve {precision} {name} n={n}",
                time_s,
                flops=2 / 3 * n**3,
                backward_error=_backward_error(A, x, b),
                iterations=info.iterations,
                fallback=info.fallback,
                used=info.precision,
                times_faster=torch_s / time_s,
            )
        del A, b, x


def _backward_error(A: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> float:
    """Return ||b - Ax|| / ((||A||·||x|| + ||b||)·n·u)."""
    r = (b - A @ x).abs().max()
    scale = A.abs().sum(dim=1).max() * x.abs().max() + b.abs().max()
    return float(r / (scale * len(b) * 2.0**-53))


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "copy": copy, "limits": limits, "dense": dense, "lu": lu, "setup": setup, "sparse": sparse, "norms": norms,
    "solve": solve,
}  # fmt: skip


def main() -> int:
    """Run the sections. If a section raises an error, store the error and run the other sections."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", default="limits,dense,lu,sparse,norms", help=", ".join(SECTIONS))
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, cpu (default: cuda)")
    parser.add_argument("--small", action="store_true", help="small sizes that take seconds on any device")
    parser.add_argument("--n", type=int, help="order of the dense matrices (default: 65536)")
    parser.add_argument("--lu", default="", help="choices of lu: " + "; ".join(LU_CHOICES) + " (default: all)")
    parser.add_argument("--repeat", type=int, default=5, help="number of calls per median")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    args = parser.parse_args()
    choices = [name.strip() for name in args.lu.split(";") if name.strip()]
    if unknown := set(choices) - set(LU_CHOICES):
        parser.error(f"--lu: {', '.join(sorted(unknown))} is none of {'; '.join(LU_CHOICES)}")
    bench, wrong = Bench(args.device, args.small, args.repeat, args.n, choices), dict[str, str]()
    for name in args.sections.split(","):
        try:
            SECTIONS[name](bench)
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {error}"
            print(f"{name} FAILED: {wrong[name]}", file=sys.stderr, flush=True)
        if args.out:
            body = {
                "command": sys.argv,
                "machine": {**host_facts(), **bench.kernels.device_facts()},
                "software": {**software_facts(), **bench.kernels.facts()},
                "rows": bench.rows,
                "failed": wrong,
            }
            args.out.write_text(json.dumps(body, indent=1, default=str) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

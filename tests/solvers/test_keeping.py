"""Test that an LU that was stored between two steps continues on any grid with the same result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from mxpeak.comm.grid import make_grid
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.distributed.dense import dist_matrix
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.generators import generator
from mxpeak.layout.grid import ProcessGrid
from mxpeak.solvers.growth_monitor import DiagonalBlocks
from mxpeak.solvers.lu import lu, pivoted_lu
from mxpeak.solvers.lu.row_swap import SwapOptions
from mxpeak.spans import Spans

N, NB = 61, 8
VARIANTS: dict[str, Any] = {
    "HPL, plain": pivoted_lu.PivotedLuOptions(lookahead=0),
    "HPL, look-ahead": pivoted_lu.PivotedLuOptions(),
    "HPL, split": pivoted_lu.PivotedLuOptions(split=0.5, swap=SwapOptions("long")),
    "HPL-MxP, plain": lu.MixedLuOptions("fp32", lookahead=0),
    "HPL-MxP": lu.MixedLuOptions("fp32"),
}


class Memory:
    """A checkpointer that copies this rank's part after some steps, or makes the run skip the steps before `first`."""

    def __init__(self, A: Any, steps: tuple[int, ...] = (), first: int = 0, notes: Any = None):
        self.A, self.steps, self.first_step, self.notes = A, steps, first, notes or {}
        self.kept: dict[int, tuple[Any, Mapping[str, Any]]] = {}

    def is_due(self, step: int, count: int) -> bool:
        return step + 1 in self.steps

    def save(self, done: int, notes: Mapping[str, Any]) -> None:
        self.kept[done] = (np.array(self.A.local), notes)


def factored(name: str, shape: tuple[int, int], steps: tuple[int, ...], begin: Any = None) -> tuple[Any, Any, Any]:
    """Return the assembled factors, the growth report, and the assembled copies by step with the notes of all ranks."""
    pivoted, columns = name.startswith("HPL,"), N + name.startswith("HPL,")

    def body(comm: Any) -> Any:
        kernels = HostKernels(1, poison=True)
        grid = make_grid(ProcessGrid(*shape), comm)
        assert grid is not None
        A = dist_matrix(grid, N, columns, NB, kernels, "fp64" if pivoted else "fp32")
        places = np.ix_(
            [A.rows.to_global(i) for i in range(A.rows.local_size)],
            [A.cols.to_global(j) for j in range(A.cols.local_size)],
        )
        blocks = DiagonalBlocks(A, kernels)
        checkpointer = Memory(A, steps)
        if begin is None:
            system = generator("hpl" if pivoted else "sqrt-n", N)
            kernels.generate(A.local, A.rows, A.cols, system.entries)
            if system.diagonal is not None:  # otherwise entries of the LU without pivoting grow to 10^4
                A.local[np.equal.outer(places[0][:, 0], places[1][0])] = system.diagonal
        else:
            first, whole, notes = begin
            A.local[:] = whole[places]
            checkpointer = Memory(A, steps, first, notes)
            blocks.restore(notes["blocks"])
        algorithm: Any = pivoted_lu if pivoted else lu
        algorithm.factorize(A, VARIANTS[name], kernels, Spans(), blocks, checkpointer)
        return places, np.array(A.local), blocks.report(with_l=not pivoted), checkpointer.kept

    results = run_ranks(shape[0] * shape[1], body)

    def whole(parts: Any) -> Any:
        out = np.full((N, columns), np.nan)
        for (places, *_), part in zip(results, parts):
            out[places] = part
        return out

    kept = {
        step: (
            step,
            whole(kept[step][0] for *_, kept in results),
            {key: np.max([kept[step][1][key] for *_, kept in results], axis=0) for key in results[0][3][step][1]},
        )
        for step in steps
    }
    return whole(local for _, local, *_ in results), results[0][2], kept


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("shapes", [((1, 1), (1, 1)), ((2, 2), (2, 2)), ((2, 3), (1, 3)), ((1, 3), (3, 2))], ids=str)
def test_an_lu_continues_from_a_stored_state(name: str, shapes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    """U and b̂ (for HPL-MxP also L) are within 100·n·u·|A| of an uninterrupted run: both are backward stable."""
    upper = np.triu if name.startswith("HPL,") else np.asarray
    want, report, _ = factored(name, shapes[0], ())
    same, same_report, kept = factored(name, shapes[0], (1, 3, 7))
    bound = 100 * N * (2.0**-53 if name.startswith("HPL,") else 2.0**-24) * np.abs(upper(want)).max()
    bound *= 1e3 if name.startswith("HPL,") else 1.0  # the condition of HPL's system of this order
    assert np.abs(upper(same) - upper(want)).max() <= bound
    for begin in kept.values():
        assert np.isfinite(begin[1]).all() or name.startswith("HPL,")
        again, again_report, _ = factored(name, shapes[1], (5,) if begin[0] < 5 else (), begin)
        assert np.abs(upper(again) - upper(want)).max() <= bound, begin[0]
        assert again_report.block == same_report.block == report.block

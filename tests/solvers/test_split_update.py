"""Test that the split update waits for no row swap of the same step."""

from __future__ import annotations

from typing import Any

import pytest

from mxpeak.comm.grid import make_grid
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.distributed.dense import dist_matrix
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.generators import generator
from mxpeak.layout.grid import ProcessGrid
from mxpeak.solvers.lu.pivoted_lu import PivotedLuOptions, factorize
from mxpeak.solvers.lu.row_swap import RowSwap, SwapOptions
from mxpeak.spans import Spans

N, NB = 96, 8
#: The steps whose left section is not empty, neither now nor in the previous step.
SERVED = range(1, 4)


class Noting(HostKernels):
    """Kernels that record the number of updated columns, and the solver's steps and row swaps in between."""

    def __init__(self) -> None:
        super().__init__(1)
        self.noted: list[tuple[str, int]] = []

    def subtract_product(self, C: Any, A: Any, B: Any) -> None:
        self.noted.append(("columns", B.shape[1]))
        super().subtract_product(C, A, B)


def hidden_behind(noted: list[tuple[str, int]]) -> dict[int, list[int]]:
    """Return the columns that were updated between the start and the end of each swap, by the step of its end."""
    step, begun, hidden, columns = 0, {}, {}, 0  # type: int, dict[int, int], dict[int, list[int]], int
    for what, number in noted:
        if what == "columns":
            columns += number
        elif what == "start":
            begun[number] = columns
        elif what == "finish":
            hidden.setdefault(step, []).append(columns - begun.pop(number))
        else:
            step = number
    return hidden


def test_every_row_swap_is_hidden_behind_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    start, finish = RowSwap.start, RowSwap.finish

    def noting_start(self: Any, options: SwapOptions, before: RowSwap | None = None) -> None:
        if self.columns:
            self._kernels.noted.append(("start", id(self)))
        start(self, options, before)

    def noting_finish(self: Any, spans: Spans) -> None:
        if self.columns:
            self._kernels.noted.append(("finish", id(self)))
        finish(self, spans)

    monkeypatch.setattr(RowSwap, "start", noting_start)
    monkeypatch.setattr(RowSwap, "finish", noting_finish)

    def body(comm: Any) -> list[tuple[str, int]]:
        kernels = Noting()
        grid = make_grid(ProcessGrid(2, 1), comm)
        assert grid is not None
        A = dist_matrix(grid, N, N + 1, NB, kernels)
        kernels.generate(A.local, A.rows, A.cols, generator("hpl", N).entries)

        class Watching(Spans):
            def step(self, index: int, count: int, done_flops: float) -> None:
                kernels.noted.append(("step", index))
                super().step(index, count, done_flops)

        assert factorize(A, PivotedLuOptions(split=0.5), kernels, Watching()) == 0
        return kernels.noted

    for noted in run_ranks(2, body):
        behind = hidden_behind(noted)
        for step in SERVED:
            assert len(behind[step]) == 3, "the next panel's columns, the left section's, the right one's"
            assert all(columns >= NB for columns in behind[step]), f"step {step}: {behind[step]} columns"


@pytest.mark.parametrize(
    ("swap", "binary"), [("bin", (True, True, True)), ("long", (False, False, False)), ("mix", (True, True, False))]
)
def test_the_option_selects_the_algorithm_by_the_number_of_columns(swap: str, binary: tuple[bool, ...]) -> None:
    assert tuple(SwapOptions(swap, threshold=64).binary(columns) for columns in (0, 64, 65)) == binary

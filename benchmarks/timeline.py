"""Show step by step what runs hide, on virtual GPUs with the rates of a machine that is not available.

    python -m benchmarks.timeline FOLDER

The script writes figure 7 of the rocHPL paper for its node (4 MI250X, N = 256,000, NB = 512, 4×2, split 50 %), and the
same for HPL-MxP on one H200 (N = 172,032, NB = 1024), as text. It also writes the drawn steps as traces for
ui.perfetto.dev. Only some steps of each run are executed, and the other steps are interpolated. No value is measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

from mxpeak.perf.simulation.machines import find_machine
from mxpeak.solvers.lu.lu import MixedLuOptions
from mxpeak.solvers.lu.pivoted_lu import PivotedLuOptions
from tests.support.queues import windows
from tests.support.queues.hiding import StepTimes, clipped, length, mean_of, perfetto, table, union, whole
from tests.support.queues.log import Log
from tests.support.queues.sizes import Blocks
from tests.support.queues.timeline import Model, play

#: Columns of the small blocks that represent large ones, and the number of successive steps.
NB, STEPS = 4, 4
#: The executed steps of HPL, which are close to each other where hiding ends.
PLACES = (2, 30, 60, 90, 120, 150, 180, *range(198, 258, 4), 280, 310, 370, 430, 490)
H200 = Path(__file__).parents[1] / "tests" / "queues" / "h200.toml"


@cache
def hpl(first: int) -> list[Log]:
    """Return steps of HPL on rocHPL's node."""
    return windows.hpl((4, 2), 500, NB, range(first, first + STEPS), PivotedLuOptions(split=0.5), "mpi")


@cache
def hpl_mxp(first: int) -> list[Log]:
    """Return steps of HPL-MxP on one device."""
    return windows.hpl_mxp((1, 1), 168, NB, range(first, first + STEPS), MixedLuOptions("fp16"), "mpi")


def drawn(
    out: Path, name: str, work: Callable[[int], list[Log]], steps: Sequence[int], model: Model
) -> list[StepTimes]:
    """Return the mean of all ranks' steps at the given steps, and write their traces."""
    means = []
    for first in steps:
        ranks = play(work(first), model)
        (out / f"{name}-{first}.json").write_text(perfetto(ranks))
        means.append(replace(mean_of(ranks), step=first))
    return means


def panels(first: int, model: Model) -> tuple[float, float]:
    """Return the time of HPL-MxP's panels from step `first` + 1 on, and the part of it behind products."""
    (played,) = play(hpl_mxp(first), model)
    begun = played.steps[1]
    made = union(bar for bar in played.bars if bar.begin >= begun and bar.op.actor.startswith("stream"))
    products = union(bar for bar in played.bars if bar.op.actor == "main 0" and bar.op.kind == "gemm")
    return length(made), sum(length(clipped(products, *one)) for one in made)


def hidden_panels(places: Sequence[int], model: Model, end: float) -> str:
    """Return the share of the panels' time up to a step that products hide, by the trapezoidal rule."""
    at = [k for k in places if k <= end]
    times = [panels(first, model) for first in at]
    total, behind = (
        sum((k1 - k0) * (a[i] + b[i]) / 2 for (k0, a), (k1, b) in pairwise(zip(at, times))) for i in range(2)
    )
    share = behind / total
    each = ", ".join(f"{first}: {100 * b / a:.0f}" for first, (a, b) in zip(at, times))
    return f"of the panels' time up to step {at[-1]} products hide {100 * share:.0f} %; by step, in %: {each}\n"


def summary(steps: Sequence[StepTimes], nb: int, count: int) -> str:
    """Return the rate of the complete run, interpolated from the drawn steps, and how long everything is hidden."""
    run = whole(steps, count)
    rate = 2.0 / 3.0 * (nb * count) ** 3 / run.total
    return (
        f"{run.total:.1f} s, {rate / 1e12:.1f} TFLOP/s; steps take at most 1.1 times what their device is active until "
        f"{run.until}: {100 * run.until / count:.0f} % of them and {100 * run.until_s / run.total:.0f} % of the time\n"
    )


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Show what runs on virtual GPUs hide.")
    parser.add_argument("folder", type=Path)
    out = parser.parse_args(argv).folder
    out.mkdir(parents=True, exist_ok=True)
    node = Model(find_machine("crusher"), Blocks(NB, 512), node=(4, 2))
    steps = drawn(out, "hpl", hpl, PLACES, node)
    text = f"rocHPL's node: {summary(steps, 512, 500)}{table(steps)}\n"
    places, h200 = range(0, 165, 12), Model(find_machine(str(H200)), Blocks(NB, 1024))
    steps = drawn(out, "hpl-mxp", hpl_mxp, places, h200)
    text += f"HPL-MxP on one H200: {summary(steps, 1024, 168)}{table(steps)}\n"
    text += hidden_panels((*places[:9], *range(102, 152, 7)), h200, 0.9 * 168)
    (out / "timeline.txt").write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main(sys.argv[1:])

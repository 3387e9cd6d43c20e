"""What is hidden, step by step: runs on virtual GPUs, played with the rates of a machine that is not there.

    python -m benchmarks.timeline FOLDER

writes rocHPL's figure 7 for its node (4 MI250X, N = 256,000, NB = 512, 4×2, split 50 %) and the same of HPL-MxP on one
H200 (N = 172,032, NB = 1024) as text, and the steps in which each is drawn as traces for ui.perfetto.dev.  A few steps
are done out of each run, the others lie between; no figure is a measurement.
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

#: Columns of the small blocks that stand for large ones, and the steps done together.
NB, STEPS = 4, 4
#: Where HPL's steps are done: close together where hiding ends.
PLACES = (2, 30, 60, 90, 120, 150, 180, *range(198, 258, 4), 280, 310, 370, 430, 490)
H200 = Path(__file__).parents[1] / "tests" / "queues" / "h200.toml"


@cache
def hpl(first: int) -> list[Log]:
    """Steps of HPL on rocHPL's node."""
    return windows.hpl((4, 2), 500, NB, range(first, first + STEPS), PivotedLuOptions(split=0.5), "mpi")


@cache
def hpl_mxp(first: int) -> list[Log]:
    """Steps of HPL-MxP on one device."""
    return windows.hpl_mxp((1, 1), 168, NB, range(first, first + STEPS), MixedLuOptions("fp16"), "mpi")


def drawn(
    out: Path, name: str, work: Callable[[int], list[Log]], steps: Sequence[int], model: Model
) -> list[StepTimes]:
    """The mean of all ranks' steps at each of some places; their traces are written."""
    means = []
    for first in steps:
        ranks = play(work(first), model)
        (out / f"{name}-{first}.json").write_text(perfetto(ranks))
        means.append(replace(mean_of(ranks), step=first))
    return means


def panels(first: int, model: Model) -> tuple[float, float]:
    """Seconds of HPL-MxP's panels in the steps from here on but for the first, and those behind products."""
    (played,) = play(hpl_mxp(first), model)
    begun = played.steps[1]
    made = union(bar for bar in played.bars if bar.begin >= begun and bar.op.actor.startswith("stream"))
    products = union(bar for bar in played.bars if bar.op.actor == "main 0" and bar.op.kind == "gemm")
    return length(made), sum(length(clipped(products, *one)) for one in made)


def hidden_panels(places: Sequence[int], model: Model, end: float) -> str:
    """The share of the panels' time that products hide up to a step, trapezoids between places."""
    at = [k for k in places if k <= end]
    times = [panels(first, model) for first in at]
    total, behind = (
        sum((k1 - k0) * (a[i] + b[i]) / 2 for (k0, a), (k1, b) in pairwise(zip(at, times))) for i in range(2)
    )
    share = behind / total
    each = ", ".join(f"{first}: {100 * b / a:.0f}" for first, (a, b) in zip(at, times))
    return f"of the panels' time up to step {at[-1]} products hide {100 * share:.0f} %; by step, in %: {each}\n"


def summary(steps: Sequence[StepTimes], nb: int, count: int) -> str:
    """The whole run by the steps that are drawn: its rate, and how long all is hidden."""
    run = whole(steps, count)
    rate = 2.0 / 3.0 * (nb * count) ** 3 / run.total
    return (
        f"{run.total:.1f} s, {rate / 1e12:.1f} TFLOP/s; steps take at most 1.1 times what their device is active until "
        f"{run.until}: {100 * run.until / count:.0f} % of them and {100 * run.until_s / run.total:.0f} % of the time\n"
    )


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="What runs on virtual GPUs hide.")
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

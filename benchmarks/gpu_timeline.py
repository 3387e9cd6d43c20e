"""Compare the steps of HPL and HPL-MxP on a GPU, measured by torch's profiler, with the model of `timeline.py`.

    python -m benchmarks.gpu_timeline FOLDER --machine tests/queues/h200.toml

The script writes the traces (for ui.perfetto.dev) and timeline.txt. For each benchmark, timeline.txt contains a table
of the measured steps, a table of the modeled steps, and their totals. The model executes the same run on virtual
queues, with the rates of the machine file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.torch.engine.device import open_device
from mxpeak.kernels.torch.kernels import TorchKernels
from mxpeak.perf.simulation.machines import find_machine
from tests.support.queues.hiding import steps_of
from tests.support.queues.profiled import CASES, SMALL, beside, traced
from tests.support.queues.sizes import Blocks
from tests.support.queues.timeline import Model, play
from tests.support.queues.traces import played_of

H200 = "tests/queues/h200.toml"


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Compare measured steps with modeled steps.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--machine", default=H200, help="machine of the model (default: %(default)s)")
    parser.add_argument("--blocks", type=int, help="number of block columns of a matrix (default: 48)")
    args = parser.parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    machine, text = find_machine(args.machine), ""
    kernels = TorchKernels(open_device("cuda"), HostKernels(1))
    for case in CASES:
        blocks = args.blocks or case.blocks
        trace = traced(kernels, case, blocks, args.folder / f"{case.name}-trace.json")
        (played,) = play(case.modelled(blocks), Model(machine, Blocks(SMALL, case.nb)))
        text += beside(case.name, steps_of(played_of(trace)), steps_of(played))
    (args.folder / "timeline.txt").write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main(sys.argv[1:])

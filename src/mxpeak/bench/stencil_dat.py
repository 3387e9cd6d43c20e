"""Read and write hpcg.dat and hpgmp.dat: two title lines, the box per rank, the run time, an optional process grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mxpeak.bench.dat import Dat
from mxpeak.configs.sparse import SparseConfig
from mxpeak.errors import UsageError
from mxpeak.options import integer, real

LINES = 4
#: The box side and the run time in seconds of the hpcg.dat in HPCG's source.
SAMPLE_NX, SAMPLE_S = 104, 60


def read_values(text: str, source: str, seconds: Callable[[str], float]) -> dict[str, Any]:
    """Parse the text of an input file and return its values, keyed by the fields of SparseConfig.

    Errors name the file `source`. The function `seconds` parses the run time.
    """
    dat = Dat.of(text, source, LINES)
    box = dat.row(3, "nx ny nz", 3, integer(1))
    values = dict(zip(("nx", "ny", "nz"), box)) | {"rt": dat.value(4, "seconds", seconds)}
    if len(dat.lines) > LINES and dat.lines[LINES].split():
        grid = zip(("npx", "npy", "npz"), dat.row(5, "npx npy npz", 3, integer(0)))
        values |= {name: ranks for name, ranks in grid if ranks}  # 0: the reference code chooses
    return values


def measurable_seconds(text: str) -> float:
    """Parse a run time above zero."""
    if (value := real()(text)) > 0.0:
        return value
    raise UsageError(f"{value:g} seconds is too short to measure; use 1800 for an official run, or 60 for a test")


def dat_text(title: str, config: SparseConfig) -> str:
    """Return the text of an input file with which the reference code runs this configuration.

    Options that are not set have the values of the reference code's own file. The run time is rounded to whole
    seconds.
    """
    box = config.shape or (SAMPLE_NX,) * 3
    seconds, grid = max(1, round(config.rt or SAMPLE_S)), (config.npx, config.npy, config.npz)
    lines = [title, "written by mxpeak", " ".join(map(str, box)), str(seconds)]
    lines += [" ".join(map(str, grid))] if all(grid) else []
    return "\n".join(lines) + "\n"

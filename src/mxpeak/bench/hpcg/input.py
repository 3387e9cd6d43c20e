"""hpcg.dat, HPCG's input file: two lines of text, a rank's box, the seconds, and the process grid if it is given."""

from __future__ import annotations

from typing import Any

from mxpeak.bench.dat import Dat
from mxpeak.bench.hpcg.config import HpcgConfig
from mxpeak.errors import UsageError
from mxpeak.options import integer, real

LINES = 4
#: What the file in HPCG's source says.
SAMPLE_NX, SAMPLE_S = 104, 60


def read_dat(text: str, source: str) -> dict[str, Any]:
    """The values of an hpcg.dat, keyed as the fields of HpcgConfig; `source` names the file in errors."""
    dat = Dat.of(text, source, LINES)
    box = dat.row(3, "nx ny nz", 3, integer(1))
    found = dict(zip(("nx", "ny", "nz"), box)) | {"rt": dat.one(4, "seconds", _seconds)}
    if len(dat.lines) > LINES and dat.lines[LINES].split():
        grid = zip(("npx", "npy", "npz"), dat.row(5, "npx npy npz", 3, integer(0)))
        found |= {name: ranks for name, ranks in grid if ranks}  # 0: as HPCG likes
    return found


def _seconds(text: str) -> float:
    value = real()(text)
    if value <= 0.0:
        raise UsageError(f"{value:g} seconds is too short to measure; use 1800 for an official run, or 60 for a test")
    return value


def write_dat(config: HpcgConfig) -> str:
    """The hpcg.dat that makes HPCG run what `config` says; where that says nothing, as in the file of its source.

    HPCG reads whole seconds.
    """
    box = config.shape or (SAMPLE_NX,) * 3
    lines = [
        "HPCG benchmark input file",
        "written by mxpeak",
        " ".join(map(str, box)),
        str(max(1, round(config.rt or SAMPLE_S))),
    ]
    grid = (config.npx, config.npy, config.npz)
    lines += [" ".join(map(str, grid))] if all(grid) else []
    return "\n".join(lines) + "\n"

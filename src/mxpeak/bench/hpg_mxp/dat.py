"""Read and write hpgmp.dat, which has the lines of an hpcg.dat."""

from __future__ import annotations

from typing import Any

from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.bench.stencil_dat import dat_text, measurable_seconds, read_values
from mxpeak.configs.sparse import OFFICIAL_S
from mxpeak.options import real


def read_dat(text: str, source: str) -> dict[str, Any]:
    """Parse the text of an hpgmp.dat and return its values, keyed by the fields of HpgMxpConfig.

    Errors name the file `source`.
    """
    return read_values(text, source, _seconds)


def _seconds(text: str) -> float:
    """Parse the run time; a negative time, such as the -1 of the reference code's file, selects the official time."""
    return float(OFFICIAL_S) if real()(text) < 0.0 else measurable_seconds(text)


def write_dat(config: HpgMxpConfig) -> str:
    """Return the text of an hpgmp.dat with which the reference code runs this configuration."""
    return dat_text("HPG-MxP benchmark input file", config)

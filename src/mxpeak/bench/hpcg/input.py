"""Read and write hpcg.dat."""

from __future__ import annotations

from typing import Any

from mxpeak.bench.hpcg.config import HpcgConfig
from mxpeak.bench.stencil_dat import dat_text, measurable_seconds, read_values


def read_dat(text: str, source: str) -> dict[str, Any]:
    """Parse the text of an hpcg.dat and return its values, keyed by the fields of HpcgConfig.

    Errors name the file `source`.
    """
    return read_values(text, source, measurable_seconds)


def write_dat(config: HpcgConfig) -> str:
    """Return the text of an hpcg.dat with which HPCG runs this configuration."""
    return dat_text("HPCG benchmark input file", config)

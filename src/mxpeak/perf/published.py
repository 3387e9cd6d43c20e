"""Published rates of known device models, to answer which rates a device should reach."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

#: Titles of the rates in the order of printing. Rates of memory are in bytes/s, all others in flop/s.
TITLES = {
    "peak_fp64": "FP64 peak",
    "peak_fp16": "FP16 peak",
    "peak_read": "memory peak",
    "dgemm": "DGEMM",
    "hpl": "HPL",
    "hpl_mxp": "HPL-MxP",
    "hpcg": "HPCG",
}


@dataclass(frozen=True, slots=True)
class PublishedRate:
    """A published rate of one device, in flop/s or bytes/s, with its source."""

    name: str
    rate: float
    source: str

    def as_dict(self) -> dict[str, Any]:
        """Return the rate as a dictionary with the key `rate_flops` or `rate_bytes`."""
        unit = "rate_bytes" if self.name == TITLES["peak_read"] else "rate_flops"
        return {"name": self.name, unit: self.rate, "source": self.source}


@cache
def _models() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads((files("mxpeak") / "perf" / "published.toml").read_text(encoding="utf-8"))


@cache
def published_rates(model: str) -> tuple[PublishedRate, ...]:
    """Return the published rates of a device with this name, or an empty tuple if the model is unknown."""
    for entry in _models().values():
        if any(re.search(name, model) for name in entry["names"]):
            rates = {name: entry[name] for name in TITLES if name in entry}
            return tuple(PublishedRate(TITLES[name], each["value"], each["source"]) for name, each in rates.items())
    return ()

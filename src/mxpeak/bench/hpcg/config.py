"""The configuration of HPCG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mxpeak.configs.sparse import SparseConfig


@dataclass(frozen=True, kw_only=True)
class HpcgConfig(SparseConfig):
    """The options of `mxpeak run hpcg`."""

    both_ways: ClassVar[bool] = True

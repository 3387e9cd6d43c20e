"""What HPCG is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mxpeak.configs.sparse import SparseConfig


@dataclass(frozen=True, kw_only=True)
class HpcgConfig(SparseConfig):
    """All that `mxpeak run hpcg` can be told."""

    both_ways: ClassVar[bool] = True

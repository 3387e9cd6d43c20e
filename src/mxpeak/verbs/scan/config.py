"""What a scan is told, and what it shows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from mxpeak.configs.run import PlaceConfig, ShowConfig
from mxpeak.options import count, integer, one_of, option, share
from mxpeak.precision import PRECISIONS


@dataclass(frozen=True, kw_only=True)
class ScanConfig(PlaceConfig):
    """All that `mxpeak scan` can be told about what it measures."""

    GPU_DEFAULTS = {"nb": 1024, "precision": "fp16"}  # noqa: RUF012

    def natively(self, native: Collection[str]) -> dict[str, Any]:
        """As HPL-MxP: bf16 and longer blocks."""
        precision = self.precision or ("bf16" if "bf16" in native else None)
        return {"precision": precision, "nb": 512} if precision in native else {}

    n: int | None = option(
        None,
        "-N",
        "--n",
        help="order of each rank's matrix (default: sized for one second per round)",
        metavar="N",
        parse=count(1),
        group="problem",
    )
    nb: int = option(
        320,
        "--nb",
        help="block size (default: 320; 512 with 16-bit products; 1024 on a GPU)",
        metavar="NB",
        parse=integer(1),
        group="problem",
    )
    precision: str | None = option(
        None,
        "--precision",
        help="operand precision: " + ", ".join(PRECISIONS) + " (default: as in hpl-mxp)",
        metavar="NAME",
        parse=one_of(*PRECISIONS),
        group="problem",
    )
    rounds: int = option(
        5,
        "--rounds",
        help="number of rounds in which all ranks measure",
        metavar="K",
        parse=integer(1, 1000),
        group="measuring",
    )
    warmup: str = option(
        "full",
        "--warmup",
        help="warm-up before the first round: none, gemm or full",
        metavar="{none,gemm,full}",
        parse=one_of("none", "gemm", "full"),
        group="measuring",
    )
    tolerance: float = option(
        0.05,
        "--tolerance",
        help="largest slowdown that is not reported (default: 5%%)",
        metavar="5%",
        parse=share,
        group="measuring",
    )


@dataclass(frozen=True, kw_only=True)
class ScanOutput(ShowConfig):
    """What a scan shows and writes."""

    write_exclude: str | None = option(
        None,
        "--write-exclude",
        help="write hosts with slow ranks or wrong results to FILE",
        metavar="FILE",
        parse=str,
        users_path=True,
        group="output",
    )
    exclude_format: str = option(
        "slurm",
        "--exclude-format",
        help="format of --write-exclude: slurm (node[003,007-009]) or hostfile (one host per line)",
        metavar="{slurm,hostfile}",
        parse=one_of("slurm", "hostfile"),
        group="output",
    )

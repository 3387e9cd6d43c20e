"""Options of `mxpeak scan`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from mxpeak.configs.run import CI_FORMATS, PlaceConfig, ShowConfig
from mxpeak.errors import UsageError
from mxpeak.options import (
    boolean,
    byte_rate,
    count,
    integer,
    listed,
    name_in,
    one_of,
    option,
    share,
    stall_limit,
    users_file,
    users_folder,
)
from mxpeak.precision import PRECISIONS

#: Values of each profile for options that are not set.
PROFILES: dict[str, dict[str, Any]] = {
    "quick": {"rounds": 3, "warmup": "gemm"},
    "standard": {"rounds": 9, "links": True},
    "deep": {"rounds": 500, "links": True},
}


@dataclass(frozen=True, kw_only=True)
class ScanConfig(PlaceConfig):
    """Options of the measurement of a scan."""

    def on_chip(self, chip: str) -> dict[str, Any]:
        """Return the default precision and NB on a GPU, as in HPL or HPL-MxP."""
        return {"nb": 512, "precision": "fp64"} if self.factored == "hpl" else {"nb": 1024, "precision": "fp16"}

    def natively(self, native: Collection[str]) -> dict[str, Any]:
        """Return the default precision and NB on a processor: as in HPL, or with native 16-bit products, in HPL-MxP."""
        if self.factored == "hpl":
            return {"precision": "fp64", "nb": 192}
        precision = self.precision or ("bf16" if "bf16" in native else None)
        return {"precision": precision, "nb": 512} if precision in native else {}

    @property
    def factored(self) -> str:
        """Return the benchmark that factors a matrix: by default, hpl for nodes and groups, and hpl-mxp for ranks."""
        return self.benchmark or ("hpl" if self.unit in ("node", "group") else "hpl-mxp")

    def check_precision(self) -> None:
        """Raise a UsageError if HPL would compute in another precision than fp64."""
        if self.factored == "hpl" and self.precision not in (None, "fp64"):
            raise UsageError(
                f"--precision {self.precision} does not apply to HPL, which computes in fp64; use --benchmark hpl-mxp, "
                "or remove --precision"
            )

    def leaves_panels(self, ranks: int) -> bool:
        """Return whether hosts may factor the panels of devices, because units have several process rows."""
        return self.factored == "hpl" and self.unit in ("node", "group") and ranks > 3

    benchmark: str | None = option(
        None, one_of("hpl", "hpl-mxp"), "hpl, or the LU of hpl-mxp (default: hpl for nodes and groups)", "problem"
    )
    n: int | None = option(
        None,
        count(1),
        "order of the matrix per unit (default: sized for one second per round)",
        "problem",
        flags=("-N", "--n"),
    )
    nb: int = option(320, integer(1), "block size (default: that of the benchmark on this processor)", "problem")
    precision: str | None = option(
        None,
        name_in(PRECISIONS),
        f"precision of hpl-mxp: {', '.join(PRECISIONS)} (default: as in mxpeak run)",
        "problem",
    )
    unit: str = option(
        "rank",
        one_of("rank", "device", "node", "group"),
        "units to compare: ranks, nodes or groups of nodes",
        "measuring",
    )
    group: tuple[int, ...] = option(
        (2,), listed(integer(2)), "number of nodes per group, with --unit group (default: 2)", "measuring", "2,4,8"
    )
    profile: str | None = option(
        None, one_of(*PROFILES), "quick: 3 rounds; standard: 9, links; deep: 500, links", "measuring"
    )
    rounds: int = option(5, integer(1, 1000), "number of rounds in which all ranks measure", "measuring", "K")
    warmup: str = option(
        "full", one_of("none", "gemm", "full"), "warm-up before the first round: none, gemm or full", "measuring"
    )
    watchdog: str = option(
        "10,60",
        stall_limit,
        "end the scan after K longest steps and S seconds without progress",
        "measuring",
        "{K[,S],off}",
    )
    tolerance: float = option(0.05, share, "largest slowdown that is not reported (default: 5%%)", "measuring", "5%")
    against: str | None = option(
        None, users_file, "compare with the rates of mxpeak baseline from, in FILE", "measuring"
    )
    links: bool = option(False, boolean, "also measure the links between all ranks and nodes", "links")
    min_link: float | None = option(
        None, byte_rate, "report links with a lower bandwidth, such as 20GB/s (default: none)", "links", "RATE"
    )
    link_tolerance: float = option(
        0.3, share, "largest slowdown of a link that is not reported (default: 30%%)", "links", "30%"
    )


@dataclass(frozen=True, kw_only=True)
class ScanOutput(ShowConfig):
    """Options of the output of a scan."""

    out: str | None = option(
        None, users_folder, "folder for the result files (default: a new folder in mxpeak-out/)", "output"
    )
    format: str = option("text", one_of("text", *CI_FORMATS), "format on stdout: text, junit or bencher", "output")
    prometheus: str | None = option(None, users_file, "write metrics for Prometheus to FILE", "output")
    write_exclude: str | None = option(
        None, users_file, "write hosts with slow ranks or wrong results to FILE", "output"
    )
    exclude_format: str = option(
        "slurm",
        one_of("slurm", "hostfile"),
        "format of --write-exclude: slurm (node[003,007-009]) or hostfile (one host per line)",
        "output",
    )
    write_drain: str | None = option(
        None, one_of("slurm"), "write drain.sh, a script that drains slow and faulty nodes", "output", "slurm"
    )

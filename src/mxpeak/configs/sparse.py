"""What the benchmarks of the 27-point problem are told: boxes, ranks, storage, order of the smoother."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from mxpeak.configs.run import RunConfig
from mxpeak.errors import UsageError
from mxpeak.options import Setting, boolean, integer, one_of, option, seconds

#: Seconds that both benchmarks' rules ask for.
OFFICIAL_S = 1800


@dataclass(frozen=True, kw_only=True)
class SparseConfig(RunConfig):
    """A benchmark of the 27-point problem, whose ranks own a box of points each: one case, no lists.

    both_ways   whether its sweeps go forward and backward
    """

    both_ways: ClassVar[bool] = False

    nx: int | None = option(
        None,
        "--nx",
        help="grid points per rank in each direction (default: 104)",
        metavar="NX",
        parse=integer(1),
        group="problem",
    )
    ny: int | None = option(
        None,
        "--ny",
        help="grid points per rank in the y direction (default: as in x)",
        metavar="NY",
        parse=integer(1),
        group="problem",
    )
    nz: int | None = option(
        None,
        "--nz",
        help="grid points per rank in the z direction (default: as in x)",
        metavar="NZ",
        parse=integer(1),
        group="problem",
    )
    npx: int | None = option(
        None,
        "--npx",
        help="number of ranks in the x direction (default: a grid close to a cube)",
        metavar="PX",
        parse=integer(1),
        group="grid",
    )
    npy: int | None = option(
        None, "--npy", help="number of ranks in the y direction", metavar="PY", parse=integer(1), group="grid"
    )
    npz: int | None = option(
        None, "--npz", help="number of ranks in the z direction", metavar="PZ", parse=integer(1), group="grid"
    )
    storage: str = option(
        "auto",
        "--storage",
        help="storage format of sparse matrices: auto, rows, ell, sell or packed",
        metavar="{auto,rows,ell,sell,packed}",
        parse=one_of("auto", "rows", "ell", "sell", "packed"),
        group="precision and rules",
    )
    smoother: str = option(
        "auto",
        "--smoother",
        help="order of Gauss-Seidel sweeps: auto, natural, reference or coloured",
        metavar="{auto,natural,reference,coloured}",
        parse=one_of("auto", "natural", "reference", "coloured"),
        group="precision and rules",
    )
    colouring: str = option(
        "greedy",
        "--colouring",
        help="coloring algorithm for --smoother coloured: greedy or jpl (Jones-Plassmann-Luby)",
        metavar="{greedy,jpl}",
        parse=one_of("greedy", "jpl"),
        group="precision and rules",
    )
    mode: str = option(
        "official",
        "--mode",
        help="rules: official (the published rules) or explore (allows more settings)",
        metavar="{official,explore}",
        parse=one_of("official", "explore"),
        group="precision and rules",
    )
    rt: float | None = option(
        None,
        "--rt",
        help="measuring time, such as 90, 30m or 1h (default: 60; the rules require 1800)",
        metavar="SECONDS",
        parse=seconds,
        group="measuring",
    )
    abft: bool = option(
        False, "--abft", help="detect bit flips in solves and matrices", parse=boolean, group="measuring"
    )
    # What this is of a benchmark whose limit is that of memory.
    warmup: str = option(
        "gemm",
        "--warmup",
        help="warm-up before timing; none does not measure the limit (read bandwidth)",
        metavar="{none,gemm,full}",
        parse=one_of("none", "gemm", "full"),
        group="measuring",
    )

    @staticmethod
    def settle(settings: Mapping[str, Setting]) -> dict[str, Setting]:
        """Let the strongest source win: --nx displaces ny and nz of a file, any of --npx, --npy, --npz its grid."""
        settled = dict(settings)
        x, grid = settled["nx"].strength, max(settled[name].strength for name in ("npx", "npy", "npz"))
        for name, least in (("ny", x), ("nz", x), ("npx", grid), ("npy", grid), ("npz", grid)):
            if settled[name].strength < least:
                settled[name] = Setting(None, "default")
        return settled

    @property
    def least_ranks(self) -> int:
        """The ranks that the given sides of the process grid need."""
        return prod(n for n in (self.npx, self.npy, self.npz) if n is not None)

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """The points of a rank's box in x, y, z; None where they were left open."""
        if self.nx is not None:
            return self.nx, self.ny or self.nx, self.nz or self.nx
        for flag, n in (("--ny", self.ny), ("--nz", self.nz)):
            if n is not None:
                raise UsageError(f"{flag} {n} needs --nx; add --nx {n}")
        return None

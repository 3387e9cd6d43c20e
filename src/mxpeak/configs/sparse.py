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
        help="points of a rank's box in x, also in y and z unless given (default: 104, or "
        "what --mem allows, or --quick)",
        metavar="NX",
        parse=integer(1),
        group="problem",
    )
    ny: int | None = option(
        None,
        "--ny",
        help="points of a rank's box in y (default: as in x)",
        metavar="NY",
        parse=integer(1),
        group="problem",
    )
    nz: int | None = option(
        None,
        "--nz",
        help="points of a rank's box in z (default: as in x)",
        metavar="NZ",
        parse=integer(1),
        group="problem",
    )
    npx: int | None = option(
        None,
        "--npx",
        help="ranks in x (default: a process grid as close to a cube as possible)",
        metavar="PX",
        parse=integer(1),
        group="grid",
    )
    npy: int | None = option(None, "--npy", help="ranks in y", metavar="PY", parse=integer(1), group="grid")
    npz: int | None = option(None, "--npz", help="ranks in z", metavar="PZ", parse=integer(1), group="grid")
    storage: str = option(
        "auto",
        "--storage",
        help="how matrices are stored: rows (one after the other), ell (64 side by side, padded to one length), sell "
        "(padded in slices), packed (with compressed column numbers)",
        metavar="{auto,rows,ell,sell,packed}",
        parse=one_of("auto", "rows", "ell", "sell", "packed"),
        group="precision and rules",
    )
    smoother: str = option(
        "auto",
        "--smoother",
        help="order of Gauss-Seidel: natural, row after row, those that need other ranks last; reference, row after "
        "row as they stand, so that a rank waits for its neighbours before each sweep; coloured, where the rows of a "
        "colour do not depend on each other; auto: natural with --storage rows, and packed for HPCG, else coloured",
        metavar="{auto,natural,reference,coloured}",
        parse=one_of("auto", "natural", "reference", "coloured"),
        group="precision and rules",
    )
    colouring: str = option(
        "greedy",
        "--colouring",
        help="how --smoother coloured finds its colours: greedy, row by row; or jpl, Jones, Plassmann and Luby's",
        metavar="{greedy,jpl}",
        parse=one_of("greedy", "jpl"),
        group="precision and rules",
    )
    mode: str = option(
        "official",
        "--mode",
        help="official: by the published rules; explore: beyond them, and results are labelled",
        metavar="{official,explore}",
        parse=one_of("official", "explore"),
        group="precision and rules",
    )
    rt: float | None = option(
        None,
        "--rt",
        help="seconds to measure, or 30m, 1h (default: 60; the rules ask for 1800)",
        metavar="SECONDS",
        parse=seconds,
        group="measuring",
    )
    abft: bool = option(
        False,
        "--abft",
        help="compare the residuals that solves carry with b - A x, and the matrices with what they were: flipped bits "
        "are found on the way",
        parse=boolean,
        group="measuring",
    )
    # What this is of a benchmark whose limit is that of memory.
    warmup: str = option(
        "gemm",
        "--warmup",
        help="none: do not measure the read bandwidth, which is the limit",
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
                raise UsageError(f"{flag} {n} needs --nx; type --nx {n} too")
        return None

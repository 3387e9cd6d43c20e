"""Options of the benchmarks of the 27-point problem: box, process grid, storage format and smoother."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from mxpeak.configs.run import StoppableConfig
from mxpeak.errors import UsageError
from mxpeak.options import Setting, ValueParser, boolean, integer, internal, one_of, option, quoted, seconds

#: Measuring time in seconds that the rules of both benchmarks require.
OFFICIAL_S = 1800
#: The options that --box replaces.
SIDES = ("nx", "ny", "nz")


def box_sides(text: str) -> tuple[int, int, int]:
    """Parse the sides of a box such as 104x104x96."""
    sides = re.split("[xX×,]", text)
    if len(sides) != 3:
        raise UsageError(f"{quoted(text)} is not a box; use three sides, such as 104x104x96")
    nx, ny, nz = map(integer(1), sides)
    return nx, ny, nz


@dataclass(frozen=True, kw_only=True)
class SparseConfig(StoppableConfig):
    """The options of a benchmark of the 27-point problem, which runs one case.

    both_ways        whether the sweeps go forward and backward (symmetric Gauss–Seidel)
    sides_from_box   whether all sides of the box come from --box, which error messages then name
    """

    both_ways: ClassVar[bool] = False

    nx: int | None = option(None, integer(1), "grid points per rank in each direction (default: 104)", "problem")
    ny: int | None = option(None, integer(1), "grid points per rank in the y direction (default: as in x)", "problem")
    nz: int | None = option(None, integer(1), "grid points per rank in the z direction (default: as in x)", "problem")
    box: tuple[int, int, int] | None = option(
        None,
        ValueParser(box_sides),
        "grid points per rank, as an alternative to --nx, --ny and --nz",
        "problem",
        "NXxNYxNZ",
    )
    npx: int | None = option(
        None, integer(1), "number of ranks in the x direction (default: a grid close to a cube)", "grid", "PX"
    )
    npy: int | None = option(None, integer(1), "number of ranks in the y direction", "grid", "PY")
    npz: int | None = option(None, integer(1), "number of ranks in the z direction", "grid", "PZ")
    process_grid: str = option(
        "cube",
        one_of("cube", "auto"),
        "process grid: cube (reference) or auto (for GPUs)",
        "grid",
        "{cube,auto}",
        flags=("--grid",),
    )
    storage: str = option(
        "auto",
        one_of("auto", "rows", "ell", "sell", "packed"),
        "storage format of sparse matrices: auto, rows, ell, sell or packed",
        "precision and rules",
    )
    smoother: str = option(
        "auto",
        one_of("auto", "natural", "reference", "coloured"),
        "order of Gauss-Seidel sweeps: auto, natural, reference or coloured",
        "precision and rules",
    )
    colouring: str = option(
        "greedy",
        one_of("greedy", "jpl"),
        "coloring algorithm for --smoother coloured: greedy or jpl (Jones-Plassmann-Luby)",
        "precision and rules",
    )
    overlap: str = option(
        "on", one_of("on", "off"), "overlap halo exchanges with computation: on or off", "precision and rules"
    )
    zero_guess: str = option(
        "on", one_of("on", "off"), "read only half of the matrix in sweeps from zero: on or off", "precision and rules"
    )
    fused_restriction: str = option(
        "on", one_of("on", "off"), "compute residuals only at the coarse points: on or off", "precision and rules"
    )
    mode: str = option(
        "official",
        one_of("official", "explore"),
        "rules: official (the published rules) or explore (allows more settings)",
        "precision and rules",
    )
    rt: float | None = option(
        None,
        seconds,
        "measuring time, such as 90, 30m or 1h (default: 60 s; the rules require 1800 s)",
        "measuring",
        "SECONDS",
    )
    abft: bool = option(False, boolean, "detect bit flips in solves and matrices", "measuring")
    sides_from_box: bool = internal(False)
    # This option has another meaning for a benchmark that is limited by memory bandwidth.
    warmup: str = option(
        "gemm",
        one_of("none", "gemm", "full"),
        "warm-up before timing; none does not measure the limit (read bandwidth)",
        "measuring",
    )

    @staticmethod
    def settle(settings: Mapping[str, Setting]) -> dict[str, Setting]:
        """Reset values that a stronger setting replaces: --nx replaces ny and nz, and --npx replaces npy and npz.

        The sides of --box become nx, ny and nz with the origin of --box.
        """
        settled = _with_sides(dict(settings))
        x, grid = settled["nx"].strength, max(settled[name].strength for name in ("npx", "npy", "npz"))
        for name, least in (("ny", x), ("nz", x), ("npx", grid), ("npy", grid), ("npz", grid)):
            if settled[name].strength < least:
                settled[name] = Setting(None, "default")
        if max(settled[name].strength for name in SIDES) > settled["sides_from_box"].strength:
            settled["sides_from_box"] = Setting(False, "default")
        return settled

    @property
    def needs_chunks(self) -> bool:
        """Return whether the sweeps need chunks of independent rows."""
        return False

    @property
    def least_ranks(self) -> int:
        """Return the number of ranks that the given sides of the process grid need, at least 1."""
        return prod(n for n in (self.npx, self.npy, self.npz) if n is not None)

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """Return (nx, ny, nz), the points of a rank's box, or None if the user set no size.

        Raises UsageError if ny or nz is set without nx.
        """
        if self.nx is not None:
            return self.nx, self.ny or self.nx, self.nz or self.nx
        for flag, n in (("--ny", self.ny), ("--nz", self.nz)):
            if n is not None:
                raise UsageError(f"{flag} {n} needs --nx; add --nx {n}")
        return None


def _with_sides(settings: dict[str, Setting]) -> dict[str, Setting]:
    """Return the settings with --box replaced by nx, ny and nz, except for sides from a source of higher precedence."""
    box = settings.pop("box")
    for name, side in zip(SIDES, box.value or ()):
        if settings[name].strength == box.strength:
            raise UsageError(
                f"--box {'x'.join(map(str, box.value))} conflicts with --{name} {settings[name].value}, because both "
                "set the points per rank; use only one of the two flags"
            )
        if settings[name].strength < box.strength:
            settings[name] = Setting(side, box.origin)
    if box.value is not None:
        settings["sides_from_box"] = Setting(True, box.origin)
    return settings | {"box": Setting(None, "default")}

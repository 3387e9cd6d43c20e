"""Options and cases of the LU benchmarks, and the names of broadcasts and matrix generators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

from mxpeak.configs.grid import GridCase, GridConfig, cases_of, each, squarest
from mxpeak.configs.run import StoppableConfig
from mxpeak.errors import UsageError
from mxpeak.options import boolean, count, duration, integer, internal, listed, name_in, option, users_folder

#: The panel broadcasts, in the order of HPL's numbers; `comm.broadcast.register` appends others.
BCASTS = ["1ring", "1ringM", "2ring", "2ringM", "long", "longM", "lib", "ilib"]
#: The generated matrices; `layout.generators.register` appends others.
GENERATORS = ["sqrt-n", "ddd", "fasi-higham", "gaussian", "dominant-n", "icl", "hpl"]


#: The order in a printed input file if -N is not set.
SAMPLE_N = 10_000
#: The minimum number of blocks along an edge of a matrix with a GPU's default NB, and the minimum NB after halving.
GPU_BLOCKS, MIN_GPU_NB = 16, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LuCase(GridCase):
    """One case of an LU benchmark: a process grid, an order N, and one value of each other option."""

    bcast: str = "1ringM"
    depth: int = 1
    seed: int = 100
    threshold: float = 16.0

    @property
    def tag(self) -> str:
        """Return HPL's code for the variant of this case, from the rank order and the broadcast, such as WR1."""
        return f"W{'R' if self.order == 'row' else 'C'}{BCASTS.index(self.bcast)}"


@dataclass(frozen=True, kw_only=True)
class LuConfig(GridConfig, StoppableConfig):
    """Options of the benchmarks that factor matrices.

    case    the class of a case
    loops   the options whose lists are combined, in HPL's loop order after the grid and N
    """

    places_nodes: ClassVar[bool] = True
    case: ClassVar[type[LuCase]]
    loops: ClassVar[tuple[str, ...]]

    n: tuple[int, ...] | None = option(
        None,
        listed(count(1)),
        "order of the matrix (default: the largest that fits in --mem)",
        "problem",
        flags=("-N", "--n"),
    )
    nb: tuple[int, ...] = option((192,), listed(integer(1)), "block size", "problem")
    bcast: tuple[str, ...] = option(
        ("1ringM",), listed(name_in(BCASTS, digits=True)), "panel broadcast algorithm: " + ", ".join(BCASTS), "grid"
    )
    depth: tuple[int, ...] = option(
        (1,), listed(integer(0, 99)), "look-ahead depth: 0 or 1 (larger values act as 1)", "grid", "D,..."
    )

    checkpoint: str | None = option(
        None, users_folder, "write checkpoints to DIR; continue with mxpeak resume DIR", "measuring"
    )
    every: str = option("10m", duration, "time between checkpoints, such as 90s, 10m or 1h", "measuring", "TIME")
    soak: str | None = option(
        None, duration, "repeat each case for TIME; fail unless all results are bitwise identical", "measuring", "TIME"
    )
    abft: bool = option(False, boolean, "detect bit flips in the LU with checksums; correct single errors", "measuring")
    # Set by `mxpeak resume`.
    resumed: bool = internal(False)

    # Only lines 3 and 4 of the benchmark's .dat file set these fields.
    output_file: str = ""
    device_out: int = 6

    def on_chip(self, chip: str) -> dict[str, Any]:
        """Return the default settings on a GPU with this name; NB is halved if the given N has too few blocks."""
        defaults = super().on_chip(chip)
        for nb in defaults.get("nb", ()):
            while nb // 2 >= MIN_GPU_NB and nb * GPU_BLOCKS > max(self.n or (nb * GPU_BLOCKS,)):
                nb //= 2
            defaults["nb"] = (nb,)
        return defaults

    def check_checkpoint(self, cases: int) -> None:
        """Raise a UsageError for runs that --checkpoint does not support."""
        if self.checkpoint is None:
            return
        if cases > 1 or self.repeat > 1 or self.soak is not None:
            runs = f"{cases} cases" if cases > 1 else f"--repeat {self.repeat}"
            runs = f"--soak {self.soak}" if self.soak is not None else runs
            raise UsageError(
                f"--checkpoint supports only one run of one case, not {runs}; use one -N and one --nb, and "
                "remove --repeat and --soak"
            )

    def orders(self, n: Sequence[int] | None) -> Sequence[int]:
        """Return the matrix orders to run: those of the config, or `n` if the config does not set N."""
        orders = self.n if self.n is not None else n
        if orders is None:
            raise UsageError("the order of the matrix is missing; add -N")
        return orders

    def cases(self, ranks: int, n: Sequence[int] | None = None) -> Iterator[Any]:
        """Yield a case for every combination of the listed options, in HPL's loop order.

        `n` contains the matrix orders to use if the config does not set N.
        """
        defaults = {f.name: f.default for f in fields(self.case)}
        lists = [each(name, getattr(self, name) or (defaults[name],)) for name in self.loops]
        return cases_of(self.case, self, self.grid_choices(ranks), each("n", self.orders(n)), *lists)

    def with_sample(self) -> Self:
        """Return the config with a matrix order and a process grid, which an input file needs."""
        n = (SAMPLE_N,) if self.n is None else self.n
        has_grid = self.grid is not None or (self.P is not None and self.Q is not None)
        return replace(self, n=n, grid=self.grid if has_grid else (squarest(self.ranks or 1),))

    @property
    def report_to(self) -> str:
        """Return the target of the report: stdout, stderr or a file name, from lines 3 and 4 of a .dat file."""
        return {6: "stdout", 7: "stderr"}.get(self.device_out, self.output_file)

    def as_run(self, case: Any, ranks: int) -> dict[str, Any]:
        """Return the settings by name, with the matrix orders, process grids and node grid that the run uses."""
        used = {"n": self.n if self.n is not None else (case.n,), "grids": self.grids(ranks)}
        return {**vars(self), **used, "node_grid": case.node_grid}

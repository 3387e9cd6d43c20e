"""What the LU benchmarks are told: orders, blocks, how panels travel; and the names of broadcasts and matrices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from mxpeak.configs.grid import GridCase, GridConfig, squarest
from mxpeak.errors import UsageError
from mxpeak.options import boolean, count, duration, integer, known, listed, option, real

#: The panel broadcasts, by HPL's numbers; `comm.broadcast.register` appends others.
BCASTS = ["1ring", "1ringM", "2ring", "2ringM", "long", "longM", "lib", "ilib"]
#: The generated matrices; `layout.generators.register` appends others.
GENERATORS = ["sqrt-n", "ddd", "fasi-higham", "gaussian", "dominant-n", "icl", "hpl"]


#: The order in an input file for which nobody says one.
SAMPLE_N = 10_000
#: Blocks that a matrix has at least along an edge with a GPU's default NB, which is halved down to so many columns.
GPU_BLOCKS, LEAST_GPU_NB = 16, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LuCase(GridCase):
    """One run of an LU benchmark."""

    bcast: str = "1ringM"
    depth: int = 1
    seed: int = 100
    threshold: float = 16.0

    @property
    def tag(self) -> str:
        """The variant, encoded in the manner of HPL's: mapping and broadcast, such as WR1."""
        return f"W{'R' if self.order == 'row' else 'C'}{BCASTS.index(self.bcast)}"


@dataclass(frozen=True, kw_only=True)
class LuConfig(GridConfig, ABC):
    """A benchmark that factors matrices: their orders and blocks, and how panels travel over the grid."""

    n: tuple[int, ...] | None = option(
        None,
        "-N",
        "--n",
        help="order of the matrix (default: the largest that fits in --mem)",
        metavar="N,...",
        parse=listed(count(1)),
        group="problem",
    )
    nb: tuple[int, ...] = option(
        (192,), "--nb", help="block size", metavar="NB,...", parse=listed(integer(1)), group="problem"
    )
    bcast: tuple[str, ...] = option(
        ("1ringM",),
        "--bcast",
        help="panel broadcast algorithm: " + ", ".join(BCASTS),
        metavar="NAME,...",
        parse=listed(known(BCASTS, digits=True)),
        group="grid",
    )
    depth: tuple[int, ...] = option(
        (1,),
        "--depth",
        help="look-ahead depth: 0 or 1 (larger values act as 1)",
        metavar="D,...",
        parse=listed(integer(0, 99)),
        group="grid",
    )

    target: float | None = option(
        None,
        "--target",
        help="stop if X GFLOP/s can no longer be reached",
        metavar="X",
        parse=real(0.0),
        group="measuring",
    )
    baseline: str | None = option(
        None,
        "--baseline",
        help="compare progress with an earlier result: FILE or 'last'",
        metavar="FILE",
        parse=str,
        users_path=True,
        group="measuring",
    )

    checkpoint: str | None = option(
        None,
        "--checkpoint",
        help="write checkpoints to DIR; continue with mxpeak resume DIR",
        metavar="DIR",
        parse=str,
        users_path=True,
        group="measuring",
    )
    every: str = option(
        "10m",
        "--every",
        help="time between checkpoints, such as 90s, 10m or 1h",
        metavar="TIME",
        parse=duration,
        group="measuring",
    )
    soak: str | None = option(
        None,
        "--soak",
        help="repeat each case for TIME; fail unless all results are bitwise identical",
        metavar="TIME",
        parse=duration,
        group="measuring",
    )
    abft: bool = option(
        False,
        "--abft",
        help="detect bit flips in the LU with checksums; correct single errors",
        parse=boolean,
        group="measuring",
    )
    # What `mxpeak resume` says.
    resumed: bool = False

    # What only the benchmark's .dat can say: lines 3 and 4.
    output_file: str = ""
    device_out: int = 6

    def on_chip(self, chip: str) -> dict[str, Any]:
        """What is another default on a GPU of this name; NB is halved while N, if asked for, has too few blocks."""
        found = super().on_chip(chip)
        for nb in found.get("nb", ()):
            while nb // 2 >= LEAST_GPU_NB and nb * GPU_BLOCKS > max(self.n or (nb * GPU_BLOCKS,)):
                nb //= 2
            found["nb"] = (nb,)
        return found

    def orders(self, n: Sequence[int] | None) -> Sequence[int]:
        """The orders to run; `n` stands in where the config leaves N open."""
        orders = self.n if self.n is not None else n
        if orders is None:
            raise UsageError("the order of the matrix is missing; add -N")
        return orders

    @abstractmethod
    def cases(self, ranks: int, n: Sequence[int] | None = None) -> Iterator[Any]:
        """Every combination of the lists; `n` stands in where the config leaves N open."""

    def with_sample(self) -> Self:
        """The same with an order and a process grid where it says none: an input file needs both."""
        n = (SAMPLE_N,) if self.n is None else self.n
        said = self.grid is not None or (self.P is not None and self.Q is not None)
        return replace(self, n=n, grid=self.grid if said else (squarest(self.ranks or 1),))

    @property
    def report_to(self) -> str:
        """Line 4 of a .dat: 6 is stdout, 7 stderr, anything else the file of line 3."""
        return {6: "stdout", 7: "stderr"}.get(self.device_out, self.output_file)

    def as_run(self, case: Any, ranks: int) -> dict[str, Any]:
        """The settings by name, with the orders and the grids that were left open."""
        return {**vars(self), "n": self.n if self.n is not None else (case.n,), "grids": self.grids(ranks)}

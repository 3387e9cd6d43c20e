"""Options and cases of benchmarks on a P×Q process grid."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, ClassVar, TypeVar

from mxpeak.configs.run import RunConfig
from mxpeak.errors import UsageError
from mxpeak.options import Setting, count_text, grid_shape, integer, listed, one_of, option

ORDERS = ("row", "column")


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCase:
    """One case of a benchmark on a P×Q process grid, with one value from each list of the config."""

    n: int
    nb: int
    P: int
    Q: int
    order: str = "row"
    node_grid: tuple[int, int] | None = None

    @property
    def size(self) -> str:
        """Return the size of the case as text, such as `N=1000 NB=64 2x2`."""
        return f"N={self.n} NB={self.nb} {self.P}x{self.Q}"


@dataclass(frozen=True, kw_only=True)
class GridConfig(RunConfig):
    """Options of a benchmark on a P×Q process grid.

    panels_on_host   whether hosts factor the panels of devices if several ranks share a process column
    places_nodes     whether the default part of the grid on each node is the one with the fewest messages between nodes
    pivots           whether the ranks of a process column exchange a message per column of a panel
    """

    panels_on_host: ClassVar[bool] = False
    places_nodes: ClassVar[bool] = False
    pivots: ClassVar[bool] = False

    P: tuple[int, ...] | None = option(None, listed(integer(1)), "number of process rows", "grid", flags=("-P",))
    Q: tuple[int, ...] | None = option(None, listed(integer(1)), "number of process columns", "grid", flags=("-Q",))
    grid: tuple[tuple[int, int], ...] | None = option(
        None, listed(grid_shape), "process grid PxQ, as an alternative to -P and -Q", "grid", "PxQ,..."
    )
    order: str = option("row", one_of(*ORDERS), "order in which ranks fill the grid", "grid")
    node_grid: tuple[int, int] | None = option(
        None, grid_shape, "part of the process grid on each node (default: few messages)", "grid", "PxQ"
    )
    idle_ranks: bool = False

    @staticmethod
    def settle(settings: Mapping[str, Setting]) -> dict[str, Setting]:
        """Resolve a conflict between --grid and -P, -Q: of these, keep the settings with the higher precedence.

        The other settings return to their defaults.
        """
        settled = dict(settings)
        by_grid, by_sides = settled["grid"].strength, max(settled["P"].strength, settled["Q"].strength)
        if by_grid > by_sides:
            settled["P"] = settled["Q"] = Setting(None, "default")
        elif by_sides > by_grid:
            settled["grid"] = Setting(None, "default")
        if max(by_grid, by_sides) > settled["idle_ranks"].strength:
            settled["idle_ranks"] = Setting(False, "default")
        return settled

    @property
    def least_ranks(self) -> int:
        """Return the number of ranks that the given process grids need.

        If only P, only Q or only a node grid is given, return the least common multiple of their sizes, which divides
        the number of ranks.
        """
        if self.grid is not None:
            return max(P * Q for P, Q in self.grid)
        if self.P is not None and self.Q is not None:
            return max(P * Q for P, Q in zip(self.P, self.Q))
        sides = self.P or self.Q or (math.prod(self.node_grid or (1,)),)
        return math.lcm(*sides)

    def grid_choices(self, ranks: int) -> list[dict[str, Any]]:
        """Return the process grids to run on `ranks` ranks, as one choice per grid for `cases_of`."""
        return [{"P": P, "Q": Q} for P, Q in self.grids(ranks)]

    def leaves_panels(self, ranks: int) -> bool:
        """Return whether hosts factor the panels of devices, because several ranks share a process column."""
        return self.panels_on_host and any(P > 1 for P, _ in self.grids(ranks))

    def grids(self, ranks: int) -> tuple[tuple[int, int], ...]:
        """Return the process grids on `ranks` ranks: the given grids with missing sides added, or the squarest grid.

        The squarest grid has P <= Q. An explicit grid must use all ranks, otherwise the function raises a UsageError.
        Only the grids of an HPL.dat file may leave ranks idle.
        """
        shapes = self._shapes(ranks)
        for P, Q in shapes:
            taken = P * Q
            if taken > ranks or (taken < ranks and not self.idle_ranks):
                raise UsageError(
                    f"grid {P}x{Q} needs {P}*{Q} = {count_text(taken, 'rank')}, but there {_are(ranks)}; "
                    f"start {count_text(taken, 'rank')} (--ranks {taken}, or mpiexec -n {taken}), "
                    f"or use --grid {'x'.join(map(str, squarest(ranks)))}"
                )
        return shapes

    def _shapes(self, ranks: int) -> tuple[tuple[int, int], ...]:
        """Return the given process grids with missing sides added, without a check against the number of ranks."""
        if self.grid is not None:
            if self.P is not None or self.Q is not None:
                raise UsageError(
                    "--grid conflicts with -P and -Q, which also set the process grid; use either --grid or -P and -Q"
                )
            return self.grid
        if self.P is not None and self.Q is not None:
            if len(self.P) != len(self.Q):
                raise UsageError(
                    f"-P has {len(self.P)} values, but -Q has {len(self.Q)}; use the same number of values for both"
                )
            return tuple(zip(self.P, self.Q))
        if self.P is not None:
            return tuple((p, _cofactor("-P", p, ranks)) for p in self.P)
        if self.Q is not None:
            return tuple((_cofactor("-Q", q, ranks), q) for q in self.Q)
        return (squarest(ranks),)


AnyCase = TypeVar("AnyCase", bound=GridCase)


def each(name: str, values: Iterable[Any]) -> list[dict[str, Any]]:
    """Return one choice per value of the case field `name`, as an argument for `cases_of`."""
    return [{name: value} for value in values]


def cases_of(case: type[AnyCase], config: GridConfig, *choices: Iterable[Mapping[str, Any]]) -> Iterator[AnyCase]:
    """Yield a case for each combination of the choices; the last choice varies fastest.

    The fields that no choice sets have the values of `config`.
    """
    for combination in product(*choices):
        chosen = {name: value for choice in combination for name, value in choice.items()}
        shared = {f.name: getattr(config, f.name) for f in fields(case) if f.name not in chosen}
        yield case(**shared, **chosen)


def squarest(ranks: int) -> tuple[int, int]:
    """Return the sides P <= Q of the process grid with P·Q = ranks whose sides differ least."""
    P = max(p for p in range(1, math.isqrt(ranks) + 1) if ranks % p == 0)
    return P, ranks // P


def _are(ranks: int) -> str:
    """Return "is 1" or "are n", the end of an error message about a number of ranks."""
    return "is 1" if ranks == 1 else f"are {ranks}"


def _cofactor(flag: str, part: int, ranks: int) -> int:
    """Return ranks / part, the other side of a grid with all ranks; raise UsageError if there is a remainder."""
    if ranks % part:
        raise UsageError(
            f"{flag} {part} does not divide the number of ranks: {ranks} / {part} leaves a remainder of "
            f"{ranks % part}; remove {flag} for the grid {'x'.join(map(str, squarest(ranks)))}, or start "
            f"{part * (ranks // part + 1)} ranks"
        )
    return ranks // part

"""What HPL is told, and the cases that its lists make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from mxpeak.configs.lu import BCASTS, LuCase, LuConfig
from mxpeak.options import count, integer, listed, one_of, option, real

FACTS = ("left", "crout", "right")


SWAPS = ("bin", "long", "mix")

#: Settings of HPL.dat that mxpeak reads and prints but does not use.
UNUSED = ("l1_form", "u_form", "equilibration", "alignment")


@dataclass(frozen=True, slots=True, kw_only=True)
class HplCase(LuCase):
    """One HPL run."""

    pfact: str = "right"
    nbmin: int = 8
    ndiv: int = 2
    rfact: str = "right"
    swap: str = "mix"
    swap_threshold: int = 64
    split: float = 0.0

    @property
    def lookahead(self) -> int:
        """The look-ahead depth that runs: 0 or 1."""
        return min(self.depth, 1)

    @property
    def tag(self) -> str:
        """Return HPL's encoded variant, such as WR11C2R4, with the look-ahead depth that runs.

        A broadcast that HPL does not know appears as digit 6 or 7.
        """
        letter = {"left": "L", "crout": "C", "right": "R"}
        return (
            f"W{'R' if self.order == 'row' else 'C'}{self.lookahead}{BCASTS.index(self.bcast)}"
            f"{letter[self.rfact]}{self.ndiv}{letter[self.pfact]}{self.nbmin}"
        )


@dataclass(frozen=True, kw_only=True)
class HplConfig(LuConfig):
    """All that `mxpeak run hpl` can be told; lists run every combination, in HPL's order."""

    panels_on_host: ClassVar[bool] = True
    GPU_DEFAULTS = {"nb": (512,), "split": 0.5}  # noqa: RUF012  (nobody writes into it)
    CHIP_NB = {"MI250X": (512, "N. Chalmers et al., 2023, IV-A")}  # noqa: RUF012

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
        (192,),
        "--nb",
        help="block size (default: 192, or 512 on a GPU)",
        metavar="NB,...",
        parse=listed(integer(1)),
        group="problem",
    )
    seed: int = option(
        100, "--seed", help="random seed of the matrix", metavar="S", parse=integer(0, 2**31 - 1), group="problem"
    )
    split: float = option(
        0.0,
        "--split",
        help="fraction of columns in the split update (default: 0, or 0.5 on a GPU)",
        metavar="FRACTION",
        parse=real(0.0, 1.0),
        group="grid",
    )
    pfact: tuple[str, ...] = option(
        ("right",),
        "--pfact",
        help="panel factorization: left, crout or right",
        metavar="NAME,...",
        parse=listed(one_of(*FACTS, digits=True)),
        group="grid",
    )
    rfact: tuple[str, ...] = option(
        ("right",),
        "--rfact",
        help="recursive variant of the panel factorization: left, crout or right",
        metavar="NAME,...",
        parse=listed(one_of(*FACTS, digits=True)),
        group="grid",
    )
    nbmin: tuple[int, ...] = option(
        (8,),
        "--nbmin",
        help="number of columns at which the panel recursion stops",
        metavar="K,...",
        parse=listed(integer(1)),
        group="grid",
    )
    ndiv: tuple[int, ...] = option(
        (2,),
        "--ndiv",
        help="number of parts per level of the panel recursion",
        metavar="K,...",
        parse=listed(integer(2)),
        group="grid",
    )
    swap: str = option(
        "mix",
        "--swap",
        help="row-swap algorithm: bin (binary exchange), long (spread and roll) or mix",
        metavar="{bin,long,mix}",
        parse=one_of(*SWAPS, digits=True),
        group="grid",
    )
    swap_threshold: int = option(
        64,
        "--swap-threshold",
        help="largest number of columns for which --swap mix uses bin",
        metavar="K",
        parse=integer(0),
        group="grid",
    )
    threshold: float = option(
        16.0,
        "--threshold",
        help="largest scaled residual that passes; 0 skips the check",
        metavar="X",
        parse=real(),
        group="problem",
    )

    # Read only from HPL.dat.  mxpeak does not use the forms, the equilibration and the alignment (`UNUSED`): reports
    # print them with that remark.
    l1_form: str = "transposed"
    u_form: str = "transposed"
    equilibration: bool = True
    alignment: int = 8
    output_file: str = "HPL.out"

    def cases(self, ranks: int, n: Sequence[int] | None = None) -> Iterator[HplCase]:
        """Every combination of the lists, in HPL's loop order; `n` stands in where the config leaves N open."""
        lists = (
            self.grids(ranks),
            self.orders(n),
            self.nb,
            self.depth,
            self.bcast,
            self.rfact,
            self.pfact,
            self.nbmin,
            self.ndiv,
        )
        for (P, Q), n_, nb, depth, bcast, rfact, pfact, nbmin, ndiv in product(*lists):
            yield HplCase(
                n=n_,
                nb=nb,
                P=P,
                Q=Q,
                order=self.order,
                node_grid=self.node_grid,
                pfact=pfact,
                nbmin=nbmin,
                ndiv=ndiv,
                rfact=rfact,
                bcast=bcast,
                depth=depth,
                swap=self.swap,
                swap_threshold=self.swap_threshold,
                split=self.split,
                seed=self.seed,
                threshold=self.threshold,
            )

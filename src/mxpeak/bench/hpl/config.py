"""Options and cases of HPL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mxpeak.configs.lu import BCASTS, LuCase, LuConfig
from mxpeak.options import integer, listed, one_of, option, real

#: Values of PFACT and RFACT, and of SWAP, in the order of their numbers in HPL.dat.
FACTS = ("left", "crout", "right")
SWAPS = ("bin", "long", "mix")
#: HPL's bound on the scaled residual, also used if a file disables the check: mxpeak checks every rate.
THRESHOLD = 16.0
#: Settings of HPL.dat that mxpeak reads and prints but does not use.
UNUSED = ("l1_form", "u_form", "equilibration", "alignment")


@dataclass(frozen=True, slots=True, kw_only=True)
class HplCase(LuCase):
    """The settings of one HPL solve: one combination of the values in the lists of options."""

    pfact: str = "left"
    nbmin: int = 16
    ndiv: int = 2
    rfact: str = "right"
    swap: str = "mix"
    swap_threshold: int = 64
    split: float = 0.0

    @property
    def lookahead(self) -> int:
        """Return the look-ahead depth that mxpeak uses: 0 or 1."""
        return min(self.depth, 1)

    @property
    def tag(self) -> str:
        """Return HPL's code of the algorithmic variant, such as WR11C2R4, with the look-ahead depth that mxpeak uses.

        Broadcasts that HPL does not have are encoded as digit 6 or 7.
        """
        letter = {"left": "L", "crout": "C", "right": "R"}
        return (
            f"W{'R' if self.order == 'row' else 'C'}{self.lookahead}{BCASTS.index(self.bcast)}"
            f"{letter[self.rfact]}{self.ndiv}{letter[self.pfact]}{self.nbmin}"
        )


@dataclass(frozen=True, kw_only=True)
class HplConfig(LuConfig):
    """Options of `mxpeak run hpl`.

    If options are lists, mxpeak runs every combination of their values, in HPL's order.
    """

    case = HplCase
    loops = ("nb", "depth", "bcast", "rfact", "pfact", "nbmin", "ndiv")
    panels_on_host: ClassVar[bool] = True
    pivots: ClassVar[bool] = True
    GPU_DEFAULTS: ClassVar[Mapping[str, Any]] = {"nb": (512,), "split": 0.5}
    CHIP_NB: ClassVar[Mapping[str, tuple[int, str]]] = {"MI250X": (512, "N. Chalmers et al., 2023, IV-A")}

    nb: tuple[int, ...] = option((192,), listed(integer(1)), "block size (default: 192, or 512 on a GPU)", "problem")
    seed: int = option(100, integer(0, 2**31 - 1), "random seed of the matrix", "problem", "S")
    split: float = option(
        0.0, real(0.0, 1.0), "fraction of columns in the split update (default: 0, or 0.5 on a GPU)", "grid", "FRACTION"
    )
    pfact: tuple[str, ...] = option(
        ("left",), listed(one_of(*FACTS, digits=True)), "panel factorization: left, crout or right", "grid"
    )
    rfact: tuple[str, ...] = option(
        ("right",),
        listed(one_of(*FACTS, digits=True)),
        "recursive variant of the panel factorization: left, crout or right",
        "grid",
    )
    nbmin: tuple[int, ...] = option(
        (16,), listed(integer(1)), "number of columns at which the panel recursion stops", "grid", "K,..."
    )
    ndiv: tuple[int, ...] = option(
        (2,), listed(integer(2)), "number of parts per level of the panel recursion", "grid", "K,..."
    )
    swap: str = option(
        "mix",
        one_of(*SWAPS, digits=True),
        "row-swap algorithm: bin (binary exchange), long (spread and roll) or mix",
        "grid",
    )
    swap_threshold: int = option(64, integer(0), "largest number of columns for which --swap mix uses bin", "grid", "K")
    threshold: float = option(
        THRESHOLD, real(), "largest scaled residual that passes; 0: no check in HPL's report", "problem"
    )

    fp64: str = option(
        "native",
        one_of("native", "emulated", "auto"),
        "fp64 products: native, emulated, or auto (may emulate with --mode explore)",
        "precision and rules",
    )
    mode: str = option(
        "official",
        one_of("official", "explore"),
        "rules: official (the published rules) or explore (never ADMISSIBLE)",
        "precision and rules",
    )

    # Read only from HPL.dat. mxpeak does not use the forms, the equilibration and the alignment (`UNUSED`). Reports
    # mark these settings as not used.
    l1_form: str = "transposed"
    u_form: str = "transposed"
    equilibration: bool = True
    alignment: int = 8
    output_file: str = "HPL.out"

    @property
    def fp64_products(self) -> str:
        """Return the requested arithmetic of fp64 products: native, emulated or auto."""
        return self.fp64

    @property
    def explores(self) -> bool:
        """Return whether --mode explore is given."""
        return self.mode == "explore"

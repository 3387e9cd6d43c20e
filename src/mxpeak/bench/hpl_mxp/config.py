"""Options and cases of HPL-MxP."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mxpeak.configs.lu import GENERATORS, LuCase, LuConfig
from mxpeak.options import integer, listed, name_in, one_of, option, positive, real, users_folder
from mxpeak.precision import PRECISIONS

#: How the LU avoids small pivots: by the matrix alone, by a random butterfly transformation, or by partial pivoting.
PIVOTING = NONE, BUTTERFLY, PARTIAL = "none", "butterfly", "partial"


@dataclass(frozen=True, slots=True, kw_only=True)
class HplMxpCase(LuCase):
    """The settings of one HPL-MxP solve: one combination of the values in the lists of options."""

    precision: str = "fp32"
    panel_solves: str = "low"
    generator: str = "sqrt-n"
    diagonal_scale: float | None = None
    condition: float = 1000.0
    refine: str = "gmres"
    restart: int = 50
    scaling: str = "none"
    pivoting: str = "none"
    butterfly_depth: int = 2
    mode: str = "official"


@dataclass(frozen=True, kw_only=True)
class HplMxpConfig(LuConfig):
    """Options of `mxpeak run hpl-mxp`.

    If options are lists, mxpeak runs every combination of their values.
    """

    case = HplMxpCase
    loops = ("nb", "depth", "bcast", "generator", "diagonal_scale", "precision")
    GPU_DEFAULTS: ClassVar[Mapping[str, Any]] = {"nb": (1024,), "precision": ("fp16",)}
    CHIP_NB: ClassVar[Mapping[str, tuple[int, str]]] = {
        "V100": (768, "H. Lu et al., SC22, V-C: 768 or 1024, and 768 in the run of 1.411 EFLOP/s"),
        "MI250X": (3072, "H. Lu et al., SC22, V-C, and in the run of 2.387 EFLOP/s"),
        "H100": (2048, "benchmarks/results/gpu-h100-lu.json: 498 TFLOP/s; 339 with 1024, 517 with 4096"),
        "H200": (2048, "as an H100, the same processor; with 1024 its LU ran at 452 TFLOP/s (gpu-h200-hpl-mxp.json)"),
    }

    def natively(self, native: Collection[str]) -> dict[str, Any]:
        """Return the default precision and block size if the processor multiplies the precision natively, otherwise {}.

        The default precision is bf16. Longer blocks reduce the memory traffic of the trailing matrix.
        """
        precision = self.precision or (("bf16",) if "bf16" in native else ())
        return {"precision": precision, "nb": (512,)} if precision and set(precision) <= set(native) else {}

    nb: tuple[int, ...] = option(
        (320,),
        listed(integer(1)),
        "block size (default: 320; 512 with 16-bit products; 1024 to 2048 on a GPU)",
        "problem",
    )
    seed: int = option(100, integer(0, 2**31 - 1), "random seed of the matrix", "problem", "S")
    generator: tuple[str, ...] = option(
        ("sqrt-n",), listed(name_in(GENERATORS)), "matrix generator: " + ", ".join(GENERATORS), "problem"
    )
    diagonal_scale: tuple[float, ...] | None = option(
        None,
        listed(real(0.0, 1e6)),
        "scale factor of the diagonal (default: 0.625, or 1.25/sqrt(N) for ddd)",
        "problem",
        "C,...",
    )
    condition: float = option(
        1000.0, real(1.5, 1e15), "condition number of the fasi-higham matrix in the infinity norm", "problem", "K"
    )
    scaling: str = option(
        "none", one_of("none", "auto"), "scaling of rows and columns in the timed part, before the LU", "problem"
    )
    pivoting: str = option(
        "none",
        one_of(*PIVOTING),
        "none, butterfly (random transformation before the LU) or partial (row swaps)",
        "problem",
    )
    butterfly_depth: int = option(
        2, integer(1, 16), "layers of the random butterflies in --pivoting butterfly", "problem", "D"
    )
    threshold: float = option(16.0, positive, "largest scaled backward error that passes", "problem", "X")
    precision: tuple[str, ...] | None = option(
        None,
        listed(one_of(*PRECISIONS)),
        "operand precision of the update: "
        + ", ".join(PRECISIONS)
        + " (default: bf16 or fp32 on a CPU, fp16 on a GPU)",
        "precision and rules",
    )
    panel_solves: str = option(
        "low",
        one_of("low", "fp32"),
        "panel-solve precision: fp32, or low for --precision if faster",
        "precision and rules",
    )
    refine: str = option(
        "gmres",
        one_of("gmres", "classical"),
        "refinement method: gmres (preconditioned with the factors) or classical",
        "precision and rules",
    )
    restart: int = option(50, integer(1, 1000), "GMRES restart length", "precision and rules", "K")
    mode: str = option(
        "official",
        one_of("official", "explore"),
        "rules: official (the published rules) or explore (allows fp8, never ADMISSIBLE)",
        "precision and rules",
    )
    submit: str | None = option(None, users_folder, "write the fields of the HPL-MxP submission form to DIR", "output")

    # Set only by HPL-MxP.dat.
    output_file: str = "HPL-MxP.out"

    @property
    def submission_folder(self) -> str | None:
        """Return the folder given by --submit, or None without --submit."""
        return self.submit

"""What HPL-MxP is told, and the cases that its lists make."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from mxpeak.configs.lu import GENERATORS, LuCase, LuConfig
from mxpeak.options import integer, known, listed, one_of, option, positive, real
from mxpeak.precision import PRECISIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class HplMxpCase(LuCase):
    """One HPL-MxP run."""

    precision: str = "fp32"
    panel_solves: str = "low"
    generator: str = "sqrt-n"
    diagonal_scale: float | None = None
    condition: float = 1000.0
    refine: str = "gmres"
    restart: int = 50
    scaling: str = "none"
    mode: str = "official"


@dataclass(frozen=True, kw_only=True)
class HplMxpConfig(LuConfig):
    """All that `mxpeak run hpl-mxp` can be told; lists run every combination."""

    GPU_DEFAULTS = {"nb": (1024,), "precision": ("fp16",)}  # noqa: RUF012
    CHIP_NB = {  # noqa: RUF012
        "V100": (768, "H. Lu et al., SC22, V-C: 768 or 1024, and 768 in the run of 1.411 EFLOP/s"),
        "MI250X": (3072, "H. Lu et al., SC22, V-C, and in the run of 2.387 EFLOP/s"),
        "H100": (2048, "benchmarks/results/gpu-h100-lu.json: 498 TFLOP/s; 339 with 1024, 517 with 4096"),
        "H200": (2048, "as an H100, the same processor; with 1024 its LU ran at 452 TFLOP/s (gpu-h200-hpl-mxp.json)"),
    }

    def natively(self, native: Collection[str]) -> dict[str, Any]:
        """bf16, and blocks so long that the trailing matrix is read and written seldom enough for such products."""
        precision = self.precision or (("bf16",) if "bf16" in native else ())
        return {"precision": precision, "nb": (512,)} if precision and set(precision) <= set(native) else {}

    nb: tuple[int, ...] = option(
        (320,),
        "--nb",
        help="block size (default: 320; 512 with 16-bit products; 1024 to 2048 on a GPU)",
        metavar="NB,...",
        parse=listed(integer(1)),
        group="problem",
    )
    seed: int = option(
        100, "--seed", help="random seed of the matrix", metavar="S", parse=integer(0, 2**31 - 1), group="problem"
    )
    generator: tuple[str, ...] = option(
        ("sqrt-n",),
        "--generator",
        help="matrix generator: " + ", ".join(GENERATORS),
        metavar="NAME,...",
        parse=listed(known(GENERATORS)),
        group="problem",
    )
    diagonal_scale: tuple[float, ...] | None = option(
        None,
        "--diagonal-scale",
        help="scale factor of the diagonal (default: 0.625, or 1.25/sqrt(N) for ddd)",
        metavar="C,...",
        parse=listed(real(0.0, 1e6)),
        group="problem",
    )
    condition: float = option(
        1000.0,
        "--condition",
        help="condition number of the fasi-higham matrix in the infinity norm",
        metavar="K",
        parse=real(1.5, 1e15),
        group="problem",
    )
    scaling: str = option(
        "none",
        "--scaling",
        help="scaling of rows and columns in the timed part, before the LU",
        metavar="{none,auto}",
        parse=one_of("none", "auto"),
        group="problem",
    )
    threshold: float = option(
        16.0,
        "--threshold",
        help="largest scaled backward error that passes",
        metavar="X",
        parse=positive,
        group="problem",
    )
    precision: tuple[str, ...] | None = option(
        None,
        "--precision",
        help="operand precision of the update: "
        + ", ".join(PRECISIONS)
        + " (default: bf16 or fp32 on a CPU, fp16 on a GPU)",
        metavar="NAME,...",
        parse=listed(one_of(*PRECISIONS)),
        group="precision and rules",
    )
    panel_solves: str = option(
        "low",
        "--panel-solves",
        help="panel-solve precision: fp32, or low for --precision if faster",
        metavar="{low,fp32}",
        parse=one_of("low", "fp32"),
        group="precision and rules",
    )
    refine: str = option(
        "gmres",
        "--refine",
        help="refinement method: gmres (preconditioned with the factors) or classical",
        metavar="{gmres,classical}",
        parse=one_of("gmres", "classical"),
        group="precision and rules",
    )
    restart: int = option(
        50, "--restart", help="GMRES restart length", metavar="K", parse=integer(1, 1000), group="precision and rules"
    )
    mode: str = option(
        "official",
        "--mode",
        help="rules: official (the published rules) or explore (allows fp8, never ADMISSIBLE)",
        metavar="{official,explore}",
        parse=one_of("official", "explore"),
        group="precision and rules",
    )
    submit: str | None = option(
        None,
        "--submit",
        help="write the fields of the HPL-MxP submission form to DIR",
        metavar="DIR",
        parse=str,
        users_path=True,
        group="output",
    )

    # What only HPL-MxP.dat can say.
    output_file: str = "HPL-MxP.out"

    @property
    def submission_folder(self) -> str | None:
        """The folder of --submit."""
        return self.submit

    def cases(self, ranks: int, n: Sequence[int] | None = None) -> Iterator[HplMxpCase]:
        """Every combination of the lists; `n` stands in where the config leaves N open."""
        lists = (
            self.grids(ranks),
            self.orders(n),
            self.nb,
            self.depth,
            self.bcast,
            self.generator,
            self.diagonal_scale or (None,),
            self.precision or ("fp32",),
        )
        for (P, Q), n_, nb, depth, bcast, generator, scale, precision in product(*lists):
            yield HplMxpCase(
                n=n_,
                nb=nb,
                P=P,
                Q=Q,
                order=self.order,
                node_grid=self.node_grid,
                bcast=bcast,
                depth=depth,
                precision=precision,
                panel_solves=self.panel_solves,
                generator=generator,
                diagonal_scale=scale,
                condition=self.condition,
                seed=self.seed,
                refine=self.refine,
                restart=self.restart,
                scaling=self.scaling,
                threshold=self.threshold,
                mode=self.mode,
            )

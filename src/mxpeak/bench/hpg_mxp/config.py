"""What HPG-MxP is told."""

from __future__ import annotations

from dataclasses import dataclass

from mxpeak.configs.sparse import SparseConfig
from mxpeak.errors import UsageError
from mxpeak.options import boolean, integer, listed, one_of, option, real

#: Formats of HPG-MxP's matrices, and of the vectors of its inner iteration.
SPARSE_PRECISIONS = ("fp64", "fp32", "bf16", "fp16", "fp8")
VECTOR_PRECISIONS = ("fp64", "fp32")


@dataclass(frozen=True, kw_only=True)
class HpgMxpConfig(SparseConfig):
    """All that `mxpeak run hpg-mxp` can be told."""

    nonsymmetric: bool = option(
        False,
        "--nonsymmetric",
        help="use a nonsymmetric matrix (-1.5 below and -0.5 above in z)",
        parse=boolean,
        group="problem",
    )
    matrix: str | None = option(
        None, "--matrix", help="use a matrix from a Matrix Market file", metavar="FILE.mtx", parse=str, group="problem"
    )
    threshold: float = option(
        1e-9,
        "--threshold",
        help="relative residual at which validation solves stop",
        metavar="X",
        parse=real(1e-15, 1.0),
        group="problem",
    )
    iterations: int = option(
        300, "--iterations", help="number of iterations per timed solve", metavar="K", parse=integer(1), group="problem"
    )
    precision: str = option(
        "auto",
        "--precision",
        help="matrix format in the inner iteration: "
        + ", ".join(SPARSE_PRECISIONS)
        + " or auto (the smallest exact format)",
        metavar="NAME",
        parse=one_of("auto", *SPARSE_PRECISIONS),
        group="precision and rules",
    )
    mg_precision: tuple[str, ...] | None = option(
        None,
        "--mg-precision",
        help="format of multigrid matrices: one, or one per level (default: --precision)",
        metavar="NAME,...",
        parse=listed(one_of("auto", *SPARSE_PRECISIONS)),
        group="precision and rules",
    )
    krylov_precision: str = option(
        "fp32",
        "--krylov-precision",
        help="vector format in the inner iteration: " + ", ".join(VECTOR_PRECISIONS),
        metavar="NAME",
        parse=one_of(*VECTOR_PRECISIONS),
        group="precision and rules",
    )
    value_tolerance: float = option(
        0.0,
        "--value-tolerance",
        help="relative error allowed in stored values with --mode explore",
        metavar="X",
        parse=real(0.0, 1.0),
        group="precision and rules",
    )
    restart: int = option(
        30, "--restart", help="GMRES restart length", metavar="K", parse=integer(1, 1000), group="precision and rules"
    )
    validation: str = option(
        "standard",
        "--validation",
        help="compare solvers on up to 8 ranks (standard) or all ranks (fullscale)",
        metavar="{standard,fullscale}",
        parse=one_of("standard", "fullscale"),
        group="precision and rules",
    )

    def mg_precisions(self, levels: int) -> tuple[str, ...]:
        """The format of each level's matrix."""
        asked = self.mg_precision or (self.precision,)
        if len(asked) not in (1, levels):
            raise UsageError(
                f"--mg-precision {','.join(asked)} has {len(asked)} formats for {levels} levels; "
                f"use one for all levels, or {levels}"
            )
        return asked if len(asked) == levels else asked * levels

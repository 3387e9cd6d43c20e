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
        help="the non-symmetric matrix: -1.5 for the neighbour below in z, -0.5 for the one above",
        parse=boolean,
        group="problem",
    )
    matrix: str | None = option(
        None,
        "--matrix",
        help="a matrix from a Matrix Market file instead of the 27-point one",
        metavar="FILE.mtx",
        parse=str,
        group="problem",
    )
    threshold: float = option(
        1e-9,
        "--threshold",
        help="relative residual at which the solves of the validation end",
        metavar="X",
        parse=real(1e-15, 1.0),
        group="problem",
    )
    iterations: int = option(
        300, "--iterations", help="iterations of a timed solve", metavar="K", parse=integer(1), group="problem"
    )
    precision: str = option(
        "auto",
        "--precision",
        help="format of the inner iteration's matrices: " + ", ".join(SPARSE_PRECISIONS) + "; "
        "auto: the narrowest that holds every value exactly",
        metavar="NAME",
        parse=one_of("auto", *SPARSE_PRECISIONS),
        group="precision and rules",
    )
    mg_precision: tuple[str, ...] | None = option(
        None,
        "--mg-precision",
        help="format of multigrid's matrices: one for all levels, or one each, finest first "
        "(default: that of --precision)",
        metavar="NAME,...",
        parse=listed(one_of("auto", *SPARSE_PRECISIONS)),
        group="precision and rules",
    )
    krylov_precision: str = option(
        "fp32",
        "--krylov-precision",
        help="format of the inner iteration's vectors: " + ", ".join(VECTOR_PRECISIONS),
        metavar="NAME",
        parse=one_of(*VECTOR_PRECISIONS),
        group="precision and rules",
    )
    value_tolerance: float = option(
        0.0,
        "--value-tolerance",
        help="relative error of a stored value that --mode explore allows",
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
        help="where the mixed solver is compared with the double one: standard: on a "
        "few ranks; fullscale: on all of them",
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
                f"give one for all, or {levels}"
            )
        return asked if len(asked) == levels else asked * levels

"""The configuration of HPG-MxP."""

from __future__ import annotations

from dataclasses import dataclass

from mxpeak.configs.sparse import SparseConfig
from mxpeak.errors import UsageError
from mxpeak.options import ValueParser, boolean, integer, listed, name_in, one_of, option, path_name, real

#: Formats of the matrices, of the vectors of the inner iteration, and of a stored Krylov basis of fp32 vectors.
SPARSE_PRECISIONS = ("fp64", "fp32", "bf16", "fp16", "fp8")
VECTOR_PRECISIONS = ("fp64", "fp32")
BASIS_PRECISIONS = ("bf16", "fp16")
#: Ranks of the standard validation (Kashi et al., table 1).
VALIDATION_RANKS = 8


def node_or_count(text: str) -> int | str:
    """Parse a number of ranks, or the word node."""
    try:
        return text if text == "node" else integer(1)(text)
    except UsageError as error:
        raise UsageError(f"{error}, or node") from None


@dataclass(frozen=True, kw_only=True)
class HpgMxpConfig(SparseConfig):
    """The options of `mxpeak run hpg-mxp`."""

    nonsymmetric: bool = option(False, boolean, "use a nonsymmetric matrix (-1.5 below and -0.5 above in z)", "problem")
    matrix: str | None = option(None, path_name, "use a matrix from a Matrix Market file", "problem", "FILE.mtx")
    threshold: float = option(1e-9, real(1e-15, 1.0), "relative residual at which validation solves stop", "problem")
    iterations: int = option(300, integer(1), "number of iterations per timed solve", "problem", "K")
    precision: str = option(
        "auto",
        name_in(("auto", *SPARSE_PRECISIONS)),
        "matrix format in the inner iteration: "
        + ", ".join(SPARSE_PRECISIONS)
        + " or auto (the smallest exact format)",
        "precision and rules",
    )
    mg_precision: tuple[str, ...] | None = option(
        None,
        listed(one_of("auto", *SPARSE_PRECISIONS)),
        "format of multigrid matrices: one, or one per level (default: --precision)",
        "precision and rules",
    )
    krylov_precision: str = option(
        "fp32",
        name_in((*VECTOR_PRECISIONS, *BASIS_PRECISIONS)),
        "format of the inner vectors: "
        + ", ".join(VECTOR_PRECISIONS)
        + "; "
        + " or ".join(BASIS_PRECISIONS)
        + " for the basis",
        "precision and rules",
    )
    mg_vectors: str | None = option(
        None,
        name_in(BASIS_PRECISIONS),
        "vectors of the multigrid cycle: " + " or ".join(BASIS_PRECISIONS) + " (default: the inner vectors)",
        "precision and rules",
        "NAME",
    )
    value_tolerance: float = option(
        0.0, real(0.0, 1.0), "relative error allowed in stored values with --mode explore", "precision and rules"
    )
    restart: int = option(30, integer(1, 1000), "GMRES restart length", "precision and rules", "K")
    run_type: str = option(
        "benchmark",
        one_of("benchmark", "mixed", "double"),
        "benchmark, or only the mixed or the double solves (without a rating)",
        "measuring",
    )
    validation: str = option(
        "standard",
        one_of("standard", "fullscale", "both"),
        "validate on a few ranks (standard), on all ranks (fullscale), or both",
        "precision and rules",
    )
    validation_ranks: int | str = option(
        VALIDATION_RANKS,
        ValueParser(node_or_count, "{node,R}"),
        "maximum ranks of the standard validation: R, or node (all of one node)",
        "precision and rules",
    )

    @property
    def standalone(self) -> bool:
        """Return whether only one of the two solvers runs."""
        return self.run_type != "benchmark"

    @property
    def vector_precision(self) -> str:
        """Return the format of the vectors in the inner iteration."""
        return "fp32" if self.basis_precision else self.krylov_precision

    @property
    def basis_precision(self) -> str | None:
        """Return the format of the stored Krylov basis, or None if it is that of the vectors."""
        return self.krylov_precision if self.krylov_precision in BASIS_PRECISIONS else None

    @property
    def needs_chunks(self) -> bool:
        """Return whether the sweeps need chunks of independent rows, as multigrid vectors in 16 bits do."""
        return self.mg_vectors is not None

    def mg_precisions(self, levels: int) -> tuple[str, ...]:
        """Return the matrix format of each level; raise a UsageError if --mg-precision has the wrong length."""
        formats = self.mg_precision or (self.precision,)
        if len(formats) not in (1, levels):
            raise UsageError(
                f"--mg-precision {','.join(formats)} has {len(formats)} formats for {levels} levels; "
                f"use one for all levels, or {levels}"
            )
        return formats if len(formats) == levels else formats * levels

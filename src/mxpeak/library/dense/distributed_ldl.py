"""Factor and solve symmetric and Hermitian indefinite distributed matrices from one triangle.

The factors are L S L^T with signs S, which need half the operations of an LU. They have no pivots between blocks. If a
diagonal block is singular, entries grow too much, or refinement does not reach the accuracy of fp64, LU factors the
whole matrix, which is computed from one triangle, and `info` contains the reason.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from mxpeak.distributed.symmetric import SymmetricMatrix
from mxpeak.library.dense.distributed import DistributedMatrix
from mxpeak.library.dense.distributed_solving import (
    DistributedFactors,
    check_norms,
    chosen_precision,
    computing,
    factored_as,
    grid_matrix,
    stored,
)
from mxpeak.library.dense.info import BY_LU, LDL_FAILED, SolveInfo, note_of_breakdown, note_of_doubt
from mxpeak.library.dense.matrix_source import Source
from mxpeak.library.dense.mirrored import mirrored
from mxpeak.library.dense.real_form import real_rhs, solutions
from mxpeak.library.dense.symmetric import SymmetricKind
from mxpeak.library.types import Array
from mxpeak.precision import PRECISIONS
from mxpeak.solvers.factorization import coarser_than_fp32
from mxpeak.solvers.grid_factors import GridFactors
from mxpeak.solvers.grid_ldl import LARGEST_ERROR, GridLDL
from mxpeak.solvers.refine import Solution
from mxpeak.solvers.symmetric_factors import LDL
from mxpeak.spans import Spans


def ldl_factored(
    A: DistributedMatrix, structure: SymmetricKind, precision: str, device: str, b: Any
) -> DistributedFactors:
    """Factor one triangle of A by L S L^T, or the whole matrix by LU if that breaks down. Collective."""
    chosen, spans = chosen_precision(A, precision, device, b, DistributedLDLFactors._engine), Spans()
    if coarser_than_fp32(chosen):
        note = f"LDL^T factors over ranks are in fp32 or fp64; in {chosen}, LU factored the whole matrix"
        return _by_lu(A, structure, precision, device, b, spans, remark=note)
    half = A.source.triangle(lower=structure.lower, hermitian=structure.hermitian)
    try:
        return factored_as(DistributedLDLFactors, A, half, precision, device, b, spans)
    except _BreakdownError as error:
        note = note_of_breakdown(error.precision, error.reason, LDL, again=BY_LU)
    return _by_lu(A, structure, precision, device, b, spans, reason=note)


def _by_lu(
    A: DistributedMatrix,
    structure: SymmetricKind,
    precision: str,
    device: str,
    b: Any,
    spans: Spans,
    *,
    remark: str = "",
    reason: str = "",
) -> DistributedFactors:
    """Factor the whole matrix by LU. The diagnostics contain a remark, or the reason why L S L^T factors failed."""
    factors = factored_as(MirroredFactors, A, mirrored(A, structure), precision, device, b, spans)
    factors.remark = remark
    if reason:
        factors.add_reason(reason)
    return factors


class _BreakdownError(Exception):
    """Ends the factorization on all ranks, for the same reason."""

    def __init__(self, precision: str, reason: str):
        super().__init__(precision, reason)
        self.precision, self.reason = precision, reason


class MirroredFactors(DistributedFactors):
    """LU factors of a matrix that was computed from one triangle.

    remark   the reason for LU if no other factors were tried
    """

    remark = ""

    def add_reason(self, note: str) -> None:
        """Add the reason why the first factorization failed."""
        self._notes = (note, *self._notes)
        self._why_again = LDL_FAILED

    def _info(self, *arguments: Any) -> SolveInfo:
        info = super()._info(*arguments)
        return replace(info, message="\n".join(filter(None, (self.remark, info.message))))


class DistributedLDLFactors(DistributedFactors):
    """The L S L^T factors of a symmetric or Hermitian distributed matrix, of which one triangle is read."""

    _engine: ClassVar = "cholesky"
    _again = f"{BY_LU} in fp64"

    @staticmethod
    def _factors_in(precision: str, A: DistributedMatrix, source: Source, spans: Spans) -> GridFactors:
        """Factor one triangle of A in a precision; raise an error on all ranks if this breaks down. Collective."""
        hermitian = source.hermitian
        with computing(A.comm) as kernels:
            distribute = partial(SymmetricMatrix, kernels=kernels, lower=bool(source.lower))
            matrix = grid_matrix(A, source, distribute, symmetric=not hermitian)
            L = stored(matrix, A.comm, source, precision, spans)
            with np.errstate(all="ignore"):  # numbers beyond the range of fp32 are visible in the norms
                factors = GridLDL(matrix, L, precision, kernels, spans)
        if precision == "fp64":
            check_norms(factors)
        if factors.in_range and not factors.usable:
            limit = LARGEST_ERROR / PRECISIONS[precision].u
            first = "a diagonal block is singular, or " if factors.singular else ""
            raise _BreakdownError(precision, f"{first}growth exceeds {limit:.1e}")
        return factors

    @staticmethod
    def _why_singular(factors: GridFactors, A: DistributedMatrix) -> str:
        return "a diagonal block is singular"

    def _real_rhs(self, B: Array, form: str) -> Array:
        if self._reflected:
            return real_rhs(B, self.A.dtype, conjugated=form == "H")
        return super()._real_rhs(B, form)

    def _solutions(self, X: Array, of_b: np.dtype[Any], form: str) -> Array:
        if self._reflected:
            return solutions(X, self.A.dtype, of_b, conjugated=form != "H")
        return super()._solutions(X, of_b, form)

    @property
    def _reflected(self) -> bool:
        """Return whether the factors are those of the symmetric real form of a complex symmetric matrix."""
        return self._factors.name == LDL and self.A.parts == 2 and not self._source.hermitian

    @property
    def _may_fall_back(self) -> bool:
        return self._factors.name == LDL or super()._may_fall_back

    def _note_of_hidden_singularity(self, solution: Solution) -> str:
        if self._factors.name == LDL:
            return note_of_doubt(np.inf, self.precision, LDL, self._again) if solution.doubtful else ""
        return super()._note_of_hidden_singularity(solution)

    def _factors_again(self, spans: Spans) -> GridFactors:
        """Return LU factors of the whole matrix in fp64. Collective."""
        structure = SymmetricKind(bool(self._source.lower), self._source.hermitian, definite=False)
        self._source, self._why_again = mirrored(self.A, structure), LDL_FAILED
        return DistributedFactors._factors_in("fp64", self.A, self._source, spans)

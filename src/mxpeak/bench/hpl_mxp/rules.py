"""HPL-MxP's rules of October 2025 (hpl-mxp.org), and mxpeak's own tests of the difficulty and the stability of a
system.

A result that complies with the published rules is ADMISSIBLE:

precision       floating point of at least 16 bits: fp8 is refused
generator       one that the rules name: sqrt-n, ddd, gaussian, fasi-higham; diagonally dominant ones are for testing
iterations      at most 50 steps of refinement
backward-error  ||Ax-b|| / ((||A||·||x|| + ||b||)·n·u) < 16 in the infinity norm, u = 2^-53
lu-proof        the factors pass a separate check that they are an LU factorization of the matrix
mode            --mode official; --mode explore labels its results

The rules require a system that is challenging for GMRES without the factors, and a stable LU without pivoting, but
they define no numbers for these properties. A result that passes mxpeak's own tests of these properties is meaningful:

lu-needed       GMRES without the factors needs more than 50 steps: the paper's remark on ddd, applied to all generators
stability       a diagonal that keeps zero out of the disc of eigenvalues, and growth of at most sqrt(N)

The rules permit partial pivoting, but do not require it. They do not mention a random butterfly transformation of A
before the LU. `remarks` states both, with the source.

The circular law predicts the number of GMRES steps without the factors. If the off-diagonal entries have variance s²,
the eigenvalues of A fill a disc of radius s·sqrt(n) around the diagonal d. The residual of GMRES decreases by the
factor rho = s·sqrt(n)/d per step. After k steps it is

    ||r_k|| / ||b||  =  rho^k · sqrt(1 - rho²) · exp(-k²/4n).

The last factor is due to the n - k dimensions that remain. With ||x||_2 = ||b||_2/(d·sqrt(1 - rho²)), the check passes
when this ratio is below 16·n·u·||A||/(d·sqrt(1 - rho²)), where ||A|| = n·E|a| + d. The formula has no fitted
parameters. In measurements with n = 300 to 2000 and rho = 0.01 to 0.92, it was accurate to two steps up to 50 steps,
and to 10 % beyond.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import ceil, log, pi, sqrt
from typing import Any

from mxpeak.bench.hpl_mxp.config import BUTTERFLY, PARTIAL, HplMxpCase
from mxpeak.bench.rules import OWN, Violation
from mxpeak.errors import UsageError
from mxpeak.layout.generators import SQRT_SCALE
from mxpeak.options import alternatives
from mxpeak.precision import precision
from mxpeak.solvers.refine import MAX_STEPS, U

#: Scaled backward errors below this bound pass.
THRESHOLD = 16.0
#: Bits of the narrowest format that the rules allow.
MIN_BITS = 16
#: Steps of GMRES without the factors on Fasi and Higham's matrices: N = 100 to 800, condition 1e3 to 1e15.
FASI_HIGHAM_STEPS = "12 to 23"
#: Generators that the rules name; those on which the LU is needed; other generators, and why they break a rule.
NAMED = ("sqrt-n", "ddd", "gaussian", "fasi-higham")
DIFFICULT = ("sqrt-n", "ddd", "gaussian")
INADMISSIBLE = {
    "dominant-n": "its dominant diagonal is for testing only: GMRES solves it without factors",
    "icl": "its dominant diagonal is for testing only since October 2025: GMRES solves it without factors",
    "hpl": "it has no stable LU without pivoting",
}
#: The paper that contains the rules.
PAPER = "Dongarra and Luszczek, HPL-MxP Benchmark, 2025"


@dataclass(frozen=True, slots=True)
class Remark:
    """A choice that breaks no rule: its subject, whether the published rules cover it, and the source."""

    subject: str
    covered: bool
    text: str


def remarks(case: HplMxpCase) -> dict[str, Any]:
    """Return the remark of the section `rules` about the pivoting of a case, or an empty section without pivoting."""
    remarks = []
    if case.pivoting == PARTIAL:
        text = f"the rules permit partial pivoting but do not require it ({PAPER}, section Algorithmic Framework)"
        remarks.append(Remark("pivoting", covered=True, text=text))
    if case.pivoting == BUTTERFLY:
        text = (
            "the rules do not cover a random butterfly transformation before the LU: they permit balancing and scaling "
            f"in the timed part, and name butterflies only as future work for generating matrices ({PAPER})"
        )
        remarks.append(Remark("pivoting", covered=False, text=text))
    return {"remarks": list(map(asdict, remarks))} if remarks else {}


@dataclass(frozen=True, slots=True)
class _Spectrum:
    """The circular law of a generated matrix: diagonal, radius of the eigenvalue disc, infinity norm."""

    d: float
    radius: float
    A_inf: float


def diagonal_scale(case: HplMxpCase) -> float:
    """Return --diagonal-scale or its default: c = 0.625, or theta = 2c/sqrt(n) for the generator ddd.

    Both defaults give the same mean diagonal.
    """
    if case.diagonal_scale is not None:
        return case.diagonal_scale
    return 2.0 * SQRT_SCALE / sqrt(case.n) if case.generator == "ddd" else SQRT_SCALE


def convergence_factor(case: HplMxpCase) -> float | None:
    """Return the convergence factor rho of GMRES without preconditioner, or None if no circular law applies."""
    spectrum = _spectrum(case)
    return spectrum.radius / spectrum.d if spectrum else None


def predicted_steps(case: HplMxpCase) -> int | None:
    """Return the predicted number of GMRES steps to the threshold, or None if no circular law applies or rho >= 1.

    The number is the k with k·ln(1/rho) + k²/4n = ln((1 - rho²)·d / (16·n·u·||A||)), where rho is the convergence
    factor, d the diagonal and u = 2^-53.
    """
    spectrum = _spectrum(case)
    if spectrum is None or spectrum.radius >= spectrum.d:
        return None
    n, rho = case.n, spectrum.radius / spectrum.d
    gain = log((1.0 - rho * rho) * spectrum.d / (THRESHOLD * n * U * spectrum.A_inf))
    loss = -log(rho)
    return min(n, ceil(2.0 * n * (sqrt(loss * loss + max(0.0, gain) / n) - loss)))


def foreseen(case: HplMxpCase) -> list[Violation]:
    """Return the published rules and mxpeak's own tests that a case is certain or expected to fail."""
    broken = _settled(case)
    if case.generator == "fasi-higham" and case.n > MAX_STEPS:
        broken.append(_too_easy(case, f"in {FASI_HIGHAM_STEPS} steps, as measured at N = 100 to 800"))
    return broken


def _settled(case: HplMxpCase) -> list[Violation]:
    """Return the rules that a case breaks regardless of its result."""
    broken = [*_precision(case), *_generator(case), *_stability(case), *_lu_needed(case)]
    if case.mode != "official":
        text = f"--mode {case.mode} is for exploration; only --mode official is admissible"
        broken.insert(0, Violation("mode", text))
    if case.threshold > THRESHOLD:
        text = f"--threshold {case.threshold:g} is looser than the {THRESHOLD:g} of the rules; remove --threshold"
        broken.append(Violation("backward-error", text))
    return broken


def violations(
    case: HplMxpCase,
    *,
    iterations: int,
    residual: float,
    passed: bool,
    proof_passed: bool,
    growth: float = 1.0,
    unpreconditioned_steps: int | None = None,
) -> list[Violation]:
    """Return the published rules and mxpeak's own tests that a run failed.

    `unpreconditioned_steps` is the number of GMRES steps without the factors. It is None if GMRES needed more than the
    fifty steps of the rules, or if the circular law predicts the number.
    """
    broken = _settled(case)
    if unpreconditioned_steps is not None and case.n > MAX_STEPS:
        broken.append(_too_easy(case, f"after {unpreconditioned_steps} steps"))
    if growth > sqrt(case.n):
        text = (
            f"the LU grew to {growth:.3g} times the matrix, more than sqrt(N) = {sqrt(case.n):.3g}, the "
            "growth of random matrices with pivoting"
        )
        if case.pivoting != PARTIAL:
            text += ": it is not stable without pivoting"
        broken.append(Violation("stability", text, OWN))
    if iterations >= MAX_STEPS and not residual < THRESHOLD:
        text = f"refinement did not converge in the {MAX_STEPS} steps that the rules allow; use a wider --precision"
        broken.append(Violation("iterations", text))
    if not residual < THRESHOLD:  # true for NaN
        text = f"the scaled backward error {residual:.3g} is not below {THRESHOLD:g}: the solution lacks fp64 accuracy"
        broken.append(Violation("backward-error", text))
    elif not passed:
        text = (
            f"the scaled backward error {residual:.3g} is not below --threshold {case.threshold:g}, though below the "
            f"rules' {THRESHOLD:g}"
        )
        broken.append(Violation("backward-error", text))
    if not proof_passed:
        text = "the factors are not proven to be an LU of A: their product differs from A by more than rounding"
        broken.append(Violation("lu-proof", text))
    return broken


def refused(case: HplMxpCase) -> None:
    """Raise a UsageError for formats of less than 16 bits, which --mode official does not allow."""
    if case.mode == "official" and (broken := _precision(case)):
        raise UsageError(f"--precision {case.precision}: {broken[0].text}; use --mode explore to run it anyway")


def _precision(case: HplMxpCase) -> list[Violation]:
    bits = 8 * precision(case.precision).bytes
    if bits >= MIN_BITS:
        return []
    return [Violation("precision", f"{case.precision} has {bits} bits, but the rules require at least {MIN_BITS}")]


def _generator(case: HplMxpCase) -> list[Violation]:
    if case.generator in NAMED:
        return []
    why = (
        "it is not in the rules"
        if case.pivoting == PARTIAL
        else INADMISSIBLE.get(case.generator, "it is not in the rules")
    )
    text = f"{case.generator}: {why}; use --generator {alternatives(NAMED)}"
    return [Violation("generator", text)]


def _stability(case: HplMxpCase) -> list[Violation]:
    rho = convergence_factor(case)
    if case.generator not in NAMED or rho is None or rho < 1.0 or case.pivoting == PARTIAL:
        return []
    usual = diagonal_scale(replace(case, diagonal_scale=None))
    text = (
        f"with --diagonal-scale {diagonal_scale(case):.3g} zero lies in the disc of eigenvalues (rho = {rho:.3g}): "
        f"an LU without pivoting is not expected to be stable; the default is {usual:.3g}"
    )
    return [Violation("stability", text, OWN)]


def _lu_needed(case: HplMxpCase) -> list[Violation]:
    if case.n <= MAX_STEPS:
        text = f"N = {case.n}: GMRES ends after at most N steps, with or without factors; use an N above {MAX_STEPS}"
        return [Violation("lu-needed", text, OWN)]
    steps = predicted_steps(case)
    if steps is None or steps > MAX_STEPS:
        return []
    text = (
        f"at N = {case.n} GMRES without the factors reduces the residual by rho = {convergence_factor(case):.3g} "
        f"per step and converges in about {steps}; mxpeak requires a system that needs more than {MAX_STEPS}"
    )
    return [Violation("lu-needed", text + _remedy(case), OWN)]


def _too_easy(case: HplMxpCase, steps: str) -> Violation:
    text = (
        f"on {case.generator} GMRES without the factors passes the check {steps}, but mxpeak requires a system that "
        f"needs more than {MAX_STEPS}; use --generator {alternatives(DIFFICULT)}"
    )
    return Violation("lu-needed", text, OWN)


def _remedy(case: HplMxpCase) -> str:
    usual = replace(case, diagonal_scale=None)
    steps = predicted_steps(usual)
    if case.generator not in DIFFICULT or steps is None or steps <= MAX_STEPS:
        return ""
    return f"; with the default --diagonal-scale, {diagonal_scale(usual):.3g}, it takes about {steps}"


def _spectrum(case: HplMxpCase) -> _Spectrum | None:
    """Return the circular law of A's eigenvalues, or None if the law does not apply to the generator of the case."""
    n, scale = case.n, diagonal_scale(case)
    moments = {"gaussian": (sqrt(2.0 / (3.0 * pi)), sqrt(1.0 / 3.0)), "icl": (0.25, sqrt(1.0 / 12.0))}
    mean, deviation = moments.get(case.generator, (0.5, sqrt(1.0 / 3.0)))
    root = scale * sqrt(n)
    diagonals = {"sqrt-n": root, "gaussian": root, "ddd": scale * mean * n, "dominant-n": float(n), "icl": mean * n}
    d = diagonals.get(case.generator, 0.0)
    return _Spectrum(d, deviation * sqrt(n), mean * n + d) if d > 0.0 else None

"""Write the texts about energy: joules, power, phases, and the ratios of mixed to double precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mxpeak.perf.energy import NOT_ATTRIBUTABLE
from mxpeak.records import Result, is_native_hpl, three_digits

#: Number of phases whose share of the energy is printed.
MAX_PHASES = 3


def energy_text(telemetry: Mapping[str, Any]) -> str:
    """Return a line with energy and power of the timed work, and the phases that used most energy; empty if unknown.

    If the counters were read, but the timed work is too short for them, the line contains the reason.
    """
    energy = telemetry.get("energy")
    if not energy or not energy["joules"]:
        why = str(telemetry.get("energy_unknown", ""))
        return f"energy {why}" if why.startswith(NOT_ATTRIBUTABLE) else ""
    per_watt = energy["gflops_per_watt"]
    joules, seconds, watts = (three_digits(energy[name]) for name in ("joules", "seconds", "watts"))
    rate = "" if per_watt is None else f", {three_digits(per_watt)} GFLOP/s/W"
    phases = list(energy.get("phases", {}).items())[:MAX_PHASES]
    shares = [f"{name} {_share(joules_of, energy)}" for name, joules_of in phases]
    rest = energy.get("not_attributable")
    if rest and rest["joules"]:
        window = f"phases shorter than {three_digits(rest['window_s'])} s, or overlapping"
        shares.append(f"{_share(rest['joules'], energy)} not attributable ({window})")
    by_phase = f"; {', '.join(shares)}" if shares else ""
    return f"energy {joules} J in {seconds} s, {watts} W{rate}{by_phase}"


def _share(joules: float, energy: Mapping[str, Any]) -> str:
    return f"{three_digits(100 * joules / energy['joules'])} %"


def energy_ratios(results: Sequence[Result]) -> list[str]:
    """Return the energy in mixed precision divided by that in double precision, for HPL and HPG-MxP, if measured."""
    passed = [result for result in results if result.passed]
    hpl = [_joules_per_flop(r) for r in passed if is_native_hpl(r)]
    mxp = [_joules_per_flop(r) for r in passed if r.benchmark == "hpl-mxp"]
    ratios = []
    if hpl and mxp and hpl[-1] and mxp[-1]:
        ratios.append(f"J(HPL-MxP)/J(HPL): {three_digits(mxp[-1] / hpl[-1])}, in joules per flop")
    sparse = [result for result in passed if result.benchmark == "hpg-mxp"]
    mixed, double = (
        {_solve_of(r): joules for r in sparse if (joules := per_solve(r))} for per_solve in (_mixed, _double)
    )
    penalties = {_solve_of(r): float(r.validation["penalty"]) for r in sparse if r.validation.get("penalty")}
    for solve in (solve for solve in mixed if solve in double):
        ratio, penalty = mixed[solve] / double[solve], penalties.get(solve, 1.0)
        solved = f", {three_digits(ratio / penalty)} to the same residual" if penalty < 1.0 else ""
        ratios.append(f"J(mixed)/J(double) of HPG-MxP: {three_digits(ratio)} per iteration{solved}")
    return ratios


def _joules_per_flop(result: Result) -> float | None:
    per_watt = (result.telemetry.get("energy") or {}).get("gflops_per_watt")
    return 1e-9 / per_watt if per_watt else None


def _solve_of(result: Result) -> object:
    """Return the size and the iterations of a solve of HPG-MxP, because only energies of equal solves are compared."""
    return tuple(result.problem.get(name) for name in ("rows", "ranks", "max_iterations", "restart"))


def _mixed(result: Result) -> float | None:
    """Return the joules of one mixed solve of HPG-MxP, or None if they are unknown."""
    return _per_solve(result, "energy", result.result.get("solves"))


def _double(result: Result) -> float | None:
    """Return the joules of one double solve of HPG-MxP, which may have run alone, or None if they are unknown."""
    alone = not result.result.get("solves")
    return _per_solve(result, "energy" if alone else "double_energy", result.result.get("double_solves"))


def _per_solve(result: Result, part: str, solves: int | None) -> float | None:
    joules = (result.telemetry.get(part) or {}).get("joules")
    return joules / solves if joules and solves else None

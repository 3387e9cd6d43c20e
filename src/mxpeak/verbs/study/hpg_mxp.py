"""Rate, speed-up and time per motif of HPG-MxP from the reference algorithm to the full code (figs. 4, 5 and 7).

The reference algorithm stores fp32 values by rows (CSR) and sweeps in the order of the reference code, one row after
the other on a CPU and level by level on a device. It reads the whole matrix in every sweep, computes residuals on all
rows, and waits for each halo exchange. Every further step adds one optimization, and the last step is the default of
`mxpeak run hpg-mxp`. Each step is a complete run with its own validation. On a device, the first step stores slices
(SELL) instead of CSR, because the device computes many rows at the same time.

The figures are those of Kashi et al., "Scaling the memory wall using mixed-precision", 2025 (arXiv 2507.11512).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.errors import ExitCode, MxpeakError
from mxpeak.library.run import hpg_mxp
from mxpeak.options import Run
from mxpeak.perf.sparse_counts import HPG_MXP_MOTIFS
from mxpeak.records import Result
from mxpeak.runtime.placement import on_device

#: Default points per side of a rank's box, and measuring time per step in seconds.
NX, RT_S = 64, 10.0

Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The settings of a call: points per side, seconds per step, numbers of ranks, threads per rank, and device."""

    nx: int = NX
    rt: float = RT_S
    ranks: tuple[int, ...] = (1,)
    threads: int | None = None
    device: str = "auto"

    @property
    def on_gpu(self) -> bool:
        """Return whether the runs compute on a GPU."""
        return on_device(Run(HpgMxpConfig(device=self.device))).config.on_gpu

    def shared(self, ranks: int) -> Settings:
        """Return the settings of all steps on this number of ranks."""
        return {
            "nx": self.nx, "rt": self.rt, "ranks": ranks, "threads": self.threads, "device": self.device,
            "quick": True,  # measures nothing besides the step
        }  # fmt: skip


DEFAULT_SWEEP = SweepPlan()


def steps(ranks: int, *, on_gpu: bool) -> list[tuple[str, Settings]]:
    """Return the name and the settings of each step; the settings of a step contain those of the previous steps."""
    settings: Settings = {
        "storage": "sell" if on_gpu else "rows",
        "smoother": "reference",
        "precision": "fp32",
        "overlap": "off",
        "zero_guess": "off",
        "fused_restriction": "off",
    }
    added: list[tuple[str, Settings]] = [("reference", {})]
    if on_gpu:
        added.append(("multicolor sweeps", {"smoother": "coloured"}))
    if ranks > 1:  # a CPU can overlap sweeps if they end with the rows that need the halo
        added.append(("overlap", {"overlap": "on"} | ({} if on_gpu else {"smoother": "natural"})))
    added.append(("zero guess", {"zero_guess": "on"}))
    added.append(("fused restriction", {"fused_restriction": "on"}))
    added.append(("exact 16-bit values", {"precision": "auto"}))
    rows = []
    for name, change in added:
        settings = settings | change
        rows.append((name, settings))
    return rows


def sweep_cases(plan: SweepPlan, on_case: Callable[[int, int], None], cases: list[dict[str, Any]]) -> None:
    """Append one case per number of ranks and step to `cases`. Cases without a valid result have no rates.

    A run without a result gives a case with its error, and the study continues with the next step. If this run is the
    first step on a number of ranks, the other steps have no reference, and the study continues with the next number of
    ranks. If it is the first step of the study, its error is raised.

    `on_case` is called after each case with the number of completed cases and the number of all cases.
    """
    by_ranks = {ranks: steps(ranks, on_gpu=plan.on_gpu) for ranks in plan.ranks}
    count, skipped = sum(map(len, by_ranks.values())), 0
    for ranks, of_ranks in by_ranks.items():
        first: Mapping[str, Any] | None = None
        for name, settings in of_ranks:
            case = _run_step(plan, ranks, name, settings, first, fatal=not cases)
            cases.append(case)
            if stopped := first is None and "error" in case:
                skipped += len(of_ranks) - 1
            on_case(len(cases) + skipped, count)
            if stopped:
                break
            first = first or case


def _run_step(
    plan: SweepPlan, ranks: int, name: str, settings: Settings, first: Mapping[str, Any] | None, *, fatal: bool
) -> dict[str, Any]:
    """Run a step and return its case. If there is no result, raise its error if `fatal`; otherwise, the case has it."""
    flags = _flags(settings)
    try:
        result = hpg_mxp(**plan.shared(ranks), **settings)
        if not isinstance(result, Result):
            raise MxpeakError(f"{name} returned {len(result)} results instead of one")
    except MxpeakError as error:
        if fatal:
            raise
        missing = _case(name, Result(benchmark="hpg-mxp", status="aborted", problem={"ranks": ranks}), first)
        return {"flags": flags, **missing, "error": str(error), "exit_code": int(error.exit_code)}
    return {"flags": flags, **_case(name, result, first)}


def _flags(settings: Settings) -> str:
    """Return settings as flags of `mxpeak run hpg-mxp`; None means that a setting is not given."""
    given = {key: value for key, value in settings.items() if value is not None}
    return " ".join(f"--{key.replace('_', '-')}" + (f" {value}" * (value is not True)) for key, value in given.items())


def failures(plan: SweepPlan, cases: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Return a message and an exit code for each case without a valid result. The message contains its command."""
    messages = []
    for case in cases:
        if case["rate_flops"] is None:
            where = f"hpg-mxp, step {case['step']!r} on {case['ranks']} rank{'s' * (case['ranks'] > 1)}"
            again = f"mxpeak run hpg-mxp {_flags(plan.shared(case['ranks']))} {case['flags']}"
            reason = case.get("error") or f"the result is {case['status']}"
            code = case.get("exit_code", ExitCode.GUARD if case["status"] == "aborted" else ExitCode.FAILED)
            messages.append((f"{where}: {reason}; to repeat this step, use {again}", int(code)))
    return messages


def _case(name: str, result: Result, first: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a case of the study; `first` is the case of the reference algorithm, or None for this case itself."""
    figures, problem, check = (
        section if result.passed else {} for section in (result.result, result.problem, result.validation)
    )
    rate = figures.get("rate_flops")
    base = rate if first is None else first["rate_flops"]
    ran = ("storage", "smoother", "precision", "optimizations", "nx", "npx", "npy", "npz")
    return {
        "step": name,
        "ranks": result.problem.get("ranks"),
        "status": result.status,
        "ran": {key: result.problem.get(key) for key in ran},
        "rate_flops": rate,
        "rate_flops_ornl": figures.get("rate_flops_ornl"),
        "double_rate_flops": figures.get("double_rate_flops"),
        "over_reference": rate / base if rate and base else None,
        "speedup": figures.get("speedup"),
        "speedup_by_motif": figures.get("speedup_by_motif"),
        "penalty": check.get("penalty"),
        "double_iterations": check.get("double_iterations"),
        "mixed_iterations": check.get("mixed_iterations"),
        "seconds_per_solve": {
            "mixed": _seconds(result.phases, problem, figures.get("time_s"), figures.get("solves")),
            "double": _seconds(
                figures.get("double_phases") or {}, problem, figures.get("double_time_s"), figures.get("double_solves")
            ),
        },
    }


def _seconds(
    phases: Mapping[str, Any], problem: Mapping[str, Any], time_s: float | None, solves: int | None
) -> dict[str, float] | None:
    """Return the mean seconds per solve of each motif and in total, or None without a valid result."""
    if not problem or not solves or time_s is None:
        return None
    motifs = {name: (phases.get(name) or {}).get("time_s", 0.0) / solves for name in HPG_MXP_MOTIFS}
    return {**motifs, "total": time_s / solves}


def summary(cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the rate and the speed-up of the full code over the reference algorithm, by number of ranks."""
    last = {case["ranks"]: case for case in cases}
    return {
        "by_ranks": [
            {"ranks": ranks, **{name: case[name] for name in ("rate_flops", "over_reference", "speedup")}}
            for ranks, case in last.items()
        ]
    }

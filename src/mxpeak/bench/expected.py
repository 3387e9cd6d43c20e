"""Compute the rates that a simulation predicts for runs on this machine, from the measurements of `mxpeak tune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mxpeak.bench.registry import kind_of
from mxpeak.errors import UsageError
from mxpeak.layout.stencil import Box
from mxpeak.options import count_text
from mxpeak.perf.counts import lu_flops_done
from mxpeak.perf.simulation.lu import LuRun
from mxpeak.perf.simulation.machines import Machine, find_machine
from mxpeak.perf.simulation.predict import simulate_lu
from mxpeak.perf.simulation.sparse import SparseRun, simulate_sparse
from mxpeak.records import Result
from mxpeak.runtime.tuned import store_folder, this_store

#: Settings that have the same name in a simulated run, a case and a result.
OF_RUN = ("n", "nb", "P", "Q", "order", "node_grid")


def measured_layouts() -> Mapping[tuple[int, int], Any]:
    """Return the machine files that `mxpeak tune` wrote for this machine, keyed by (ranks, threads).

    Call this function before a rank is bound to cores, because the visible cores are part of a machine's fingerprint.
    """
    if not any(store_folder().glob("*.toml")):
        return {}
    return this_store().tables()


def expected_rates(results: Sequence[Result], threads: int) -> tuple[str, str, list[float]]:
    """Return the source and the description of the expected rates of a scaling study, and the rate for each result.

    The rates are simulated if `mxpeak tune` measured this machine with the same number of threads per rank. Otherwise
    the rate of the first result is multiplied by the growth in ranks.
    """
    first, ranks = results[0], [int(result.launch["ranks"]) for result in results]
    rate: float = first.result["rate_bytes" if "rate_bytes" in first.result else "rate_flops"]
    ideal = [rate * R / ranks[0] for R in ranks]
    description = f"linear scaling of the rate on {count_text(ranks[0], 'rank')}"
    if not kind_of(first.benchmark):
        return "measured", description, ideal
    tables = {R: path for (R, T), path in measured_layouts().items() if threads == T}
    if not tables:
        advice = f"for a simulation, run mxpeak tune {first.benchmark} --ranks {ranks[-1]} --threads {threads}"
        return "measured", f"{description} ({advice})", ideal
    largest = max(tables)
    try:
        machines = {R: find_machine(str(tables.get(R, tables[largest]))) for R in ranks}
        rates = [rate_of(result, machines[R]) for result, R in zip(results, ranks)]
    except UsageError as error:
        return "measured", f"{description}; no simulation: {error}", ideal
    layouts = sorted({R if R in tables else largest for R in ranks})
    on = ", ".join(map(str, layouts))
    return "tuned", f"simulated with the rates that mxpeak tune measured on {on} ranks", rates


def rate_of(result: Result, machine: Machine) -> float:
    """Simulate the run of a result and return the simulated rate in flop/s; raise a UsageError without a model."""
    if (pivoting := result.problem.get("pivoting", "none")) != "none":
        raise UsageError(f"the simulator has no model of --pivoting {pivoting}; use --pivoting none")
    if kind_of(result.benchmark) == "lu":
        return simulate_lu(result.benchmark, lu_run(result), machine).rate_flops
    return simulate_sparse(sparse_run(result), machine).rate_flops


def progress_of(benchmark: str, case: Any, machine: Machine) -> tuple[list[float], list[float]] | None:
    """Simulate an LU run and return its progress: times in seconds, and the flops done by each time.

    Returns None if the machine was not measured in the precision of the case, or if the simulator has no model of its
    pivoting.
    """
    if getattr(case, "pivoting", "none") != "none":
        return None
    settings = {name: getattr(case, name) for name in (*OF_RUN, "bcast")}
    low, split = getattr(case, "precision", "fp64"), getattr(case, "split", 0.0)
    run = LuRun(precision=low, depth=min(case.depth, 1), split=split, **settings)
    try:
        forecast = simulate_lu(benchmark, run, machine)
    except UsageError:
        return None
    lu_s = forecast.time_s - forecast.phases.get("refine", 0.0)
    done = [lu_flops_done(run.n, run.n - k * run.nb) for k in range(len(forecast.step_s))]
    return [*map(float, forecast.step_s[1:]), lu_s], [*done[1:], lu_flops_done(run.n, 0)]


def lu_run(result: Result) -> LuRun:
    """Return the input of the LU simulator for the run of a result."""
    problem, bcast = result.problem, result.config["bcast"]["value"]
    low, settings = problem["precision"] if result.benchmark != "hpl" else "fp64", {n: problem[n] for n in OF_RUN}
    split = problem.get("split", 0.0)
    return LuRun(precision=low, bcast=bcast[0], depth=problem["lookahead"], split=split, **settings)


def sparse_run(result: Result) -> SparseRun:
    """Return the input of the sparse simulator for the run of an HPG-MxP or HPCG result.

    Raises a UsageError if the matrix was read from a file.
    """
    problem = result.problem
    if "nx" not in problem:
        raise UsageError("a matrix from a file is not the 27-point problem")
    low = problem["precision"]
    return SparseRun(
        box=Box(*(problem[side] for side in ("nx", "ny", "nz", "npx", "npy", "npz"))),
        benchmark=result.benchmark,
        low=low if isinstance(low, str) else low["krylov"],
        iterations=50 if result.benchmark == "hpcg" else problem["max_iterations"],
        penalty=result.validation.get("penalty", 1.0),
    )

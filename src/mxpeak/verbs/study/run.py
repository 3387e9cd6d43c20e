"""Run the experiments behind the HPL-MxP rules: pivots, residuals and unpreconditioned GMRES in fp64.

The modules `fact` and `hpg_mxp` run the studies of panel factorizations and of HPG-MxP. The module `on_ranks` always
runs the studies `pivoting` and `generators`. With several ranks or a device, it also runs all other studies.

generated   U[-1, 1] from the sequence of `sqrt-n`; the diagonal is unchanged, or c·√n for GMRES; b follows A
pivots      largest |u_ii| of LU with partial pivoting and its column, compared with √n, 5/8·√n and n^0.45   (Fig. 2)
norms       ||b - Ax|| in the 1-, 2- and infinity-norm, with partial pivoting (Fig. 3) and without it      (Fig. 4)
gmres       steps without a preconditioner until the check of HPL passes, by c
generators  the same steps, by generator
pivoting    growth and refinement steps of HPL-MxP without pivoting, with butterflies and with partial pivoting
checked     ||b - Ax|| / (n·u·(||A||·||x|| + ||b||)) < 16 in the infinity norm as in HPL, u = 2^-53

The figures are those of Dongarra and Luszczek, "HPL-MxP Benchmark", 2025.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite, log10, sqrt
from time import perf_counter
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, lu_factor, lu_solve, solve_triangular

from mxpeak.bench.hpl_mxp.config import PIVOTING, HplMxpCase
from mxpeak.bench.hpl_mxp.rules import convergence_factor, predicted_steps
from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import run_on_root
from mxpeak.comm.transports.solo import Solo
from mxpeak.configs.grid import squarest
from mxpeak.configs.lu import GENERATORS
from mxpeak.distributed.spaces import ArraySpace
from mxpeak.errors import ResourceError, UsageError
from mxpeak.layout import lcg
from mxpeak.layout.entries import Entries
from mxpeak.layout.generators import generator
from mxpeak.perf.host import available_memory_bytes, environment, host_facts, one_core_each, software_facts
from mxpeak.precision import precision
from mxpeak.records import size_text
from mxpeak.solvers.residual import backward_error
from mxpeak.verbs.study import fact, hpg_mxp, on_ranks, unpreconditioned
from mxpeak.verbs.study.unpreconditioned import THRESHOLD, Krylov

Array = np.ndarray[Any, np.dtype[Any]]

SCHEMA = "mxpeak.study/1"
#: Default orders in geometric steps. GMRES has fewer orders, because its number of steps hardly depends on n.
ORDERS = (100, 136, 185, 252, 343, 467, 635, 864, 1176, 1600)
GMRES_ORDERS = (200, 400, 800, 1600)
BY_GENERATOR_ORDERS = (100, 200, 400, 800)
SEEDS, GMRES_SEEDS, FIRST_SEED = 5, 1, 100
#: Default orders and numbers of seeds by study, if they are not ORDERS and SEEDS.
DEFAULTS = {
    "gmres": (GMRES_ORDERS, GMRES_SEEDS),
    "generators": (BY_GENERATOR_ORDERS, GMRES_SEEDS),
    "pivoting": (BY_GENERATOR_ORDERS, GMRES_SEEDS),
}
#: Studies that always run by the kernels of the benchmarks, and the smallest order of a default butterfly.
BY_GENERATOR, MIN_ORDER = ("generators", "pivoting"), 4
SCALES = (0.6, 0.625, 0.65, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0)
#: Number of n×n arrays in use at the same time: the matrix, its factors or GMRES's basis, and two work arrays.
ARRAYS = 4
#: Columns per panel of the LU without pivoting.
BLOCK = 64


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """The settings of a call: those of the matrices and of GMRES, those of `fact`, and those of `hpg-mxp`.

    If `orders`, `seeds` or `threads` is None, each study has its own default. `generators` None selects all generators.
    """

    studies: tuple[str, ...]
    orders: tuple[int, ...] | None = None
    seeds: int | None = None
    scales: tuple[float, ...] = SCALES
    nb: int = fact.NB
    threads: tuple[int, ...] | None = None
    generators: tuple[str, ...] | None = None
    precision: str = "fp16"
    device: str = "cpu"
    sweep: hpg_mxp.SweepPlan = hpg_mxp.DEFAULT_SWEEP

    @property
    def heights(self) -> tuple[int, ...]:
        """Return the numbers of rows of the panels that the `fact` study factors."""
        return tuple(sorted(set(self.orders or (blocks * self.nb for blocks in fact.BLOCKS))))

    @property
    def thread_counts(self) -> tuple[int, ...]:
        """Return the numbers of threads that the `fact` study uses."""
        return tuple(sorted(set(self.threads or fact.thread_counts())))

    def cases(self, study: str) -> list[tuple[int, int]]:
        """Return the (order, seed) pairs of a study in the order of execution."""
        usual, seeds = DEFAULTS.get(study, (ORDERS, SEEDS))
        orders, count = self.orders or usual, self.seeds or seeds
        return [(n, FIRST_SEED + k) for n in sorted(set(orders)) for k in range(count)]


#: Function that receives the name of a study, the number of completed cases and the number of all cases.
Listener = Callable[[str, int, int], None]


def run_study(
    plan: StudyPlan,
    comm: Communicator | None = None,
    *,
    argv: Sequence[str] = (),
    on_case: Listener = lambda study, done, count: None,
    body: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Run all studies of the plan and return the content of study.json. NaN and infinity are replaced by None.

    `on_case` is called after each case. If `body` is given, it receives the content, so that the caller has the
    finished cases after an exception. Collective over comm; without comm, this process runs the studies alone.
    """
    comm = comm or Solo()
    run_on_root(comm, lambda: _check(plan, comm.size))
    body = {} if body is None else body
    body |= {
        "schema": SCHEMA,
        "argv": list(argv),
        "machine": host_facts(),
        "software": {**software_facts(), "environment": environment()},
        "threshold": THRESHOLD,
        "ranks": comm.size,
        "device": plan.device,
    }
    for study in plan.studies:
        begin, cases = perf_counter(), list[dict[str, Any]]()
        try:
            _run_cases(study, plan, comm, on_case, cases)
        finally:
            if cases:
                body[study] = {"time_s": perf_counter() - begin, "summary": SUMMARIES[study](cases), "cases": cases}
    return body


def _run_cases(study: str, plan: StudyPlan, comm: Communicator, on_case: Listener, cases: list[dict[str, Any]]) -> None:
    """Run a study and append its cases to `cases`. Collective.

    The cases of one matrix are appended together, so that no order has only some of the diagonals or generators.
    """
    if study == "hpg-mxp":
        hpg_mxp.sweep_cases(plan.sweep, partial(on_case, study), cases)
    elif study == "fact":
        fact.fact_cases(plan.nb, plan.heights, plan.thread_counts, partial(on_case, study), cases)
    elif study == "pivoting":
        _pivoting_cases(plan, comm, on_case, cases)
    elif study == "generators" or comm.size > 1 or plan.device != "cpu":
        _cases_on_ranks(study, plan, comm, on_case, cases)
    else:
        _cases_of_arrays(study, plan, on_case, cases)


def _check(plan: StudyPlan, ranks: int) -> None:
    """Raise an error for studies that cannot run, or that do not fit into memory."""
    _check_memory(plan, ranks)
    if "pivoting" in plan.studies and (least := min(n for n, _ in plan.cases("pivoting"))) < MIN_ORDER:
        raise UsageError(
            f"pivoting combines groups of {MIN_ORDER} rows by butterflies, but N = {least}; use -N {MIN_ORDER} or more"
        )
    if "fact" in plan.studies:
        if ranks > 1:
            raise UsageError(f"fact measures one process, but there are {ranks} ranks; remove fact, or use --ranks 1")
        _check_fact(plan)


def _check_memory(plan: StudyPlan, ranks: int) -> None:
    """Raise a ResourceError if the largest matrix does not fit on this host.

    With several ranks, the arrays are the matrix, a basis on each of the P process rows, and a triangle on every rank.
    """
    arrays = ARRAYS if ranks == 1 else 1 + squarest(ranks)[0] + ranks
    of_matrices = [study for study in plan.studies if study not in ("fact", "hpg-mxp")]
    n = max((n for study in of_matrices for n, _ in plan.cases(study)), default=0)
    need, there = arrays * 8 * n * n, available_memory_bytes()
    if there is not None and need > there:
        limit = int(sqrt(there / (arrays * 8)))
        raise ResourceError(
            f"N={n} needs {arrays} matrices of 8·N² bytes ({size_text(need)}), but only "
            f"{size_text(there)} is free; use -N {limit // 100 * 100 or limit}"
        )


def _check_fact(plan: StudyPlan) -> None:
    """Raise an error if a panel is wider than tall, needs too much memory, or needs more threads than cores."""
    cores, shortest, tallest = len(one_core_each()), plan.heights[0], plan.heights[-1]
    if shortest < plan.nb:
        raise UsageError(
            f"a panel of {shortest} rows has fewer rows than its NB = {plan.nb} columns; use -N {plan.nb} or more, or "
            "a smaller --nb"
        )
    if max(plan.thread_counts) > cores:
        raise UsageError(
            f"--threads {max(plan.thread_counts)} exceeds the {cores} cores of this host; use at most {cores}"
        )
    need, free = fact.ARRAYS * 8 * tallest * plan.nb, available_memory_bytes()
    if free is not None and need > free:
        raise ResourceError(
            f"a panel of {tallest} rows needs {fact.ARRAYS} arrays of {tallest}·{plan.nb}·8 bytes "
            f"({size_text(need)}), but only {size_text(free)} is free; use -N "
            f"{free // (fact.ARRAYS * 8 * plan.nb)} or less"
        )


def _cases_of_arrays(study: str, plan: StudyPlan, on_case: Listener, cases: list[dict[str, Any]]) -> None:
    """Run the cases of a study on this process, with NumPy and SciPy."""
    systems = plan.cases(study)
    for done, (n, seed) in enumerate(systems, start=1):
        A, b = uniform_system(n, seed)
        results = list[dict[str, Any]]()
        if study == "pivots":
            results.append({"n": n, "seed": seed, **largest_pivot(A)})
        elif study == "norms":
            for pivoting in (True, False):
                results.append({"n": n, "seed": seed, "pivoting": pivoting, **residual_norms(A, b, pivoting=pivoting)})
        else:
            for c in plan.scales:
                matrix = generator("sqrt-n", n, seed=seed, scale=c)
                np.fill_diagonal(A, matrix.diagonal)
                results.append({"n": n, "seed": seed, "diagonal_scale": c, **gmres_case(A, b, c)})
        cases += results
        on_case(study, done, len(systems))


def _cases_on_ranks(
    study: str, plan: StudyPlan, comm: Communicator, on_case: Listener, cases: list[dict[str, Any]]
) -> None:
    """Run the cases of a study on all ranks. Collective."""
    systems = plan.cases(study)
    with on_ranks.opened(comm, plan.device) as ranks:
        for done, (n, seed) in enumerate(systems, start=1):
            parameters: dict[str, Any] = {"n": n, "seed": seed}
            results = list[dict[str, Any]]()
            if study == "pivots":
                results.append(parameters | pivot_figures(np.array(on_ranks.pivots(ranks, n, seed))))
            elif study == "norms":
                for pivoting in (True, False):
                    norms = on_ranks.residual_norms(ranks, n, seed, pivoting=pivoting)
                    results.append({**parameters, "pivoting": pivoting, **norms})
            else:
                for varied, case in _systems(study, plan, n, seed):
                    results.append({**parameters, **varied, **on_ranks.unpreconditioned(ranks, case)})
            cases += results
            on_case(study, done, len(systems))


def _systems(study: str, plan: StudyPlan, n: int, seed: int) -> Iterator[tuple[dict[str, Any], HplMxpCase]]:
    """Yield the systems of `gmres`, by diagonal scale, or of `generators`, with the value that differs."""
    if study == "gmres":
        for c in plan.scales:
            yield {"diagonal_scale": c}, HplMxpCase(n=n, nb=1, P=1, Q=1, seed=seed, diagonal_scale=c)
    else:
        for name in plan.generators or GENERATORS:
            yield {"generator": name}, HplMxpCase(n=n, nb=1, P=1, Q=1, seed=seed, generator=name)


def _pivoting_cases(plan: StudyPlan, comm: Communicator, on_case: Listener, cases: list[dict[str, Any]]) -> None:
    """Run HPL-MxP on all generators with each kind of pivoting. Collective."""
    systems, generators = plan.cases("pivoting"), plan.generators or tuple(GENERATORS)
    orders, seeds = (sorted(set(values)) for values in zip(*systems))
    settings = {"n": tuple(orders), "generator": generators, "precision": (plan.precision,), "device": plan.device}
    count = len(systems) * len(generators) * len(PIVOTING)
    for case in on_ranks.pivoting_runs(comm, settings, seeds):
        cases.append(case)
        on_case("pivoting", len(cases), count)


def uniform_system(n: int, seed: int) -> tuple[Array, Array]:
    """Generate the matrix A and the right-hand side b of `sqrt-n`, without changing the diagonal of A."""
    matrix = generator("sqrt-n", n, seed=seed)
    return draw(matrix.entries, n), draw(matrix.right_side, 1)[:, 0]


def draw(entries: Entries, columns: int) -> Array:
    """Generate the first columns of an `lcg` matrix. The entries are bitwise equal to `entries.value`.

    The sequence runs down the columns. Each step doubles the number d of entries by X(d + k) = A_d·X(k) + C_d.
    """
    x = np.empty(entries.n * columns, dtype=np.uint64)
    x[0] = lcg.state(entries.seed, entries.first)
    done = 1
    while done < len(x):
        A, C = lcg.jump(done)
        more = min(done, len(x) - done)
        np.multiply(x[:more], np.uint64(A), out=x[done : done + more])
        x[done : done + more] += np.uint64(C)
        done += more
    values = x.astype(np.float64)
    values *= entries.scale * 2.0**-64
    values += entries.shift
    return values.reshape((entries.n, columns), order="F")


def largest_pivot(A: Array) -> dict[str, Any]:
    """Compute the largest |u_ii| of an LU with partial pivoting, its relative position, and medians of the pivots.

    The medians are divided by √n. One is over all columns and the other over the last tenth, where pivots are largest.
    """
    return pivot_figures(np.abs(np.diag(lu_factor(A, check_finite=False)[0])))


def pivot_figures(pivots: Array) -> dict[str, Any]:
    """Return the figures of `largest_pivot` for the absolute values of the pivots."""
    n, at = len(pivots), int(np.argmax(pivots))
    return {
        "largest": float(pivots[at]),
        "over_sqrt_n": float(pivots[at]) / sqrt(n),
        "position": (at + 1) / n,
        "median_over_sqrt_n": float(np.median(pivots)) / sqrt(n),
        "late_over_sqrt_n": float(np.median(pivots[9 * n // 10 :])) / sqrt(n),
    }


def _pivot_summary(cases: list[dict[str, Any]]) -> dict[str, Any]:
    over = [case["over_sqrt_n"] for case in cases]
    exponent, spread = _trend([(case["n"], case["largest"]) for case in cases])
    names = ("over_sqrt_n", "median_over_sqrt_n", "late_over_sqrt_n", "position")
    return {
        **{name: _range([case[name] for case in cases]) for name in names},
        "above_sqrt_n": sum(ratio > 1.0 for ratio in over) / len(over),
        "exponent": exponent,
        "spread_decades": spread,
        "last_percent": sum(case["position"] > 0.99 for case in cases) / len(cases),
        "last_tenth": sum(case["position"] > 0.9 for case in cases) / len(cases),
    }


def residual_norms(A: Array, b: Array, *, pivoting: bool) -> dict[str, Any]:
    """Solve A x = b by LU with or without partial pivoting, and return measures of the residual r = b - A x.

    These are three norms of r, HPL's scaled residual, and whether it passes HPL's check. Norms that are not finite are
    None.
    """
    with np.errstate(all="ignore"):  # without pivoting, entries may overflow
        x = _solve(A, b, pivoting)
        r = b - A @ x
        norms = {f"norm_{name}": _finite(np.linalg.norm(r, p)) for name, p in (("1", 1), ("2", 2), ("inf", np.inf))}
        scaled = scaled_residual(A, b, x, r)
    return {**norms, "scaled_residual": _finite(scaled), "passed": bool(scaled < THRESHOLD)}


def _solve(A: Array, b: Array, pivoting: bool) -> Array:
    if pivoting:
        return np.asarray(lu_solve(lu_factor(A, check_finite=False), b, check_finite=False))
    LU = lu_without_pivoting(A)
    try:
        y = solve_triangular(LU, b, lower=True, unit_diagonal=True, check_finite=False)
        return np.asarray(solve_triangular(LU, y, check_finite=False))
    except LinAlgError:  # the last pivot is zero
        return np.full_like(b, np.nan)


def lu_without_pivoting(A: Array) -> Array:
    """Factor A without pivoting, by panels, and return L below the diagonal and U on and above it.

    A zero pivot gives non-finite values.
    """
    LU = np.array(A, order="F")
    for k in range(0, len(LU), BLOCK):
        end = min(k + BLOCK, len(LU))
        for j in range(k, end):
            LU[j + 1 :, j] /= LU[j, j]
            LU[j + 1 :, j + 1 : end] -= np.outer(LU[j + 1 :, j], LU[j, j + 1 : end])
        L11 = LU[k:end, k:end]
        LU[k:end, end:] = solve_triangular(L11, LU[k:end, end:], lower=True, unit_diagonal=True, check_finite=False)
        LU[end:, end:] -= LU[end:, k:end] @ LU[k:end, end:]
    return LU


def scaled_residual(A: Array, b: Array, x: Array, r: Array) -> float:
    """Return HPL's scaled residual ||r|| / (n·u·(||A||·||x|| + ||b||)) in the infinity norm."""
    A_inf = float(np.abs(A).sum(axis=1).max())
    r_inf, x_inf, b_inf = (float(np.abs(v).max()) for v in (r, x, b))
    return backward_error(r_inf, A_inf, x_inf, b_inf, len(b), precision("fp64").u)


def _norm_summary(cases: list[dict[str, Any]]) -> dict[str, Any]:
    with_, without = ([case for case in cases if case["pivoting"] is wanted] for wanted in (True, False))
    summary: dict[str, Any] = {}
    for name in ("norm_1", "norm_2", "norm_inf"):
        lost = [log10(w[name] / p[name]) for p, w in zip(with_, without) if p[name] and w[name]]
        summary[name] = {"decades_lost": _range(lost)}
        for kind, chosen in (("pivoting", with_), ("no_pivoting", without)):
            exponent, spread = _trend([(case["n"], case[name]) for case in chosen])
            summary[name][kind] = {"exponent": exponent, "spread_decades": spread}
    summary["passed"] = {
        kind: sum(case["passed"] for case in chosen) / len(chosen)
        for kind, chosen in (("pivoting", with_), ("no_pivoting", without))
    }
    return summary


def full_gmres_on_arrays(A: Array, b: Array) -> Krylov:
    """Run GMRES on arrays without restarts from x = 0, at most n steps, until HPL's check passes."""
    A_inf = float(np.abs(A).sum(axis=1).max())
    return unpreconditioned.full_gmres(
        unpreconditioned.UnpreconditionedSystem(len(b), b, lambda q: A @ q, ArraySpace(np, b), A_inf)
    )


def gmres_case(A: Array, b: Array, c: float) -> dict[str, Any]:
    """Run GMRES and return the measured and the predicted number of steps, the residual and the convergence factors.

    The factor is the mean reduction of the residual per step. Figures that are not finite are None.
    """
    went, case = full_gmres_on_arrays(A, b), HplMxpCase(n=len(b), nb=1, P=1, Q=1, diagonal_scale=c)
    return {
        **went.figures(len(b)),
        "predicted_factor": convergence_factor(case),
        "predicted_steps": predicted_steps(case),
    }


def _gmres_summary(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the range of steps by diagonal scale c."""
    return {"by_scale": _steps_by("diagonal_scale", sorted({case["diagonal_scale"] for case in cases}), cases)}


def _generator_summary(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the range of steps by generator."""
    return {"by_generator": _steps_by("generator", dict.fromkeys(case["generator"] for case in cases), cases)}


def _steps_by(key: str, values: Iterable[Any], cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the range of steps for each value of `key`. `unsolved` counts the cases that n steps did not solve."""
    ranges = []
    for value in values:
        chosen = [case for case in cases if case[key] == value]
        steps = [float(case["steps"]) for case in chosen if case["steps"] is not None]
        ranges.append({key: value, "steps": _range(steps), "unsolved": len(chosen) - len(steps)})
    return ranges


def _pivoting_summary(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the ranges of growth and iterations by generator and pivoting.

    `unsolved` counts the cases that fail the check, and `not_finite` those whose factors overflow.
    """
    summaries = []
    for name in dict.fromkeys(case["generator"] for case in cases):
        for pivoting in PIVOTING:
            chosen = [case for case in cases if (case["generator"], case["pivoting"]) == (name, pivoting)]
            growth = [case["growth"] for case in chosen if case["growth"] is not None]
            steps = [float(case["iterations"]) for case in chosen if case["iterations"] is not None]
            summaries.append(
                {
                    "generator": name,
                    "pivoting": pivoting,
                    "growth": _range(growth),
                    "iterations": _range(steps),
                    "unsolved": len(chosen) - len(steps),
                    "not_finite": len(chosen) - len(growth),
                }
            )
    return {"by_generator": summaries}


def _fact_summary(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the best FACT rate in flop/s for each number of threads, and its share of the DGEMM rate."""
    threads = sorted({case["threads"] for case in cases})
    best = {T: max((c for c in cases if c["threads"] == T), key=lambda c: c["rate_flops"]) for T in threads}
    return {
        str(T): {"m": c["m"], "rate_flops": c["rate_flops"], "share": c["rate_flops"] / c["dgemm_flops"]}
        for T, c in best.items()
    }


SUMMARIES: dict[str, Callable[[list[dict[str, Any]]], dict[str, Any]]] = {
    "pivots": _pivot_summary,
    "norms": _norm_summary,
    "gmres": _gmres_summary,
    "generators": _generator_summary,
    "pivoting": _pivoting_summary,
    "fact": _fact_summary,
    "hpg-mxp": hpg_mxp.summary,
}


def _finite(value: Any) -> float | None:
    return float(value) if isfinite(value) else None


def _range(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"least": float(min(values)), "median": float(np.median(values)), "most": float(max(values))}


def _trend(points: Sequence[tuple[int, float | None]]) -> tuple[float | None, float | None]:
    """Fit c·n^p to the points by least squares, and return the exponent p and the standard deviation in decades."""
    there = [(log10(n), log10(value)) for n, value in points if value]
    if len({x for x, _ in there}) < 2:
        return None, None
    x, y = np.array(there).T
    p, intercept = np.polyfit(x, y, 1)
    return float(p), float(np.std(y - p * x - intercept))

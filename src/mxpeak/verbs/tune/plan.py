"""Plan a search: the size of the trials, and the candidates in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from mxpeak.bench.registry import kind_of
from mxpeak.bench.stencil_sizes import DEFAULT_NX, GPU_NX
from mxpeak.perf.simulation.machines import Machine
from mxpeak.verbs.tune.candidates import (
    GPU_SIDES,
    ORDERS,
    SIDES,
    Candidate,
    RankLayout,
    default_nb,
    largest,
    lu_candidates,
    lu_seconds,
    ordered,
    sparse_candidates,
    sparse_seconds,
)
from mxpeak.verbs.tune.successive_halving import max_runs

#: Smallest number of seconds per trial, and the number of trials that should fit into a search.
MIN_TRIAL_S, TRIALS = 0.3, 60
#: Smallest and largest number of candidates of a search, and the ratio of a run's time to its trial's time.
MIN_CANDIDATES, MAX_CANDIDATES, OVERHEAD = 4, 16, 2.5
#: Share of the search time that is used to order candidates by the model. Candidates that are not simulated in this
#: time come last.
MODEL = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class TunePlan:
    """The settings of a call of `mxpeak tune`.

    layouts      ranks and threads of the candidates, the default first
    size         size of the trials if the user has set it: {"n": …} or {"nx": …}
    orders       the orders to search if the user has set several; the largest is the n of `size`
    libraries    BLAS libraries that LU benchmarks compare with SciPy's, with the file of each
    scale        divisor of the sizes of kernels and trials, for tests
    """

    benchmarks: Sequence[str]
    layouts: Sequence[RankLayout]
    budget_s: float
    mode: str = "official"
    device: str = "cpu"
    kernels: str = "auto"
    comm: str = "auto"
    quiet: bool = False
    size: dict[str, int] = field(default_factory=dict)
    orders: Sequence[int] = ()
    libraries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    scale: int = 1
    memory_bytes: float = 1e9
    cores: int = 1

    @property
    def on_gpu(self) -> bool:
        """Return whether the benchmarks run on a GPU."""
        return self.device.startswith("cuda")


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """The plan of a search: size of the trials, candidates with the defaults first, and notes on omitted candidates."""

    size: dict[str, int]
    candidates: list[Candidate]
    notes: list[str]


def plan_search(
    plan: TunePlan,
    benchmark: str,
    layouts: Sequence[RankLayout],
    machines: Mapping[RankLayout, Machine],
    seconds: float,
) -> SearchPlan:
    """Return the plan of a search that takes about `seconds`, with few large trials rather than many small ones."""
    trial_s = max(MIN_TRIAL_S, seconds / TRIALS)
    limit = MIN_CANDIDATES
    while limit < MAX_CANDIDATES and OVERHEAD * trial_s * max_runs(limit + 1) <= seconds:
        limit += 1
    if kind_of(benchmark) != "lu":
        return _sparse(plan, benchmark, layouts, machines, trial_s, limit)
    return _lu(plan, benchmark, layouts, machines, trial_s, limit, perf_counter() + MODEL * seconds)


def _lu(
    plan: TunePlan,
    benchmark: str,
    layouts: Sequence[RankLayout],
    machines: Mapping[RankLayout, Machine],
    trial_s: float,
    limit: int,
    until: float,
) -> SearchPlan:
    """Return the plan of an LU search. The simulated run of the defaults at the chosen order takes at most `trial_s`.

    The candidates are sorted by simulated time. Simulations end at the time `until`.
    """
    machine, low = machines.get(layouts[0]), "fp64"
    if benchmark == "hpl-mxp":
        names = ("fp16",) if plan.on_gpu else ("bf16", "fp16", "fp32")
        low = next((name for name in names if machine is not None and name in machine.gemm), names[-1])
    nb = default_nb(benchmark, on_gpu=plan.on_gpu, native=[] if low in ("fp64", "fp32") else [low])
    n = plan.size.get("n") or max(64, ORDERS[0] // plan.scale)
    if machine is not None and "n" not in plan.size and plan.scale == 1:
        default = Candidate(layouts[0], {})
        n = largest(ORDERS, lambda n: lu_seconds(benchmark, default, n, nb, low, machine), trial_s)
    candidates = [
        Candidate(layout, {**candidate.settings, **({"n": str(order)} if plan.orders else {})})
        for layout in layouts
        for order in plan.orders or [n]
        for candidate in lu_candidates(benchmark, layout, order, nb, on_gpu=plan.on_gpu)
    ]

    def seconds_of(candidate: Candidate) -> float | None:
        here = machines.get(candidate.layout)
        if here is None or low not in here.gemm or perf_counter() > until:
            return None
        order = int(candidate.settings.get("n", n))
        return lu_seconds(benchmark, candidate, order, nb, low, here) * (n / order) ** 3  # at equal flops

    return SearchPlan({"n": n}, ordered(candidates, seconds_of, limit, plan.libraries), [])


def _sparse(
    plan: TunePlan,
    benchmark: str,
    layouts: Sequence[RankLayout],
    machines: Mapping[RankLayout, Machine],
    trial_s: float,
    limit: int,
) -> SearchPlan:
    """Return the plan of a sparse search. The simulated trial on the chosen cube takes at most `trial_s`.

    The candidates include other box shapes if the cube has at least the default size.
    """
    machine, sides = machines.get(layouts[0]), GPU_SIDES if plan.on_gpu else SIDES
    side = plan.size.get("nx") or sides[0]
    if machine is not None and "nx" not in plan.size and plan.scale == 1:
        side = largest(sides, lambda n: sparse_seconds(benchmark, n, layouts[0].ranks, machine), trial_s)
    boxes = side >= (GPU_NX if plan.on_gpu else DEFAULT_NX)
    note = f"{benchmark}: trials of {side}x{side}x{side} points are too small to search shapes of boxes"
    candidates = [
        candidate
        for layout in layouts
        for candidate in sparse_candidates(benchmark, layout, plan.mode, side, on_gpu=plan.on_gpu, boxes=boxes)
    ]
    return SearchPlan(
        dict.fromkeys(("nx", "ny", "nz"), side),
        ordered(candidates, lambda candidate: None, limit),
        [] if boxes else [note],
    )

"""Test that checks of CG and GMRES-IR find flipped bits that change a solve, and accept clean solves.

Run a few dozen solves of each kind by default; `-m exhaustive -rP` runs a thousand, and prints the results.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from mxpeak.bench import sparse
from mxpeak.bench.abft import solve_fault_text
from mxpeak.bench.hpcg import run as hpcg
from mxpeak.bench.hpcg.config import HpcgConfig
from mxpeak.bench.hpg_mxp import run as hpg_mxp
from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.comm.transports.solo import Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.distributed.stencil import Form, StencilProblem, make_stencil, weights
from mxpeak.distributed.system import InnerIteration
from mxpeak.errors import Outcome
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.stencil import Box
from mxpeak.records import document
from mxpeak.solvers.abft.residual_checks import CheckedCg, CheckedMixed
from mxpeak.solvers.abft.solve_faults import SolveChecks, SolveFault, arrays_of, bits_of
from mxpeak.solvers.cg import conjugate_gradients
from mxpeak.solvers.krylov import gmres_ir
from mxpeak.solvers.multigrid import cycle
from mxpeak.spans import Spans
from tests.support.result_file import VALIDATOR

GRIDS = [(1, 1, 1), (2, 1, 1), (1, 2, 2)]
#: Each format compiles its own kernels; by default, tests use the first three formats.
FEW, VALUES = ["fp64", "fp32", "bf16"], ["fp64", "fp32", "bf16", "fp16", "fp8"]
#: The solves of an exhaustive test, and their formats.
THOUSAND = pytest.param(1000, VALUES, marks=pytest.mark.exhaustive, id="1000")
BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64, 1: np.uint8}
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Case:
    """One solve to 1e-9: by CG if `values` is None, otherwise by GMRES-IR."""

    shape: tuple[int, int, int]
    grid: tuple[int, int, int]
    storage: str
    order: str
    values: str | None = None
    vectors: str = "fp64"
    nonsymmetric: bool = False
    restart: int = 30
    basis: str | None = None

    @property
    def ranks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True)
class Flip:
    """A bit that flips on a rank when a given number of operations have begun; the array and the entry are random."""

    rank: int
    moment: int
    seed: int

    def strike(self, arrays: dict[str, Any]) -> str:
        rng = np.random.default_rng(self.seed)
        names = [name for name, array in arrays.items() if array.size]
        name = names[int(rng.integers(len(names)))]
        flat = arrays[name].reshape(-1)
        kind = BITS[flat.itemsize]
        bit = int(rng.integers(8 * flat.itemsize))
        flat.view(kind)[int(rng.integers(len(flat)))] ^= kind(1 << bit)
        return f"{name} bit {bit}"


class Counting(Spans):
    """Spans that count the operations, and flip the bit between two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.flip, self.struck = 0, None, ""  # type: tuple[int, Any, str]
        self.arrays: Callable[[], dict[str, Any]] = dict

    def __call__(self, name: str, **counts: float) -> AbstractContextManager[None]:
        self.begun += 1
        if self.flip is not None and self.begun == self.flip.moment:
            self.struck = f"{self.flip.strike(self.arrays())} before {name}"
        return super().__call__(name, **counts)


@dataclass(frozen=True)
class Solved:
    """Results of a solve: steps, outcome, ||b - A x|| / ||b|| with the original A and b, and the faults found."""

    steps: int
    outcome: Outcome
    residual: float
    faults: list[Any]
    begun: int
    struck: str
    margin: float

    def harmed(self, clean: Solved) -> bool:
        """Return whether the reported results differ from the clean solve's, or the solution is worse than reported.

        One step more or less is allowed, because other numbers of ranks or threads and other backends also cause it.
        """
        right = self.residual <= 1.05 * max(TOLERANCE, clean.residual)
        return abs(self.steps - clean.steps) > 1 or self.outcome != clean.outcome or not right


class Watched(SolveChecks):
    """Checks that record how close clean solves come to the limits."""

    margin = 0.0

    def judge(self, comm: Any, step: int, part: str, difference: float, limit: float, mine: Any = None) -> bool:
        self.margin = max(self.margin, difference / limit)
        return super().judge(comm, step, part, difference, limit, mine)


def solved(case: Case, flip: Flip | None = None) -> Solved:
    def body(comm: Any) -> Any:
        return _solved(case, flip, comm)

    found = run_ranks(case.ranks, body)
    return replace(
        found[0], begun=min(one.begun for one in found), struck=next((f.struck for f in found if f.struck), "")
    )


def _solved(case: Case, flip: Flip | None, comm: Any) -> Solved:
    kernels, spans = HostKernels(1, poison=True).sparse, Counting()
    box = Box.of(comm.rank, case.shape, case.grid)
    form = Form(("fp64",) * 3, "fp64", case.storage, symmetric=True)
    if case.values is not None:
        form = Form((case.values,) * 3, case.vectors, case.storage, mixed=True, basis=case.basis)
    stencil = weights(nonsymmetric=case.nonsymmetric)

    def make() -> StencilProblem:
        return make_stencil(kernels, comm, box.levels(3), [form], case.order, stencil, Spans())

    problem, checks = make(), Watched(spans)
    checks.record_matrices(problem)
    checks.begin("test")
    top, outer = problem.hierarchies[0].top, problem.hierarchies[0].outer
    system: Any
    if case.values is None:
        system = CheckedCg(checks, kernels, comm, top.A, problem.b, partial(cycle, top), spans)
    else:
        inner = InnerIteration(top.A, partial(cycle, top), case.restart, basis=case.basis)
        system = CheckedMixed(checks, kernels, comm, outer, problem.b, inner, spans)
    spans.flip = flip if flip is not None and flip.rank == comm.rank else None
    spans.arrays = lambda: dict(_arrays(system, problem))
    if case.values is None:
        done: Any = conjugate_gradients(system, max_steps=200, tolerance=TOLERANCE)
    else:
        how = {"reduction": system.reduction, "tolerance": TOLERANCE}
        done = gmres_ir(system, system.norm_of_b(), restart=case.restart, max_steps=300, **how)
    begun = spans.begun - (case.values is not None)  # the last operation of GMRES is a check: x may change after it
    system.ended()
    with np.errstate(all="ignore"):
        clean = make()
        r = np.zeros(box.rows)
        A = clean.hierarchies[0].outer
        A.multiply(system.x, r)
        squares = np.array([np.sum((clean.b - r) ** 2), np.sum(clean.b**2)])
        comm.allreduce(squares, "sum")
        residual = float(np.sqrt(squares[0] / squares[1]))
    return Solved(done.steps, done.outcome, residual, checks.faults, begun, spans.struck, checks.margin)


def _arrays(system: Any, problem: StencilProblem) -> Iterator[tuple[str, Any]]:
    """Yield every vector of a solve, and the values of its matrices."""
    yield "b", problem.b
    yield "x", system.solution
    yield "r", system._r
    if hasattr(system, "_p"):
        yield from (("p", system.direction), ("A p", system._Ap))
    else:
        basis = system._basis
        yield from ((f"q{k}", basis._Q[k]) for k in range(basis._k))
        yield "Q t", basis._combined
    for depth, level in enumerate(problem.levels(0)):
        yield f"x of level {depth}", level.A.own(level.x)
        for name, vector in (("keep", level.keep), ("r", level.r)):
            if vector is not None:
                yield f"{name} of level {depth}", vector
        for name in ("entries", "diagonal", "halo_entries"):
            yield f"{name} of level {depth}", getattr(level.A.A, name)


def drawn(rng: Any, method: str, formats: list[str]) -> Case:
    """Return a random case with one of these formats of values."""
    shape = tuple(int(n) for n in rng.choice([4, 8, 12], 3))
    grid = GRIDS[int(rng.integers(len(GRIDS)))]
    storage = str(rng.choice(["rows", "packed", "sell", "ell"]))
    natural = storage == "rows" or (storage == "packed" and rng.random() < 0.5)
    case = Case(shape, grid, storage, "surface_last" if natural else str(rng.choice(["greedy", "jpl"])))  # type: ignore[arg-type]
    if method == "cg":
        return case
    values = str(rng.choice(formats))
    vectors = "fp64" if values == "fp64" or rng.random() < 0.3 else "fp32"
    return replace(
        case, values=values, vectors=vectors, nonsymmetric=bool(rng.random() < 0.3), restart=int(rng.choice([5, 30]))
    )


@pytest.mark.parametrize("method", ["cg", "gmres"])
@pytest.mark.parametrize(("solves", "formats"), [pytest.param(4, FEW, id="4"), THOUSAND])
def test_clean_solves_raise_no_alarm(method: str, solves: int, formats: list[str]) -> None:
    rng = np.random.default_rng([0, method == "cg"])
    nearest = 0.0
    for _ in range(solves):
        case = drawn(rng, method, formats)
        outcome = solved(case)
        assert not outcome.faults, case
        assert outcome.outcome == Outcome.SOLVED, case
        nearest = max(nearest, outcome.margin)
    print(f"{method}: {solves} clean solves, at most {nearest:.3g} of a limit")


@pytest.mark.parametrize("basis", ["bf16", "fp16"])
@pytest.mark.parametrize("grid", [(1, 1, 1), (1, 2, 2)])
def test_clean_solves_with_a_basis_in_16_bits_raise_no_alarm(grid: tuple[int, int, int], basis: str) -> None:
    case = Case((12, 8, 8), grid, "packed", "greedy", "bf16", "fp32", basis=basis)
    outcome = solved(case)
    assert not outcome.faults
    assert (outcome.outcome, outcome.residual <= TOLERANCE) == (Outcome.SOLVED, True)
    assert outcome.margin > 1e-3, "the limit is that of the stored vectors, not a larger one"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # sums of numbers that are no longer finite
@pytest.mark.parametrize("method", ["cg", "gmres"])
@pytest.mark.parametrize(("solves", "formats"), [pytest.param(16, FEW, id="16"), THOUSAND])
def test_flips_that_change_a_solve_are_found(method: str, solves: int, formats: list[str]) -> None:
    """A change counts if steps or outcome differ, or the residual is not the reported one."""
    rng = np.random.default_rng([0, method == "cg", 7])
    harmful, missed = 0, []
    for _ in range(solves):
        case = drawn(rng, method, formats)
        clean = solved(case)
        flip = Flip(int(rng.integers(case.ranks)), int(rng.integers(1, clean.begun + 1)), int(rng.integers(1 << 30)))
        outcome = solved(case, flip)
        if outcome.harmed(clean):
            harmful += 1
            missed += [] if outcome.faults else [(case, outcome, clean.steps)]
    for one in missed:
        print(*one)
    print(f"{method}: {solves} flips, {harmful} changed the solve, {len(missed)} of these missed")
    assert harmful > 0
    assert len(missed) <= harmful // 100


# --- locations of faults ----------------------------------------------------------------------------------------


class At:
    """A change of a vector's entry before the n-th call of an operation."""

    def __init__(self, operation: str, time: int, vector: Callable[[Any], Any], factor: float):
        self.operation, self.time, self.vector, self.factor, self.seen = operation, time, vector, factor, 0

    def wrap(self, system: Any) -> None:
        right = getattr(system, self.operation)

        def operation(*arguments: Any) -> Any:
            self.seen += 1
            if self.seen == self.time:
                vector = self.vector(system)
                vector[len(vector) // 2] = self.factor * vector[len(vector) // 2] + self.factor * 1e-3
            return right(*arguments)

        setattr(system, self.operation, operation)


def found_by_cg(at: At) -> list[Any]:
    """Return the faults that the checks of 50 steps of CG on two ranks report after a change on rank 1."""

    def body(comm: Any) -> Any:
        kernels, box = HostKernels(1).sparse, Box.of(comm.rank, (16, 16, 16), (2, 1, 1))
        form, checks = Form(("fp64",) * 4, "fp64", "rows", symmetric=True), SolveChecks(Spans())
        problem = make_stencil(kernels, comm, box.levels(4), [form], "surface_last", weights(), Spans())
        checks.record_matrices(problem)
        top = problem.hierarchies[0].top
        system = CheckedCg(checks, kernels, comm, top.A, problem.b, partial(cycle, top), Spans())
        if comm.rank == 1:
            at.wrap(system)
        conjugate_gradients(system, max_steps=50, tolerance=0.0)
        system.ended()
        return checks.faults

    return list(run_ranks(2, body)[0])


@pytest.mark.parametrize("name", ["solution", "_r", "_Ap"])
def test_a_wrong_vector_of_cg_is_named_with_rank_and_step(name: str) -> None:
    found = found_by_cg(At("step", 6, lambda system: getattr(system, name), 1.5))
    (fault,) = [one for one in found if one.part == "residual"]
    assert (fault.step, fault.rank) == (25, 1)


def test_a_direction_that_is_not_conjugate_is_named_with_its_step() -> None:
    """z of the sixth step is wrong when p is computed from it: x and r are still consistent."""
    (fault,) = found_by_cg(At("update_direction", 6, lambda system: system._z, 1.5))
    assert (fault.part, fault.step) == ("directions", 6)


def test_a_solve_of_a_matrix_that_is_not_definite_is_no_fault() -> None:
    """The solve ends with p^T A p < 0, before x and r move along p; but if a wrong A p causes this, it is a fault."""
    outcomes = [ended_by_curvature(change) for change in (1.0, 2.0, float("nan"))]
    assert [steps for steps, _ in outcomes] == [outcomes[0][0]] * 3
    assert outcomes[0][0] > 1
    assert [[fault.part for fault in faults] for _, faults in outcomes] == [[], ["directions"], ["directions"]]


class WrongCurvature(CheckedCg):
    """CG in which a negative p^T A p is multiplied by a factor."""

    change = 1.0

    def _dot(self, x: Any, y: Any) -> float:
        product = super()._dot(x, y)
        return product if product > 0.0 or y is not self._Ap else self.change * product


def ended_by_curvature(change: float) -> tuple[int, list[Any]]:
    """Return steps and faults of CG on an indefinite matrix, with its last p^T A p multiplied by a factor."""
    kernels, comm, form = HostKernels(1).sparse, Solo(), Form(("fp64",), "fp64", "rows", symmetric=True)
    indefinite = tuple(20.0 if d == 13 else -1.0 for d in range(27))
    made = make_stencil(kernels, comm, [Box(8, 8, 8)], [form], "natural", indefinite, Spans())
    checks = SolveChecks(Spans())
    system = WrongCurvature(checks, kernels, comm, made.hierarchies[0].top.A, made.b, None, Spans())
    system.change = change
    done = conjugate_gradients(system, max_steps=50, tolerance=TOLERANCE)
    system.ended()
    return done.steps, checks.faults


@pytest.mark.parametrize(("storage", "order"), [("packed", "greedy"), ("packed", "natural"), ("rows", "natural")])
def test_any_bit_of_any_array_of_a_matrix_is_seen(storage: str, order: str) -> None:
    kernels, comm = HostKernels(1).sparse, Solo()
    form = Form(("fp64", "bf16", "fp32"), "fp32", storage, mixed=True)
    problem = make_stencil(kernels, comm, Box(8, 8, 8).levels(3), [form], order, weights(), Spans())
    checks = SolveChecks(Spans())
    checks.record_matrices(problem)
    arrays = dict(pair for k, level in enumerate(problem.levels(0)) for pair in arrays_of(level.A.A, f"level {k}"))
    wanted = {"level 0, entries", "level 1, diagonal"}
    wanted |= {f"level 2, pattern, columns, {'table' if storage == 'packed' else 'units'}"}
    if order == "natural":
        wanted |= {"level 0, coarse, copies, table", "level 1, coarse, copies, values"}
    assert wanted <= set(arrays)
    for name, array in arrays.items():
        if array.size:
            array.reshape(-1).view(np.uint8)[-1] ^= 4
            checks.begin(name)
            checks.end(comm, 7)
            assert (checks.faults[-1].part, checks.faults[-1].array, checks.faults[-1].rank) == ("matrix", name, 0)
            checks.faults.clear()


def test_bits_add_up_for_arrays_of_any_length() -> None:
    for n, kind in product((0, 1, 7, 8, 9), (np.uint8, np.uint16, np.int32, np.float64)):
        array = np.arange(n).astype(kind)
        before = bits_of(array)
        for place in range(array.nbytes):
            array.view(np.uint8)[place] ^= 128
            assert bits_of(array) != before, (n, kind, place)
            array.view(np.uint8)[place] ^= 128


@pytest.mark.parametrize("number", [float("nan"), float("inf"), None])
def test_a_residual_that_is_not_finite_is_reported(number: float | None) -> None:
    told = solve_fault_text(SolveFault("sets, solve 1", 25, "residual", None, 1, number, number))
    assert "b - A x: the residual is not finite, most on rank 1; sets, solve 1, by step 25" in told
    assert "off by 2.00, more than rounding explains (1.00)" in solve_fault_text(
        SolveFault("sets, solve 1", 25, "residual", None, 1, 2.0, 1.0)
    )


# --- runs -------------------------------------------------------------------------------------------------------

RUNS: dict[str, tuple[Any, Any]] = {"hpcg": (hpcg.run, HpcgConfig), "hpg-mxp": (hpg_mxp.run, HpgMxpConfig)}


def reported(benchmark: str, abft: bool = True) -> Any:
    """Return the result of a short run on two ranks."""
    run, config = RUNS[benchmark]
    more = {"iterations": 20, "restart": 10} if benchmark == "hpg-mxp" else {}
    told = config(nx=16, rt=0.0, quick=True, threads=1, warmup="none", abft=abft, **more)
    (result,) = run_ranks(2, lambda comm: run(told, comm))[0]
    assert not list(VALIDATOR.iter_errors(document([result])))
    return result


@pytest.mark.parametrize("benchmark", list(RUNS))
def test_checks_change_nothing_of_a_run(benchmark: str) -> None:
    plain, checked = (reported(benchmark, abft) for abft in (False, True))
    assert plain.status == checked.status == "valid"
    assert plain.validation == checked.validation
    for phase, told in plain.phases.items():
        assert (told["calls"], told["flops"], told["bytes"]) == tuple(
            checked.phases[phase][name] for name in ("calls", "flops", "bytes")
        ), phase
    known = checked.telemetry["abft"]
    assert known["checks"] > 4
    assert (known["found"], known["faults"]) == (0, [])
    assert [one["rule"] for one in checked.rules["violations"]] == [one["rule"] for one in plain.rules["violations"]]
    assert "abft" not in plain.telemetry


def test_a_problem_is_freed_before_the_next_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is planned for one problem at a time; that of the reference sweeps comes first."""
    entries, alive = list[Any](), list[list[bool]]()

    def make(*arguments: Any) -> StencilProblem:
        alive.append([known() is not None for known in entries])
        problem = make_stencil(*arguments)
        entries.append(weakref.ref(problem.hierarchies[0].top.A.A.entries))
        return problem

    for module in (hpcg, sparse):
        monkeypatch.setattr(module, "make_stencil", make)
    hpcg.run(HpcgConfig(nx=16, rt=0.0, quick=True, threads=1, warmup="none", abft=True, storage="rows"), Solo())
    assert len(alive) > 2
    assert not any(alive[-1])


@pytest.mark.parametrize("benchmark", list(RUNS))
def test_a_matrix_that_has_changed_makes_a_run_invalid(benchmark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A low bit flips on the coarsest level of rank 1 after `record_matrices`; no validation detects it."""
    right = SolveChecks.record_matrices

    def record_matrices(self: SolveChecks, problem: StencilProblem) -> None:
        right(self, problem)
        if threading.current_thread().name == "rank 1":
            problem.levels(-1)[-1].A.A.diagonal.view(np.uint8)[0] ^= 1

    monkeypatch.setattr(SolveChecks, "record_matrices", record_matrices)
    result = reported(benchmark)
    assert result.status == "invalid"
    assert not result.validation["passed"]
    assert not result.rules["admissible"]
    assert result.rules["violations"][-1]["rule"] == "abft"
    told = [one.text for one in result.warnings if one.code == "abft"]
    assert "a number changed unexpectedly: level 3, diagonal, on rank 1" in told[0]
    fault = result.telemetry["abft"]["faults"][0]
    assert (fault["part"], fault["rank"]) == ("matrix", 1)

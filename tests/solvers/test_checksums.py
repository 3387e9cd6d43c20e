"""Test that checksums of both LUs find flipped bits, correct single ones, and accept clean runs.

Run a few dozen of each kind by default; `-m exhaustive -rP` runs a thousand, and prints the results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest

from mxpeak.bench.hpl import run as hpl
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl_mxp import run as hpl_mxp
from mxpeak.bench.hpl_mxp.config import HplMxpConfig
from mxpeak.comm.grid import make_grid
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.configs.lu import BCASTS
from mxpeak.distributed.dense import DistMatrix, dist_matrix
from mxpeak.distributed.sources import GeneratedSystem
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.generators import SCALED, Generator, generator
from mxpeak.layout.grid import ProcessGrid
from mxpeak.precision import precision as format_of
from mxpeak.precision import stored_as
from mxpeak.records import Result, document
from mxpeak.solvers.abft.checksums import EVERY, Checks, checking
from mxpeak.solvers.abft.lu_faults import FaultSummary
from mxpeak.solvers.abft.mixed_checksums import MixedChecks
from mxpeak.solvers.abft.pivoted_checksums import PivotedChecks, with_checksums
from mxpeak.solvers.checkpointing import NO_CHECKPOINTS, Checkpointer, Notes
from mxpeak.solvers.lu import lu, pivoted_lu
from mxpeak.solvers.lu.panel import FactoredPanel, PanelOptions
from mxpeak.solvers.lu.row_swap import SwapOptions
from mxpeak.solvers.lu.triangular import solve_augmented
from mxpeak.solvers.residual import residual_norms
from mxpeak.spans import Spans, Step
from tests.support.result_file import VALIDATOR

#: The thousand runs of an exhaustive test, as the number of a part and the runs of each part.
THOUSAND = [pytest.param(part, 250, marks=pytest.mark.exhaustive) for part in range(2, 6)]
SHAPES = [(1, 1), (2, 1), (1, 2), (2, 2)]
PRECISIONS = ["fp64", "fp32", "tf32", "bf16", "fp16", "fp8"]
#: The generators of HPL-MxP whose LU needs no pivoting.
GENERATORS = ["sqrt-n", "ddd", "fasi-higham", "gaussian", "dominant-n", "icl"]
#: Factors c of the diagonal c·sqrt(N); below 0.58 entries grow during an LU without pivoting.
SCALES = [None, 1.0, 0.3, 0.5]
BITS = {"float64": np.uint64, "float32": np.uint32}


@dataclass(frozen=True)
class Flip:
    """A flipped bit of a number on one rank, or a new value, after a step; the place is a share of rows and columns."""

    step: int
    rank: int
    i: float
    j: float
    bit: int
    value: float | None = None

    def at(self, local: Any, rank: int) -> Callable[[Step], None]:
        """Return the function that the spans of a run call after each step."""

        def look(step: Step) -> None:
            if (step.index, rank) == (self.step, self.rank):
                place = int(self.i * local.shape[0]), int(self.j * local.shape[1])
                local.view(BITS[local.dtype.name])[place] ^= BITS[local.dtype.name](1 << self.bit)
                if self.value is not None:
                    local[place] = self.value

        return look


@dataclass(frozen=True)
class Flips:
    """Several flips in sequence."""

    all: list[Flip]

    def at(self, local: Any, rank: int) -> Callable[[Step], None]:
        """Return the function that the spans of a run call after each step."""
        looks = [flip.at(local, rank) for flip in self.all]

        def look(step: Step) -> None:
            for one in looks:
                one(step)

        return look


class After:
    """A checkpointer that records after which steps each rank would store the matrix."""

    def __init__(self, *steps: int):
        self.first_step, self.steps, self.kept = 0, steps, list[int]()
        self.notes: Notes = {}

    def is_due(self, step: int, count: int) -> bool:
        return step + 1 in self.steps

    def save(self, done: int, notes: Any) -> None:
        self.kept.append(done)


@dataclass(frozen=True)
class Case:
    """One LU: of HPL if `precision` is None, otherwise of HPL-MxP."""

    n: int
    nb: int
    shape: tuple[int, int]
    variant: int
    seed: int
    precision: str | None = None
    generator: str = "hpl"
    scale: float | None = None
    engines: bool = True

    @property
    def steps(self) -> int:
        return -(-self.n // self.nb)


def factored(
    case: Case, flip: Flip | Flips | None = None, checkpointer: Checkpointer = NO_CHECKPOINTS
) -> tuple[FaultSummary, float]:
    """Return the results of the checks, and the error relative to rounding: HPL's residual over 16, or row by row
    ||A - LU|| over (2 u_low + N u)·|||L||U|||.
    """

    def body(comm: Any) -> Any:
        return (_mixed if case.precision else _pivoted)(case, flip, checkpointer, comm)

    found = run_ranks(case.shape[0] * case.shape[1], body)
    return found[0][0], _lu_error(case, [part for _, part in found]) if case.precision else found[0][1]


def _pivoted(case: Case, flip: Flip | Flips | None, checkpointer: Checkpointer, comm: Any) -> Any:
    kernels, spans = HostKernels(1, poison=True), Spans()
    grid = make_grid(ProcessGrid(*case.shape), comm)
    assert grid is not None
    A, wide = with_checksums(grid, case.n, case.n + 1, case.nb, kernels)
    entries = generator("hpl", case.n, seed=case.seed).entries
    kernels.generate(A.local, A.rows, A.cols, entries)
    checks = PivotedChecks(A, wide, kernels, spans, checkpointer)
    panel = PanelOptions(bcast=BCASTS[case.seed % len(BCASTS)])
    options = [
        pivoted_lu.PivotedLuOptions(panel, lookahead=0),
        pivoted_lu.PivotedLuOptions(panel),
        pivoted_lu.PivotedLuOptions(panel, split=0.5, swap=SwapOptions("long")),
    ][case.variant]
    with checking(checks):
        spans.look = flip.at(wide.local, comm.rank) if flip else None
        pivoted_lu.factorize(wide, options, kernels, spans, None, checks)
    x = solve_augmented(A, kernels)
    kernels.generate(A.local, A.rows, A.cols, entries)
    return checks.checked(), residual_norms(A, x, kernels).scaled(case.n, 2.0**-53) / 16.0


def _mixed(case: Case, flip: Flip | Flips | None, checkpointer: Checkpointer, comm: Any) -> Any:
    low = case.precision or ""
    kernels, spans = HostKernels(1, poison=True, engines=None if case.engines else ()), Spans()
    grid = make_grid(ProcessGrid(*case.shape), comm)
    assert grid is not None
    A = dist_matrix(grid, case.n, case.n, case.nb, kernels, stored_as(low))
    system = GeneratedSystem(grid, case.n, case.nb, _made(case), kernels)
    system.store(A)
    checks = MixedChecks(A, system, low, kernels, spans, checkpointer)
    options = lu.MixedLuOptions(low, BCASTS[case.seed % len(BCASTS)], min(case.variant, 1))
    with checking(checks):
        spans.look = flip.at(A.local, comm.rank) if flip else None
        lu.factorize(A, options, kernels, spans, None, checks)
    factors, checked = np.array(A.local), checks.checked()
    system.store(A)
    rows = [A.rows.to_global(i) for i in range(A.rows.local_size)]
    return checked, (rows, [A.cols.to_global(j) for j in range(A.cols.local_size)], factors, np.array(A.local))


def _made(case: Case) -> Generator:
    """Return the generator; `scale` is c of c·sqrt(N), which is converted for ddd."""
    scale = case.scale
    if scale is not None and case.generator == "ddd":
        scale = min(2.0 * scale / case.n**0.5, 0.99)
    return generator(case.generator, case.n, seed=case.seed, scale=scale)


def _lu_error(case: Case, parts: list[Any]) -> float:
    low, n = case.precision or "", case.n
    F, A = np.zeros((n, n)), np.zeros((n, n))
    with np.errstate(invalid="ignore"):
        for rows, cols, factors, entries in parts:
            F[np.ix_(rows, cols)], A[np.ix_(rows, cols)] = factors, entries
    L, U = np.tril(F, -1) + np.eye(n), np.triu(F)
    with np.errstate(all="ignore"):
        error = np.linalg.norm(A - L @ U, axis=1) / np.linalg.norm(np.abs(L) @ np.abs(U), axis=1)
    u_low = 0.0 if low in ("fp64", "fp32") else format_of(low).u
    return float(np.max(error)) / (2.0 * u_low + n * format_of(stored_as(low)).u)


def drawn(rng: Any, pivoted: bool, least: int = 1) -> Case:
    """Return a random case."""
    n = int(rng.integers(least, 300))
    case = Case(
        n, int(rng.choice([8, 16, 32])), SHAPES[int(rng.integers(4))], int(rng.integers(3)), int(rng.integers(999))
    )
    if pivoted:
        return case
    low, name, nb = str(rng.choice(PRECISIONS)), str(rng.choice(GENERATORS)), int(rng.choice([8, 16, 32, 96, 128]))
    scales = SCALES if low != "fp8" else SCALES[:2]  # whose range is too small for growth
    scale = scales[int(rng.integers(len(scales)))] if name in SCALED else None
    return Case(n, nb, case.shape, case.variant, case.seed, low, name, scale, bool(rng.integers(2)))


@pytest.mark.parametrize("benchmark", ["hpl", "hpl-mxp"])
@pytest.mark.parametrize(("part", "runs"), [(0, 6), (1, 6), *THOUSAND])
def test_clean_runs_raise_no_alarm(benchmark: str, part: int, runs: int) -> None:
    rng = np.random.default_rng([part, benchmark == "hpl"])
    for _ in range(runs):
        case = drawn(rng, benchmark == "hpl")
        checked, _ = factored(case)
        assert not checked.faults, case
        assert checked.checks == 1 + (case.steps - 1) // EVERY, case


@pytest.mark.parametrize("name", ["sqrt-n", "hpl"])
@pytest.mark.parametrize("low", ["fp32", "bf16"])
def test_growth_raises_no_alarm(low: str, name: str) -> None:
    """Without pivoting: terms of an update are much larger than their sum after a small pivot."""
    for seed, nb in product(range(8), (32, 128)):
        checked, _ = factored(Case(300, nb, (1, 1), 0, seed, low, name, None if name == "hpl" else 0.4))
        assert not checked.faults, (seed, nb)


def test_equal_entries_whose_operands_err_alike_raise_no_alarm() -> None:
    checked, _ = factored(Case(148, 96, (1, 1), 0, 100, "bf16", "fasi-higham"))
    assert not checked.faults


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")  # of ranks
@pytest.mark.parametrize("benchmark", ["hpl", "hpl-mxp"])
@pytest.mark.parametrize(("part", "runs"), [(0, 8), (1, 8), *THOUSAND])
def test_flips_that_change_the_result_beyond_rounding_are_found(benchmark: str, part: int, runs: int) -> None:
    """For HPL, flips count if the residual fails; for HPL-MxP, if a row of A - LU exceeds rounding four times."""
    rng = np.random.default_rng([part, benchmark == "hpl", 7])
    harmful, missed, wrongly_mended = 0, [], []
    for _ in range(runs):
        case = drawn(rng, benchmark == "hpl", least=129)  # all ranks have a part of it
        bits = 32 if stored_as(case.precision or "fp64") == "fp32" else 64
        ranks = case.shape[0] * case.shape[1]
        flip = Flip(
            int(rng.integers(1, case.steps)),
            int(rng.integers(ranks)),
            *rng.random(2),
            int(rng.integers(bits // 2, bits)),
        )
        checked, error = factored(case, flip)
        if not error < (1.0 if case.precision is None else 4.0):
            harmful += 1
            missed += [] if checked.faults else [(case, flip)]
            wrongly_mended += [(case, flip)] if checked.faults and checked.passed else []
    print(f"{benchmark}: {runs} flips, {harmful} beyond rounding, {len(missed)} of them missed,")
    print(f"and {len(wrongly_mended)} wrongly mended")
    assert harmful >= runs // 8
    assert len(missed) <= harmful // 100
    assert len(wrongly_mended) <= harmful // 100


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("low", [None, "fp32", "bf16"])
def test_one_wrong_entry_is_located_and_corrected(low: str | None, shape: tuple[int, int]) -> None:
    """A high bit of an entry in rank 0's last row flips in the last step before a check, so no step has used it."""
    case = Case(192, 8, shape, 1, 100, low, "sqrt-n" if low else "hpl")
    bit = {None: 61, "fp32": 27, "bf16": 30}[low]
    checked, error = factored(case, Flip(EVERY - 1, 0, 0.99, 0.9, bit))
    (fault,) = checked.faults
    assert fault.corrected, fault
    assert (fault.step, fault.rows, fault.part) == (EVERY, 1, "matrix")
    assert fault.column is not None
    assert fault.process[0] == 0
    assert error < (1.0 if low is None else 4.0)


@pytest.mark.parametrize("shape", [(1, 2), (2, 2)], ids=str)
@pytest.mark.parametrize("low", [None, "fp32"])
def test_a_wrong_number_in_a_received_panel_is_found(
    low: str | None, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It also changes one rank's carried sums: either all ranks of a process row correct the entry, or none."""
    whose: Any = lu.Panels if low else FactoredPanel
    right = whose.wait

    def wait(self: Any, *arguments: Any) -> None:
        right(self, *arguments)
        if (self.step.k, self._A.grid.p, self._A.grid.q) == (4, 0, 1):
            L = self.L_row if low else self.L21_row
            L[L.shape[0] - 1, 3] += 0.5

    monkeypatch.setattr(whose, "wait", wait)
    checked, error = factored(Case(192, 8, shape, 0, 100, low, "sqrt-n" if low else "hpl"))
    assert not error < 1.0
    assert not checked.passed
    assert {fault.step for fault in checked.faults if not fault.corrected} >= {EVERY}


@pytest.mark.parametrize("name", ["dominant-n", "icl"])
def test_a_wrong_number_of_a_finished_l_is_found(name: str) -> None:
    """L of these matrices is about 1/N, and sums of A about N: they do not show the typical size of L."""
    checked, error = factored(Case(192, 8, (1, 2), 1, 100, "fp32", name), Flip(20, 0, 0.9, 0.3, 20))
    assert error > 4.0
    assert checked.detected
    assert not checked.passed


def test_an_uncorrectable_fault_is_reported_after_any_number_of_corrected_ones() -> None:
    mended = [Flip(step, 0, 0.99, 0.95, 61) for step in range(EVERY - 1, 9 * EVERY, EVERY)]
    checked, error = factored(Case(120, 1, (1, 1), 0, 100), Flips([*mended, Flip(9 * EVERY + 2, 0, 0.99, 0.81, 61)]))
    assert error > 1.0
    assert checked.corrected == len(mended) == 9
    assert checked.detected > 9
    assert not checked.passed
    assert not all(fault.corrected for fault in checked.faults)


@pytest.mark.parametrize("low", [None, "fp32"])
def test_nothing_is_kept_once_a_fault_could_not_be_mended(low: str | None) -> None:
    case = Case(192, 8, (1, 2), 1, 100, low, "sqrt-n" if low else "hpl")
    bit = 27 if low else 61
    for flip, kept in ((Flip(EVERY - 1, 0, 0.99, 0.9, bit), [EVERY, EVERY, 16, 16]), (Flip(1, 0, 0.99, 0.2, bit), [])):
        checkpointer = After(EVERY, 16)
        checked, _ = factored(case, flip, checkpointer)
        assert checked.detected
        assert sorted(checkpointer.kept) == kept, flip


class Copy(After):
    """A checkpointer that copies the matrix after some steps, and gives the copy to a run that continues."""

    A: DistMatrix
    copy: Any

    def save(self, done: int, notes: Any) -> None:
        self.first_step, self.notes, self.copy = done, notes, np.array(self.A.local)

    def is_due(self, step: int, count: int) -> bool:
        return not self.first_step and super().is_due(step, count)


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (3, 2)], ids=str)
def test_a_run_that_continues_from_the_middle_is_checked_from_there(shape: tuple[int, int]) -> None:
    """The step is between two checks; last blocks are ragged, and some ranks have no rows or columns."""
    n, nb, begin = 187, 8, EVERY + 3

    def body(comm: Any) -> list[FaultSummary]:
        kernels, options, results = HostKernels(1, poison=True), lu.MixedLuOptions("bf16"), []
        grid = make_grid(ProcessGrid(*shape), comm)
        assert grid is not None
        A = dist_matrix(grid, n, n, nb, kernels, "fp32")
        system = GeneratedSystem(grid, n, nb, generator("sqrt-n", n, seed=100, scale=0.625, condition=1000), kernels)
        system.store(A)
        checkpointer = Copy(begin)
        checkpointer.A = A
        lu.factorize(A, options, kernels, Spans(), None, checkpointer)
        for flip in (None, Flip(2 * EVERY - 1, 0, 0.99, 0.95, 0, 1000.0)):
            A.local[:] = checkpointer.copy
            spans = Spans()
            checks = MixedChecks(A, system, "bf16", kernels, spans, checkpointer)
            with checking(checks):
                spans.look = flip.at(A.local, comm.rank) if flip else None
                lu.factorize(A, options, kernels, spans, None, checks)
            results.append(checks.checked())
        return results

    clean, flipped = run_ranks(shape[0] * shape[1], body)[0]
    assert (clean.checks, clean.detected) == (2, 0)
    assert {fault.step for fault in flipped.faults} == {2 * EVERY}
    assert flipped.corrected == flipped.detected == 1


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_carried_sum_that_is_not_finite_is_no_fault_of_the_matrix(value: float) -> None:
    """The changed value is in the first column behind the matrix, on one of two ranks."""
    checked, error = factored(Case(192, 8, (1, 2), 1, 100), Flip(4, 1, 0.99, 0.985, 0, value))
    assert {fault.part for fault in checked.faults} == {"checksum"}
    assert checked.passed
    assert error < 1.0


def reported(benchmark: str, flip: Flip | None, monkeypatch: pytest.MonkeyPatch) -> Result:
    """Return the result of a run on two ranks."""
    right = Checks.begin

    def begin(self: Checks) -> None:
        right(self)
        if flip is not None:
            self.spans.look = flip.at(self.A.local, self.A.grid.all.rank)

    monkeypatch.setattr(Checks, "begin", begin)
    run, config = {"hpl": (hpl.run, HplConfig), "hpl-mxp": (hpl_mxp.run, HplMxpConfig)}[benchmark]
    low = {"precision": ("fp32",)} if benchmark == "hpl-mxp" else {}
    made: Any = config(n=(192,), nb=(8,), P=(1,), Q=(2,), warmup="none", abft=True, **low)
    (result,) = run_ranks(2, lambda comm: run(made, comm))[0]
    assert not list(VALIDATOR.iter_errors(document([result])))
    return result


@pytest.mark.parametrize("benchmark", ["hpl", "hpl-mxp"])
def test_a_run_says_what_its_checks_found(benchmark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result = reported(benchmark, None, monkeypatch)
    assert result.status == "valid"
    known = result.telemetry["abft"]
    assert (known["checks"], known["found"], known["faults"]) == (3, 0, [])
    assert known["seconds"] > 0
    assert "keep" not in result.phases, "nothing was kept"


@pytest.mark.parametrize("benchmark", ["hpl", "hpl-mxp"])
def test_a_wrong_entry_that_has_spread_makes_a_run_invalid(benchmark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry is in a column that is eliminated before the next check."""
    bit = 29 if benchmark == "hpl-mxp" else 61
    result = reported(benchmark, Flip(1, 0, 0.99, 0.2, bit), monkeypatch)
    assert result.status == "invalid"
    assert not result.validation["passed"]
    assert "could not be corrected" in result.validation["outcome"]
    assert "a number changed unexpectedly: " in result.validation["outcome"]
    known = result.telemetry["abft"]
    assert known["found"] > known["corrected"]
    assert known["faults"][0]["step"] == EVERY

"""Test which options HPG-MxP's rules refuse or label, and which formats and storages a run uses."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from mxpeak.bench.hpcg.config import HpcgConfig
from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.bench.hpg_mxp.result import Validated, Validation
from mxpeak.bench.hpg_mxp.rules import between, check, foreseen, forms, storages
from mxpeak.bench.sparse import memory_violations, order_of, smoother_of
from mxpeak.distributed.stencil import Form
from mxpeak.errors import Outcome, UsageError
from mxpeak.solvers.krylov import Solve

#: Settings that break no rule except the one about memory, which depends on the machine.
GOOD: dict[str, Any] = {"nx": 104, "rt": 1800.0, "storage": "sell"}


def broken(**values: Any) -> list[str]:
    config = HpgMxpConfig(**{**GOOD, **values})
    return [one.rule for one in foreseen(config, config.rt or 0.0, storages(config)[0])]


# --- refused options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"nx": 100},
            (
                "--nx 100 is not a multiple of 8, as 4 levels of multigrid need (100 / 8 leaves a remainder of "
                "4); use --nx 96 or --nx 104"
            ),
        ),
        ({"nx": 8}, "--nx 8 is less than 16, the smallest value that the rules allow; use --nx 16, or --mode explore"),
        ({"npx": 3}, "--npx 3 does not divide the number of ranks: 2 / 3 leaves a remainder of 2"),
        (
            {"precision": "fp8"},
            "--mode official needs formats of 16 bits or more, but fp8 has 8 bits; use --mode explore",
        ),
        ({"mg_precision": ("fp32", "fp16", "fp16", "fp8")}, "--mode official needs formats of 16 bits or more"),
        (
            {"mg_precision": ("fp32", "fp16")},
            "--mg-precision fp32,fp16 has 2 formats for 4 levels; use one for all levels, or 4",
        ),
        (
            {"value_tolerance": 0.01},
            "--value-tolerance 0.01 allows inexact stored values, but --mode official does not; use --mode explore",
        ),
    ],
)
def test_what_cannot_be_run_officially_is_refused_on_every_rank_alike(values: dict[str, Any], says: str) -> None:
    config = HpgMxpConfig(**{"nx": 16, **values})
    for rank in range(2):
        with pytest.raises(UsageError, match=f"^{re.escape(says)}"):
            check(config, rank, 2)


@pytest.mark.parametrize(
    "values",
    [{"nx": 8}, {"precision": "fp8"}, {"mg_precision": ("fp8",) * 4}, {"value_tolerance": 0.1}, {"nx": 16, "nz": 160}],
)
def test_explore_takes_what_the_rules_do_not(values: dict[str, Any]) -> None:
    check(HpgMxpConfig(**{"nx": 16, "mode": "explore", **values}), 0, 1)


def test_too_many_formats_are_a_mistake_in_any_mode() -> None:
    for mode in ("official", "explore"):
        with pytest.raises(UsageError, match="has 3 formats for 4 levels"):
            check(HpgMxpConfig(nx=16, mode=mode, mg_precision=("fp32",) * 3), 0, 1)


# --- formats of a run -------------------------------------------------------------------------------------------


def test_the_figure_is_of_32_bit_columns_by_the_rules_and_of_short_ones_beyond_them() -> None:
    assert storages(HpgMxpConfig()) == ("rows", "packed")
    assert storages(HpgMxpConfig(kernels="torch")) == ("sell", "packed")
    assert storages(HpgMxpConfig(mode="explore")) == ("packed", "rows")
    assert storages(HpgMxpConfig(quick=True)) == ("rows",)
    for name in ("rows", "ell", "sell", "packed"):
        assert storages(HpgMxpConfig(storage=name)) == (name,)
        assert storages(HpgMxpConfig(storage=name, mode="explore")) == (name,)


def test_the_natural_order_goes_with_rows_and_colours_with_chunks_unless_asked_otherwise() -> None:
    kinds = ("rows", "sell", "packed", "ell")
    wanted = {
        "auto": ("surface_last", "greedy", "greedy", "greedy"),
        "natural": ("surface_last", "surface_last", "surface_last", "levels"),
        "reference": ("natural", "natural", "natural", "levels"),
        "coloured": ("greedy", "greedy", "greedy", "greedy"),
    }
    for smoother, orders in wanted.items():
        config = HpgMxpConfig(smoother=smoother)
        assert tuple(order_of(config, storage) for storage in kinds) == orders
        names = tuple(smoother_of(config, storage) for storage in kinds)
        natural = "reference" if smoother == "reference" else "natural"
        assert names == tuple("coloured" if order == "greedy" else natural for order in orders)


def test_sweeps_both_ways_have_the_natural_order_when_packed_but_on_devices_its_levels() -> None:
    assert order_of(HpcgConfig(), "packed") == "surface_last"
    assert order_of(HpcgConfig(), "sell") == "greedy"
    assert order_of(HpcgConfig(kernels="torch"), "packed") == "greedy"
    assert order_of(HpcgConfig(kernels="torch", smoother="natural"), "packed") == "levels"


def test_rows_are_refused_where_kernels_do_not_have_them() -> None:
    with pytest.raises(UsageError, match="use --storage sell, or --kernels host"):
        check(HpgMxpConfig(storage="rows", kernels="torch", nx=16), 0, 1)
    check(HpgMxpConfig(storage="rows", kernels="reference", nx=16), 0, 1)


def test_double_is_double_whatever_is_asked_of_the_mixed_solver() -> None:
    config = HpgMxpConfig(precision="fp16", krylov_precision="fp32", mode="explore", value_tolerance=0.5)
    double, mixed = forms(config, "ell")
    assert double == Form(("fp64",) * 4, "fp64", "ell")
    assert mixed == Form(("fp16",) * 4, "fp32", "ell", mixed=True, tolerance=0.5)


@pytest.mark.parametrize("basis", ["bf16", "fp16"])
def test_a_basis_in_16_bits_is_labelled(basis: str) -> None:
    config = HpgMxpConfig(krylov_precision=basis, nx=16)
    double, mixed = forms(config, "sell")
    assert (double.basis_of("fp64"), mixed.basis_of("bf16"), mixed.vectors_of("bf16")) == ("fp64", basis, "fp32")
    assert mixed.basis_of("fp64") == "fp64", "of values that need fp64 vectors"
    broken = [violation.rule for violation in foreseen(config, 1800.0, "sell")]
    assert broken == ["vectors"]
    assert not foreseen(HpgMxpConfig(nx=16), 1800.0, "sell")
    assert between(config, "sell", [{"value_precision": "bf16"}] * 4) == {}
    with pytest.raises(UsageError, match="use --precision fp32, or --krylov-precision fp64"):
        check(HpgMxpConfig(krylov_precision=basis, precision="fp64", nx=16), 0, 1)


@pytest.mark.parametrize("mg_vectors", ["bf16", "fp16"])
def test_multigrid_vectors_in_16_bits_are_labelled(mg_vectors: str) -> None:
    config = HpgMxpConfig(mg_vectors=mg_vectors, nx=16)
    double, mixed = forms(config, "sell")
    assert (double.vectors_of("fp64"), mixed.vectors_of("bf16"), mixed.vectors_of("fp64")) == (
        "fp64",
        mg_vectors,
        "fp64",
    )
    assert (double.basis_of("fp64"), mixed.basis_of("bf16")) == ("fp64", "fp32")
    assert [violation.rule for violation in foreseen(config, 1800.0, "sell")] == ["vectors"]
    assert foreseen(replace(config, run_type="double"), 1800.0, "sell")[0].rule == "run type"
    assert between(config, "sell", [{"value_precision": "bf16"}] * 4) == {}
    assert storages(config) == ("sell", "packed")
    assert [order_of(config, storage) for storage in storages(config)] == ["greedy", "greedy"]
    check(config, 0, 1)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"precision": "fp64"}, "use fp32 for both"),
        ({"mg_precision": ("fp32", "fp32", "fp32", "fp64")}, "use fp32 for both"),
        ({"krylov_precision": "fp64"}, "use fp32 for both"),
        ({"smoother": "natural"}, "does not support --smoother natural on CPUs; use --smoother coloured"),
        ({"storage": "rows"}, "does not support --storage rows; use --storage sell"),
        ({"fused_restriction": "off"}, "does not support --fused-restriction off"),
        ({"abft": True}, "does not support --abft"),
        ({"matrix": "A.mtx"}, "use --mg-vectors bf16"),
    ],
)
def test_multigrid_vectors_in_16_bits_refuse_what_they_cannot_do(values: dict[str, Any], text: str) -> None:
    nx = {} if "matrix" in values else {"nx": 16}
    with pytest.raises(UsageError, match=text):
        check(HpgMxpConfig(mg_vectors="fp16", **nx, **values), 0, 1)
    check(HpgMxpConfig(**nx, **values), 0, 1)


def test_multigrid_vectors_in_16_bits_need_the_mixed_solver() -> None:
    check(HpgMxpConfig(mg_vectors="fp16", nx=16, run_type="mixed"), 0, 1)
    with pytest.raises(UsageError, match="--mg-vectors fp16 applies to the mixed solver"):
        check(HpgMxpConfig(mg_vectors="fp16", nx=16, run_type="double"), 0, 1)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, ("bf16",) * 4),
        ({"mode": "explore"}, ("fp8",) * 4),
        ({"precision": "fp32"}, ("fp32",) * 4),
        ({"precision": "fp32", "mg_precision": ("fp16",)}, ("fp16",) * 4),
        ({"mg_precision": ("fp32", "auto", "bf16", "fp64")}, ("fp32", "bf16", "bf16", "fp64")),
        ({"mg_precision": ("fp32", "auto", "bf16", "fp64"), "mode": "explore"}, ("fp32", "fp8", "bf16", "fp64")),
    ],
)
def test_each_level_has_the_format_asked_for_or_the_narrowest_of_its_mode(
    values: dict[str, Any], wanted: tuple[str, ...]
) -> None:
    assert forms(HpgMxpConfig(**values), "sell")[1].values == wanted


# --- labels -----------------------------------------------------------------------------------------------------


def test_a_run_by_the_rules_breaks_none() -> None:
    assert broken() == []
    assert broken(storage="ell", rt=1800.5, threshold=1e-10, nonsymmetric=True, precision="fp16") == []


@pytest.mark.parametrize(
    ("values", "rules"),
    [
        ({"rt": 1799.0}, ["time"]),
        ({"storage": "packed"}, ["storage"]),
        ({"mode": "explore"}, ["mode"]),
        ({"mode": "explore", "storage": "auto"}, ["mode", "storage"]),
        ({"threshold": 1e-8}, ["validation"]),
        ({"matrix": "west0479.mtx"}, ["matrix"]),
        ({"rt": 60.0, "threshold": 1e-6, "storage": "packed"}, ["storage", "time", "validation"]),
    ],
)
def test_every_rule_that_a_run_breaks_is_named(values: dict[str, Any], rules: list[str]) -> None:
    assert broken(**values) == rules


def test_a_rule_says_what_was_found_and_what_it_asks_for() -> None:
    (violation,) = foreseen(HpgMxpConfig(**GOOD), 60.0, "sell")
    assert violation.text == "--rt is 60 s, but the rules require 1800 s"
    (violation,) = foreseen(HpgMxpConfig(**{**GOOD, "threshold": 1e-6}), 1800.0, "sell")
    assert violation.text == "--threshold 1e-06 is above 1e-9"


@pytest.mark.parametrize(("used", "rules"), [(63, ["memory"]), (64, []), (200, [])])
def test_a_quarter_of_all_nodes_memory_is_asked_for(used: int, rules: list[str]) -> None:
    machine = {"memory_total_bytes": 64 * 2**30, "nodes": 4}
    assert [one.rule for one in memory_violations(used * 2**30, machine)] == rules


def test_the_rule_about_memory_shows_its_arithmetic() -> None:
    (one,) = memory_violations(2**30, {"memory_total_bytes": 64 * 2**30, "nodes": 1})
    assert one.text == "the problem takes 1 GiB, 1.56 % of 64 GiB; the rules require 25 %"


def test_where_gpus_compute_a_quarter_of_theirs_is_asked_for() -> None:
    machine = {"memory_total_bytes": 2**40, "nodes": 2, "device_memory_bytes": 64 * 2**30, "device_count": 16}
    assert memory_violations(256 * 2**30, machine) == []
    (one,) = memory_violations(255 * 2**30, machine)
    assert "24.9 % of 1024 GiB" in one.text


def test_without_the_memory_of_the_machine_its_rule_is_not_checked() -> None:
    assert memory_violations(2**30, {"memory_total_bytes": None, "nodes": 1}) == []
    assert memory_violations(2**30, {"nodes": 1}) == []


# --- the penalty ------------------------------------------------------------------------------------------------


def validation(double: int, mixed: int) -> Validation:
    both = (Validated(Solve(outcome=Outcome.SOLVED, steps=steps), 0.0) for steps in (double, mixed))
    return Validation(*both, 1e-9, "standard", 1)


def passed(kind: str, double: Outcome, mixed: Outcome) -> bool:
    both = (Validated(Solve(outcome=outcome, steps=10), 0.0) for outcome in (double, mixed))
    return Validation(*both, 1e-9, kind, 1).passed


@pytest.mark.parametrize(
    ("double", "mixed", "penalty"),
    [(2305, 2382, 2305 / 2382), (30, 30, 1.0), (31, 30, 1.0), (16, 22, 16 / 22), (0, 0, 1.0), (5, 0, 1.0)],
)
def test_more_steps_cost_their_share_of_the_figure_and_fewer_gain_nothing(
    double: int, mixed: int, penalty: float
) -> None:
    assert validation(double, mixed).penalty == penalty


@pytest.mark.parametrize("kind", ["standard", "fullscale"])
def test_the_mixed_solver_has_to_arrive(kind: str) -> None:
    assert passed(kind, Outcome.SOLVED, Outcome.SOLVED)
    assert not passed(kind, Outcome.SOLVED, Outcome.UNREACHED)
    assert not passed(kind, Outcome.SOLVED, Outcome.NOT_FINITE)


def test_the_double_solver_has_to_arrive_but_at_full_scale_it_sets_the_aim() -> None:
    assert not passed("standard", Outcome.UNREACHED, Outcome.SOLVED)
    assert passed("fullscale", Outcome.UNREACHED, Outcome.SOLVED)
    assert not passed("standard", Outcome.NOT_FINITE, Outcome.SOLVED)
    assert not passed("fullscale", Outcome.NOT_FINITE, Outcome.SOLVED), "what is not finite is no aim"

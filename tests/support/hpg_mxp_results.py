"""Run HPG-MxP on thread ranks, and check each result for consistency."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from mxpeak.bench.hpg_mxp import run as bench
from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.comm.transports.solo import Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.layout.stencil import LEVELS, Box
from mxpeak.perf.sparse_counts import HPG_MXP_MOTIFS, hpg_mxp_flops, memory_bytes, stencil_levels
from mxpeak.precision import PRECISIONS
from mxpeak.records import Result, document
from tests.support.hpg_mxp_solves import error_bound, global_matrix
from tests.support.result_file import VALIDATOR
from tests.support.roundoff import U


def measured(ranks: int = 1, **values: Any) -> Result:
    """Run a configuration, with several ranks on threads, and return the result; boxes have 8 points per side."""
    small = {"nx": 8, "mode": "explore", "rt": 0.0, "iterations": 7, "storage": "sell", "threads": 1}
    config = HpgMxpConfig(**{**small, **values})
    found = [bench.run(config, Solo())] if ranks == 1 else run_ranks(ranks, lambda comm: bench.run(config, comm))
    assert all(results[0].problem == found[0][0].problem for results in found), "all ranks hear of it"
    (result,) = found[0]
    return result  # type: ignore[no-any-return]


def cycles_of(iterations: int, restart: int) -> list[int]:
    """Return the cycles of a solve that uses all iterations."""
    return [restart] * (iterations // restart) + [iterations % restart] * (iterations % restart > 0)


def check_result(r: Result) -> None:
    """Check that a result agrees with its sizes, steps and times, and that its file follows the schema."""
    VALIDATOR.validate(json.loads(json.dumps(document([r]), allow_nan=False)))
    p, figures, check = r.problem, r.result, r.validation
    box = Box(p["nx"], p["ny"], p["nz"], p["npx"], p["npy"], p["npz"])
    check_problem(p, box)
    check_validation(r, box)
    cycles = cycles_of(p["max_iterations"], p["restart"])
    narrow = "mg_vectors" in p["precision"]
    check_rates(figures, stencil_levels(box), cycles, check["penalty"], narrow=narrow)
    assert figures["solves"] == len(r.samples_s)
    assert figures["time_s"] == sum(r.samples_s)
    assert figures["iterations"] == p["max_iterations"] * figures["solves"]
    check_phases(r.phases, box, cycles, figures["solves"], narrow=narrow)
    check_phases(figures["double_phases"], box, cycles, figures["double_solves"])
    for other in figures["beside"]:
        both = {"time_s": other["time_s"], "solves": other["solves"], "double_time_s": math.nan}
        check_rates({**other, **both}, stencil_levels(box), cycles, other["penalty"], narrow=narrow)
        check_phases(other["phases"], box, cycles, other["solves"], narrow=narrow)


def check_problem(p: dict[str, Any], box: Box) -> None:
    """Check the sizes by their formulas, and the memory."""
    assert (p["rows"], p["nnz"]) == (box.global_rows, math.prod(3 * g - 2 for g in box.global_shape))
    assert len(p["levels"]) == LEVELS
    for k, level in enumerate(p["levels"]):
        sides = [g >> k for g in box.global_shape]
        assert (level["nx"], level["ny"], level["nz"]) == tuple(n >> k for n in box.shape)
        assert level["rows"] == math.prod(sides)
        assert level["nnz"] == math.prod(3 * g - 2 for g in sides)
        assert 0 <= level["index_bytes"] < level["bytes"]
        assert level["storage"] == p["storage"]
        assert level["vector_precision"] == (
            "fp64"
            if level["value_precision"] == "fp64"
            else p["precision"].get("mg_vectors", p["precision"]["vectors"])
        )
    memory = p["memory_bytes"]
    # All ranks' memory: the matrices, which are at least as large as rank 0's, and a basis of restart + 1 vectors.
    width = PRECISIONS[p["precision"].get("basis", p["precision"]["vectors"])].bytes
    width += 2 * ("mg_vectors" in p["precision"])  # the corrections
    least = (p["restart"] + 1) * width * box.global_rows + sum(level["bytes"] for level in p["levels"])
    assert memory["mixed"] >= least
    assert memory["double"] >= (p["restart"] + 1) * 8 * box.global_rows + 8 * p["nnz"]
    assert memory["setup"] == 12 * p["nnz"] + 8 * p["rows"]
    assert memory["reference_formula"] == sum(memory_bytes(box, p["restart"]))
    side = 8 * math.floor((p["nx"] * p["ny"] * p["nz"] * memory["mixed"] / memory["double"]) ** (1 / 3) / 8)
    assert p["larger_mesh"] == (side or None)
    assert p["precision"]["mg"] == [level["value_precision"] for level in p["levels"]]
    assert p["peak_rss_bytes"] > 10**7
    assert p["setup_s"] >= p["optimize_s"] > 0.0


def check_validation(r: Result, box: Box) -> None:
    """Check that both solvers reached the reported residuals."""
    p, check = r.problem, r.validation
    assert r.passed
    assert check["passed"]
    assert check["outcome"] == {"double": "solved", "mixed": "solved"}
    assert check["residual"] == check["mixed_residual"] <= check["threshold"]
    assert check["double_residual"] <= check["threshold"]
    assert check["penalty"] == min(1.0, check["double_iterations"] / check["mixed_iterations"])
    assert check["iterations"] == check["mixed_iterations"]
    for name in ("double", "mixed"):
        assert check["history"][name][0] == 1.0
        assert check["history"][name][-1] == check[f"{name}_residual"]
    if check["ranks"] == box.ranks:
        b = global_matrix(box.global_shape, p["nonsymmetric"]).sum(1)
        norm = pytest.approx(float(np.linalg.norm(b)), rel=box.global_rows * U)
        assert (check["double_initial"], check["mixed_initial"]) == (norm, norm)
        assert check["max_error"] <= error_bound(box.global_shape, check["residual"], p["nonsymmetric"])


def check_rates(figures: dict[str, Any], levels: Any, cycles: list[int], penalty: float, *, narrow: bool) -> None:
    """Check the rates: flops by both counts, times the penalty, per time; `narrow` updates need no multigrid call."""
    for counting, suffix in (("reference", ""), ("ornl", "_ornl")):
        flops = hpg_mxp_flops(levels, cycles, counting)["total"]
        mixed = hpg_mxp_flops(levels, cycles, counting, flexible=narrow)["total"]
        raw = mixed * figures["solves"] / figures["time_s"]
        assert figures[f"raw_rate_flops{suffix}"] == pytest.approx(raw, rel=4 * U)
        assert figures[f"rate_flops_{counting}"] == pytest.approx(raw * penalty, rel=4 * U)
        if not math.isnan(figures["double_time_s"]):
            double = flops * figures["double_solves"] / figures["double_time_s"]
            assert figures[f"double_rate_flops{suffix}"] == pytest.approx(double, rel=4 * U)
    assert figures["rate_flops"] == figures["rate_flops_reference"]
    assert figures["speedup"] == figures["rate_flops"] / figures["double_rate_flops"]
    assert set(figures["speedup_by_motif"]) == {*HPG_MXP_MOTIFS, "total"}
    if "flops" in figures:
        assert figures["flops"] == hpg_mxp_flops(levels, cycles * figures["solves"], flexible=narrow)
        assert figures["double_flops"] == hpg_mxp_flops(levels, cycles * figures["double_solves"])


def check_phases(phases: dict[str, Any], box: Box, cycles: list[int], solves: int, *, narrow: bool = False) -> None:
    """Check the number of calls and the flops of each motif on every rank."""
    steps, restarts = sum(cycles), len(cycles)
    mg_calls = steps if narrow else steps + restarts
    calls = {
        "spmv": steps + restarts + 1,
        "ortho": steps,
        "gs": (2 * LEVELS - 1) * mg_calls,
        "restriction": (LEVELS - 1) * mg_calls,
        "prolongation": (LEVELS - 1) * mg_calls,
        "update": 4 * restarts + 1 + (2 * steps if narrow else 0),  # q is rounded, and M^-1 q is stored
    }
    assert set(HPG_MXP_MOTIFS) <= set(phases)
    assert ("halo" in phases) == (box.ranks > 1)
    for motif, count in calls.items():
        assert phases[motif]["calls"] == count * solves * box.ranks, motif
        assert phases[motif]["bytes"] > 0
        assert (
            0 < phases[motif]["min_s"] <= phases[motif]["time_s"] * (1 + 8 * U) <= phases[motif]["max_s"] * (1 + 16 * U)
        )
    levels = stencil_levels(box)
    counted = hpg_mxp_flops(levels, cycles, "ornl", flexible=narrow)
    assert phases["spmv"]["flops"] == pytest.approx(2.0 * levels.nnz[0] * calls["spmv"] * solves, rel=U * calls["spmv"])
    assert phases["ortho"]["flops"] == pytest.approx(counted["ortho"] * solves, rel=steps * U)
    assert phases["prolongation"]["flops"] == pytest.approx(counted["prolongation"] * solves, rel=calls["gs"] * U)

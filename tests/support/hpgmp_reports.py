"""Create fake results of HPG-MxP: one that passed, one that failed, and one without numbers."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from mxpeak.records import Result

NOW = datetime(2025, 3, 7, 14, 5, 9)
#: Seconds of 12 mixed and of 10 double solves, and the flops per solve by the reference's count.
MIXED_S = {"gs": 30.25, "spmv": 8.5, "ortho": 16.0, "restriction": 3.125, "prolongation": 0.25, "update": 0.75}
DOUBLE_S = {"gs": 40.0, "spmv": 11.0, "ortho": 26.5, "restriction": 4.25, "prolongation": 0.375, "update": 1.125}
FLOPS = {"gs": 1.2e11, "spmv": 3.7e10, "ortho": 8.9e10, "restriction": 4e9, "prolongation": 0.0, "update": 1e9}
TOTAL = sum(FLOPS.values())


def phases(seconds: dict[str, float], solves: int) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "time_s": time_s,
            "max_s": 1.01 * time_s,
            "min_s": 0.99 * time_s,
            "flops": solves * FLOPS[name],
            "bytes": 4.0 * solves * FLOPS[name],
            "calls": 2 * 310 * solves,
            "share_of_limit": 0.75,
        }
        for name, time_s in seconds.items()
    }


def level(k: int) -> dict[str, Any]:
    n = 104 >> k
    return {
        "nx": n,
        "ny": n,
        "nz": n,
        "rows": 2 * n**3,
        "nnz": (3 * n - 2) ** 2 * (6 * n - 2),
        "colours": 8,
        "value_precision": "fp16" if k < 2 else "fp32",
        "vector_precision": "fp32",
        "storage": "packed",
        "bytes": 200 * n**3,
        "index_bytes": 100 * n**3,
    }


def problem_of(**values: Any) -> dict[str, Any]:
    return {
        "nx": 104,
        "ny": 104,
        "nz": 104,
        "npx": 1,
        "npy": 1,
        "npz": 2,
        "gnx": 104,
        "gny": 104,
        "gnz": 208,
        "rows": level(0)["rows"],
        "nnz": level(0)["nnz"],
        "nonsymmetric": False,
        "matrix": None,
        "restart": 30,
        "max_iterations": 300,
        "levels": [level(k) for k in range(4)],
        "storage": "packed",
        "smoother": "coloured",
        "colouring": "octants",
        "ranks": 2,
        "threads": 4,
        "setup_s": 0.3125,
        "optimize_s": 0.1875,
        "memory_bytes": {"mixed": 5 * 2**28, "double": 2**31, "setup": 2**29, "reference_formula": 1_700_000_000},
        "rt_s": 60.0,
        "larger_mesh": 88,
        "precision": {"mg": ["fp16", "fp16", "fp32", "fp32"], "krylov": "fp32", "vectors": "fp32"},
        **values,
    }


def figures_of(**values: Any) -> dict[str, Any]:
    penalty = 2305 / 2382
    raw, double = 12 * TOTAL / 60.0, 10 * TOTAL / 85.0
    return {
        "rate_flops": raw * penalty,
        "raw_rate_flops": raw,
        "double_rate_flops": double,
        "speedup": raw * penalty / double,
        "rate_flops_reference": raw * penalty,
        "rate_flops_ornl": 0.77 * raw * penalty,
        "raw_rate_flops_ornl": 0.77 * raw,
        "double_rate_flops_ornl": 0.77 * double,
        "time_s": 60.0,
        "double_time_s": 85.0,
        "solves": 12,
        "double_solves": 10,
        "iterations": 3600,
        "fraction_of_limit": 0.7125,
        "limit": {"name": "read bandwidth", "rate_bytes": 2.05e10},
        "emulated": False,
        "flops": {**{name: 12 * count for name, count in FLOPS.items()}, "total": 12 * TOTAL},
        "double_flops": {**{name: 10 * count for name, count in FLOPS.items()}, "total": 10 * TOTAL},
        "double_phases": phases(DOUBLE_S, 10),
        "speedup_by_motif": {
            **{name: penalty * 1.2 * DOUBLE_S[name] / MIXED_S[name] for name in MIXED_S},
            "total": raw * penalty / double,
        },
        "beside": [
            {
                "label": "official",
                "storage": "ell",
                "precision": "fp32",
                "rate_flops": 3.9e10,
                "raw_rate_flops": 4.03e10,
            }
        ],
        "dot_allreduce_s": {"min": 0.5, "max": 0.75, "mean": 0.625},
        **values,
    }


def check_of(**values: Any) -> dict[str, Any]:
    return {
        "passed": True,
        "residual": 9.9e-10,
        "threshold": 1e-9,
        "formula": "||b - A x|| / ||b||",
        "iterations": 2382,
        "double_iterations": 2305,
        "mixed_iterations": 2382,
        "penalty": 2305 / 2382,
        "type": "standard",
        "ranks": 2,
        "double_residual": 9.75e-10,
        "mixed_residual": 9.9e-10,
        "double_initial": 512.0,
        "mixed_initial": 512.0,
        "max_error": 3e-9,
        "history": {"double": [1.0, 1e-5, 9.75e-10], "mixed": [1.0, 2e-4, 3e-8, 9.9e-10]},
        **values,
    }


def result_of(**sections: Any) -> Result:
    values: dict[str, Any] = {
        "benchmark": "hpg-mxp",
        "status": "valid",
        "problem": problem_of(),
        "result": figures_of(),
        "validation": check_of(),
        "rules": {"mode": "official", "admissible": True, "violations": []},
        "phases": phases(MIXED_S, 12),
        "samples_s": 12 * [5.0],
        "software": {"mxpeak": "0.1.0"},
    }
    return Result(**{**values, **sections})


VIOLATION = {"rule": "indices", "text": "indices of two bytes <in --storage packed> are not cleared"}
BROKEN = {"mode": "explore", "admissible": False, "violations": [VIOLATION]}
FAILED = result_of(
    status="invalid",
    rules=BROKEN,
    validation=check_of(passed=False, residual=2e-4, mixed_residual=2e-4, mixed_iterations=10000, penalty=0.2305),
)


BARE = Result(benchmark="hpg-mxp", status="aborted")


def emptied(fill: float | None) -> Result:
    """Return a result whose numbers are all `fill`."""

    def empty(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: empty(item) for key, item in value.items()}
        if isinstance(value, list):
            return [empty(item) for item in value]
        return fill if isinstance(value, float) else value

    body = result_of()
    return result_of(
        status="invalid",
        problem=empty(body.problem),
        result=empty(body.result),
        validation=empty(body.validation),
        phases=empty(body.phases),
        samples_s=[],
    )

"""Create results with all parts of a page: long names, many ranks, steps, repeats and precisions."""

from __future__ import annotations

from typing import Any

MACHINE = {
    "cpu_model": "AMD EPYC 7A53 Optimized 3rd Generation 64-Core Processor",
    "logical_cores_allowed": 64,
    "memory_total_bytes": 512 * 2**30,
    "hostname": "frontier-compute-node-08412.crusher.olcf.example.org",
    "nodes": 4,
    "cores_allowed": list(range(64)),
}
SOFTWARE = {"mxpeak": "0.1.0", "python": "3.11.7", "blas": {"library": "openblas", "version": "0.3.30"}}
FLOPS = 2e14


def result(benchmark: str, rate: float, ranks: int = 8, **more: Any) -> dict[str, Any]:
    """Return a result with this rate in flop/s on a grid of 2 rows, with a limit twice as high."""
    config = {"n": {"value": [100_000], "origin": "flag"}, "quick": {"value": False, "origin": "default"}}
    return {
        "schema": "mxpeak.result/1",
        "benchmark": benchmark,
        "status": "valid",
        "run": {
            "argv": [
                "run",
                benchmark,
                "-N",
                "100000",
                "--out",
                "/lustre/orion/project/scratch/user/acceptance/november",
            ],
            "start": "2026-11-23T11:04:22Z",
        },
        "problem": {"n": 100_000, "nb": 512, "P": 2, "Q": ranks // 2, "order": "row", "node_grid": None},
        "result": {
            "rate_flops": rate,
            "time_s": FLOPS / rate,
            "fraction_of_limit": 0.5,
            "limit": {"name": "DGEMM, inner dimension 512", "rate_flops": 2 * rate},
        },
        "validation": {"passed": True, "residual": 0.0125, "threshold": 16.0, "formula": "||Ax-b||_oo / ( eps * N )"},
        "samples_s": [FLOPS / rate * (1 + 0.01 * (k % 5)) for k in range(12)],
        "phases": phases({"gemm": 8.0, "rfact": 3.0, "bcast": 2.0, "laswp": 0.5}),
        "config": config,
        "machine": MACHINE,
        "software": SOFTWARE,
        "launch": {"launcher": "srun", "ranks": ranks, "binding": binding(ranks)},
        "telemetry": telemetry(rate),
        "warnings": [{"code": "noisy", "text": "other load on this host", "hint": "stop it, or use another node"}],
        **more,
    }


def phases(times_s: dict[str, float]) -> dict[str, dict[str, float]]:
    """Return phases with flops and bytes, and a slowest rank."""
    return {
        name: {"time_s": t, "max_s": 1.25 * t, "flops": 2e9 * t * (k + 1), "bytes": 9e9 * t, "calls": 7}
        for k, (name, t) in enumerate(times_s.items())
    }


def binding(ranks: int) -> list[dict[str, Any]]:
    """Return the binding of four ranks per node."""
    cores = [f"{16 * k}-{16 * k + 15}" for k in range(4)]
    host = "frontier-compute-node-{:05}".format
    return [{"rank": k, "host": host(k // 4), "cores": cores[k % 4], "threads": 16} for k in range(ranks)]


def telemetry(rate: float, steps: int = 40) -> dict[str, Any]:
    """Return steps of decreasing length, and the progress with its forecast."""
    index, end_s = list(range(1, steps + 1)), FLOPS / rate
    done = [FLOPS * (1 - (1 - k / steps) ** 3) for k in index]
    elapsed = [end_s * (0.9 * d / FLOPS + 0.1 * k / steps) for k, d in zip(index, done)]
    spent = [b - a for a, b in zip([0.0, *elapsed], elapsed)]
    shares = {"gemm": 0.6, "rfact": 0.2, "bcast": 0.1, "laswp": 0.05}
    columns = {name: {"time_s": [share * s for s in spent]} for name, share in shares.items()}
    return {
        "steps": {"index": index, "elapsed_s": elapsed, "done_flops": done, "phases": columns, "ranks": 8},
        "progress": list(zip(elapsed, done)),
        "forecast": {"source": "simulated", "elapsed_s": [0.8 * s for s in elapsed], "done_flops": done},
    }


def mixed(precision: str, rate: float) -> dict[str, Any]:
    """Return a result of HPL-MxP, whose refinement converges more slowly at a lower precision."""
    record = result(
        "hpl-mxp", rate, rules={"admissible": False, "violations": [{"rule": "time", "text": "1 s of 1800"}]}
    )
    ratio = {"fp32": 1e-5, "bf16": 1e-3, "fp16": 1e-4}[precision]
    history = [3e8 * ratio**k for k in range(20) if 3e8 * ratio**k > 1e-3]
    record["problem"] |= {"precision": precision, "generator": "sqrt-n"}
    record["validation"] |= {"history": history, "iterations": len(history) - 1}
    return record


def sparse() -> dict[str, Any]:
    """Return a result of HPG-MxP on a box of ranks, with its motifs in both precisions."""
    motifs = {"gs": 6.0, "spmv": 2.0, "ortho": 1.5, "restriction": 0.2, "prolongation": 0.1, "update": 0.3}
    double = {name: {**phase, "time_s": 2 * phase["time_s"]} for name, phase in phases(motifs).items()}
    record = result("hpg-mxp", 40e9, phases=phases(motifs), telemetry={})
    record["problem"] = {**{f"n{axis}": 104 for axis in "xyz"}, **{f"np{axis}": 2 for axis in "xyz"}, "storage": "rows"}
    record["result"] |= {"limit": {"name": "read bandwidth", "rate_bytes": 80e9}, "double_phases": double, "solves": 3}
    record["result"] |= {"double_solves": 3, "speedup": 1.6, "speedup_by_motif": dict.fromkeys(motifs, 1.6)}
    record["validation"] |= {
        "history": {"double": [1.0, 1e-5, 8e-10], "mixed": [1.0, 2e-5, 1e-8, 9e-10]},
        "threshold": 1e-9,
        "residual": 9e-10,
    }
    return record


def everything() -> dict[str, Any]:
    """Return the content of a result file with all parts of a page."""
    runs = [result("hpl", 10e12), result("hpl", 18e12, 16), result("hpl", 2e12, 4, status="invalid")]
    runs += [mixed("fp32", 30e12), mixed("bf16", 60e12), mixed("fp16", 55e12), sparse()]
    return {"schema": "mxpeak.results/1", "results": runs}

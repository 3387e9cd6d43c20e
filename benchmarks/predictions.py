"""What `mxpeak simulate --machine tuned` predicts beside what runs: HPL and HPL-MxP on 1, 2 and 4 ranks of one machine.

    python benchmarks/predictions.py FOLDER --out result.json
    python benchmarks/predictions.py FOLDER --grid 2x1

Kernels are measured as `mxpeak tune` does it, those that the model asks of these sizes, on each layout of ranks and
threads, and in turns with the runs: kernels, HPL, kernels, HPL-MxP, kernels, all of them twice each time.  A run is
predicted from the median seconds of the kernels before and behind it, and compared by the mean seconds of two, for a
machine that others use changes its speed within seconds; no run is fitted.
Only the steps that GMRES takes are those of the run.  What a grid gave is kept in FOLDER, and not measured anew.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import Any

from mxpeak.bench.tune.groups import Spawned
from mxpeak.bench.tune.job import Job, kernels_of, probe_of
from mxpeak.bench.tune.probe import INNER, MESSAGES, SIDE, probes
from mxpeak.perf.host import environment, host_facts, one_core_each, software_facts
from mxpeak.perf.machines import machine_from
from mxpeak.perf.measured import Layout, machine_table
from mxpeak.perf.predict import simulate_lu
from mxpeak.perf.simulate_lu import LuForecast, LuRun

#: Grids with the threads of a rank on two cores: four ranks share them.
GRIDS = ((1, 1, 2), (2, 1, 1), (1, 2, 1), (2, 2, 1))


#: What each runs in, with its block size: the defaults.
SIZES = {"hpl": ("fp64", 192), "hpl-mxp": ("fp32", 320)}
#: What kernels are asked with once, whatever the block size.
ONCE = ("read", "cast", "generate", "solve", "copy", "rows", "sweep", "pingpong", "pivots")


def asked(probe: dict[str, Any]) -> bool:
    """Whether the model asks for a kernel at these sizes."""
    name = probe["name"]
    if name == "bcast":
        return probe["bcast"] in ("lib", "ilib") and probe["bytes"] == MESSAGES[-1]
    if name == "gemm" and probe["precision"] == "fp64" and probe["k"] == 256:
        return True  # of all sides, for what products waste at their edges
    return name in ONCE or any(
        probe.get("k") in around(nb) and probe.get("precision", low) == low and probe.get("n", SIDE) == SIDE
        for low, nb in SIZES.values()
        if name in ("gemm", "trsm", "factor", "fact")
    )


def around(nb: int) -> set[int]:
    """The inner sizes next to a block size among those that are measured."""
    return {max(k for k in INNER if k <= nb), min(k for k in INNER if k >= nb)}


def measure(journal: Path, ranks: int, threads: int) -> list[dict[str, Any]]:
    """What the model asks for, of one layout, twice."""
    left_out = [probe for probe in probes(ranks, ("bf16", "fp16"), on_gpu=False) if not asked(probe)]
    journal.unlink(missing_ok=True)
    task = {"do": "probes", "known": left_out}
    Spawned().do(
        Job(ranks=ranks, threads=threads, device="cpu", kernels="auto", tasks=[task, task],
            journal=str(journal), until_unix=time.time() + 600.0, quiet=True)
    )  # fmt: skip
    records = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    return kernels_of(records, ranks, threads, "cpu")


def usual(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each kernel once, with the median of its seconds."""
    seconds: dict[str, list[float]] = {}
    for record in records:
        seconds.setdefault(json.dumps(probe_of(record)), []).append(record["seconds"])
    once = {json.dumps(probe_of(record)): record for record in records}
    found = []
    for key, record in once.items():
        middle = median(seconds[key])
        rate = {"rate": record["rate"] * record["seconds"] / middle} if "rate" in record else {}
        found.append({**record, "seconds": middle, **rate})
    return found


def run(file: Path, benchmark: str, P: int, Q: int, threads: int, n: int) -> dict[str, Any]:
    """Two runs, one after the other."""
    command = ["mpiexec", "-n", str(P * Q), "mxpeak", "run", benchmark, "-N", str(n), "--grid", f"{P}x{Q}"]
    options = ["--threads", str(threads), "--repeat", "2", "--tuned", "no", "--json", str(file)]
    subprocess.run([*command, *options], check=True, capture_output=True)
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found["results"][0]


def predicted(records: list[dict[str, Any]], result: dict[str, Any], ranks: int, threads: int) -> LuForecast:
    """By the model, of the run's sizes."""
    problem, steps = result["problem"], result["validation"]["iterations"]
    known = Layout(
        title="this machine", ranks=ranks, threads=threads, ranks_per_node=ranks, cores=len(one_core_each()),
        memory_bytes=1e9, steps=steps,
    )  # fmt: skip
    machine = machine_from("tuned", {"tuned": machine_table(records, known)}, "here")
    same = {name: problem[name] for name in ("n", "nb", "P", "Q", "order", "bcast")}
    low = problem.get("precision", "fp64")
    return simulate_lu(result["benchmark"], LuRun(**same, precision=low), machine)


def both(folder: Path, P: int, Q: int, threads: int, n: int) -> list[dict[str, Any]]:
    """Kernels and runs of one grid in turns, and what comes out."""
    name, rows = f"{P}x{Q}", []
    behind = measure(folder / f"kernels-{name}.jsonl", P * Q, threads)
    for number, benchmark in enumerate(SIZES):
        before = behind
        result = run(folder / f"{benchmark}-{name}.json", benchmark, P, Q, threads, n)
        behind = measure(folder / f"kernels-{name}-{number}.jsonl", P * Q, threads)
        model = predicted(usual(before + behind), result, P * Q, threads)
        time_s = sum(result["samples_s"]) / len(result["samples_s"])
        ran = model.flops / time_s
        rows.append(
            {
                "benchmark": benchmark,
                "P": P,
                "Q": Q,
                "threads": threads,
                "nb": result["problem"]["nb"],
                "predicted_flops": model.rate_flops,
                "ran_flops": ran,
                "error": model.rate_flops / ran - 1,
                "slower_kernels": median(
                    two["seconds"] / one["seconds"] for one, two in zip(usual(before), usual(behind))
                ),
                "samples_s": result["samples_s"],
                "predicted_s": {"all": model.time_s, **model.phases},
                "ran_s": {"all": min(result["samples_s"])}
                | {name: told["time_s"] for name, told in result["phases"].items()},
            }
        )
        say(rows[-1])
    return rows


def say(row: dict[str, Any]) -> None:
    """One run as text."""
    print(
        f"{row['benchmark']:8} {row['P']}x{row['Q']}  predicted {row['predicted_flops'] / 1e9:6.1f}  "
        f"ran {row['ran_flops'] / 1e9:6.1f} GFLOP/s  {100 * row['error']:+.0f} %;  "
        f"kernels {row['slower_kernels']:.2f} times as long behind it",
        flush=True,
    )


def main() -> None:
    """Measure, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-N", type=int, default=8000)
    parser.add_argument("--grid", default="", help="one of the grids alone, such as 2x1")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for P, Q, threads in GRIDS:
        if args.grid in ("", f"{P}x{Q}"):
            file = args.folder / f"{P}x{Q}.json"
            if not file.exists():
                file.write_text(json.dumps(both(args.folder, P, Q, threads, args.N)), encoding="utf-8")
            rows += json.loads(file.read_text(encoding="utf-8"))
    if args.out:
        body = {
            "driver": "benchmarks/predictions.py",
            "command": f"python benchmarks/predictions.py FOLDER -N {args.N}",
            "n": args.N,
            "machine": host_facts(),
            "software": software_facts(),
            "environment": environment(),
            "rows": rows,
        }
        args.out.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

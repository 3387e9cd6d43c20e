"""What `mxpeak simulate --machine tuned` predicts beside what runs: HPL and HPL-MxP on 1, 2 and 4 ranks of one machine.

    python benchmarks/predictions.py FOLDER --out result.json

Kernels are measured as `mxpeak tune` does it, on each layout of ranks and threads, then each grid runs; no run is
fitted.  Only the steps that GMRES takes are those of the run.  Both are kept in FOLDER, so that a call which was broken
off goes on where it stopped: keep them within minutes of each other, for a machine that others use changes its speed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path
from typing import Any

from mxpeak.bench.tune.groups import Spawned
from mxpeak.bench.tune.job import Job, kernels_of, probe_of
from mxpeak.perf.host import environment, host_facts, one_core_each, software_facts
from mxpeak.perf.machines import machine_from
from mxpeak.perf.measured import Layout, machine_table
from mxpeak.perf.predict import simulate_lu
from mxpeak.perf.simulate_lu import LuRun

#: Grids with the threads of a rank on two cores: four ranks share them.
GRIDS = ((1, 1, 2), (2, 1, 1), (1, 2, 1), (2, 2, 1))
BENCHMARKS = ("hpl", "hpl-mxp")


def measure(journal: Path, ranks: int, threads: int) -> None:
    """All kernels of a layout that the journal does not have."""
    known = [probe_of(record) for record in kernels_of(records_of(journal), ranks, threads, "cpu")]
    task = {"do": "probes", "known": known, "scale": 1}
    until = time.time() + 600.0
    Spawned().do(
        Job(ranks=ranks, threads=threads, device="cpu", kernels="auto", tasks=[task], journal=str(journal),
            until_unix=until, quiet=True)
    )  # fmt: skip


def records_of(journal: Path) -> list[dict[str, Any]]:
    """What the journal has."""
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
    return [json.loads(line) for line in lines]


def run(file: Path, benchmark: str, P: int, Q: int, threads: int, n: int) -> dict[str, Any]:
    """A run of its own, the best of two; once it is in the file, what is there."""
    if not file.exists():
        command = ["mpiexec", "-n", str(P * Q), "mxpeak", "run", benchmark, "-N", str(n), "--grid", f"{P}x{Q}"]
        options = ["--threads", str(threads), "--repeat", "2", "--tuned", "no", "--json", str(file)]
        subprocess.run([*command, *options], check=True, capture_output=True)
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found["results"][0]


def predicted(records: list[dict[str, Any]], result: dict[str, Any], ranks: int, threads: int) -> float:
    """FLOP/s by the model, of the run's sizes."""
    problem, steps = result["problem"], result["validation"]["iterations"]
    known = Layout(
        title="this machine", ranks=ranks, threads=threads, ranks_per_node=ranks, cores=len(one_core_each()),
        memory_bytes=1e9, steps=steps,
    )  # fmt: skip
    machine = machine_from("tuned", {"tuned": machine_table(kernels_of(records, ranks, threads, "cpu"), known)}, "here")
    low = problem.get("precision", "fp64")
    same = {name: problem[name] for name in ("n", "nb", "P", "Q", "order", "bcast")}
    benchmark = "hpl" if low == "fp64" else "hpl-mxp"
    return simulate_lu(benchmark, LuRun(**same, precision=low), machine).rate_flops


def main() -> None:
    """Measure, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-N", type=int, default=8000)
    parser.add_argument("--runs", type=int, default=1, help="runs of each case")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    journal = args.folder / "kernels.jsonl"
    for P, Q, threads in GRIDS:
        layout = {"kind": "complete", "ranks": P * Q, "threads": threads, "device": "cpu"}
        if layout not in records_of(journal):
            measure(journal, P * Q, threads)
    rows = []
    for turn in range(args.runs):
        for P, Q, threads in GRIDS:
            for benchmark in BENCHMARKS:
                file = args.folder / f"{benchmark}-{P}x{Q}-{turn}.json"
                result = run(file, benchmark, P, Q, threads, args.N)
                model, ran = predicted(records_of(journal), result, P * Q, threads), result["result"]["rate_flops"]
                row = {"benchmark": benchmark, "P": P, "Q": Q, "threads": threads, "nb": result["problem"]["nb"]}
                rows.append({**row, "predicted_flops": model, "ran_flops": ran, "error": model / ran - 1})
                print(
                    f"{benchmark:8} {P}x{Q}  predicted {model / 1e9:6.1f}  ran {ran / 1e9:6.1f} GFLOP/s  "
                    f"{100 * (model / ran - 1):+.0f} %",
                    flush=True,
                )
    if args.out:
        body = {
            "driver": "benchmarks/predictions.py",
            "command": f"python benchmarks/predictions.py FOLDER -N {args.N} --runs {args.runs}",
            "n": args.N,
            "machine": host_facts(),
            "software": software_facts(),
            "environment": environment(),
            "rows": rows,
        }
        args.out.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Compare the predictions of `mxpeak simulate --machine tuned` with runs of HPL and HPL-MxP on 1, 2 and 4 ranks.

    python benchmarks/predictions.py FOLDER --rounds 5 --out result.json
    python benchmarks/predictions.py FOLDER --rounds 5 --minutes 4    stops after four minutes; repeat it to continue

Each round starts the layouts of ranks and threads one after the other. Within the same processes of a layout, kernels
and runs alternate: first the kernels and messages that `mxpeak tune` measures, as far as the model needs them for these
sizes, then a run, then the kernels again, and so on for all benchmarks and grids. The speed of a shared machine changes
within seconds. A run is therefore predicted from the kernels directly before and after it, with the mean of both times.
The error is the median over the runs, with its quartiles. No run is fitted, but the number of GMRES steps is that of
the run.

All measurements are stored in FOLDER and are not repeated.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from importlib import import_module
from itertools import product
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

from mxpeak.bench.registry import BENCHMARKS
from mxpeak.comm.base import Communicator
from mxpeak.kernels.host.engine.matrix_engines import chosen
from mxpeak.options import resolve, run_of
from mxpeak.perf.host import environment, host_facts, one_core_each, software_facts
from mxpeak.perf.simulation.lu import LuForecast, LuRun
from mxpeak.perf.simulation.machine_from_measurements import Layout, machine_table
from mxpeak.perf.simulation.machines import Machine, machine_from
from mxpeak.perf.simulation.predict import simulate_lu
from mxpeak.runtime.launch import start
from mxpeak.runtime.tuned import append
from mxpeak.verbs.tune.job import TuneJob, perform, probe_of
from mxpeak.verbs.tune.probe import INNER, MESSAGES, SIDE, probes

Record = dict[str, Any]

#: The threads per rank on two cores by the number of ranks (four ranks share the cores), and the grids.
THREADS = {1: 2, 2: 1, 4: 1}
GRIDS = {1: ((1, 1),), 2: ((2, 1), (1, 2)), 4: ((2, 2),)}
#: HPL-MxP's default precision: that of the processor's own 16-bit products, if it has any.
LOW = "bf16" if any(engine.precision == "bf16" for engine in chosen()) else "fp32"
#: Number of repetitions of all kernels and runs of a layout within the same processes.
TURNS = 2
#: The default precision and block size of each benchmark.
SIZES = {"hpl": ("fp64", 192), "hpl-mxp": (LOW, 512 if LOW == "bf16" else 320)}
#: Kernels that are measured once for all block sizes.
ONCE = ("read", "cast", "generate", "solve", "copy", "rows", "sweep", "pingpong", "pair", "turn")


# --- what is measured ---------------------------------------------------------------------------------------------


def is_needed(probe: Record) -> bool:
    """Return whether the model needs a kernel at these sizes."""
    name = probe["name"]
    if name == "bcast":
        return probe["bcast"] in ("lib", "ilib") and probe["bytes"] == MESSAGES[-1]
    if name == "gemm" and probe["precision"] in ("fp64", LOW) and probe["k"] == 256:
        return True  # for the losses of products at their edges
    stored = {"fp64": "fp64"}  # type of triangles and diagonal blocks: fp32 for all low precisions
    return name in ONCE or any(
        probe.get("k") in around(nb)
        and probe.get("precision", low) == (low if name == "gemm" else stored.get(low, "fp32"))
        and probe.get("n", SIDE) == SIDE
        for low, nb in SIZES.values()
        if name in ("gemm", "trsm", "factor", "fact")
    )


def around(nb: int) -> set[int]:
    """Return the measured inner sizes next to a block size."""
    return {max(k for k in INNER if k <= nb), min(k for k in INNER if k >= nb)}


def take_turns(journal: Path, n: int) -> None:
    """Alternate kernels and runs, as one of the ranks that `measure` has started; rank 0 writes the journal."""
    comm = start()
    left_out = [probe for probe in probes(comm.size, ("bf16", "fp16"), on_gpu=False) if not is_needed(probe)]
    job = TuneJob(
        ranks=comm.size,
        threads=THREADS[comm.size],
        device="cpu",
        kernels="auto",
        tasks=[{"do": "probes", "known": left_out}],
        journal=str(journal),
        until_unix=time.time() + 600.0,
    )
    perform(job, comm, lambda text: None)
    for _, (P, Q), benchmark in product(range(TURNS), GRIDS[comm.size], SIZES):
        record = run(benchmark, P, Q, n, comm)
        if comm.rank == 0:
            append(journal, [record])
        perform(job, comm, lambda text: None)


def run(benchmark: str, P: int, Q: int, n: int, comm: Communicator) -> Record:
    """Run a benchmark once, and return its record. Collective."""
    entry, (low, nb) = BENCHMARKS[benchmark], SIZES[benchmark]
    texts = {"n": str(n), "nb": str(nb), "grid": f"{P}x{Q}", "threads": str(THREADS[P * Q]), "warmup": "none"}
    if benchmark == "hpl-mxp":
        texts["precision"] = low
    settings = entry.config.settle(resolve(entry.config, {**texts, "device": "cpu"}, {}, {}))
    chosen = run_of(entry.config, settings)
    (result,) = import_module(entry.module).run(chosen.config, comm, origins=chosen.origins)
    return {
        "kind": "run",
        "benchmark": benchmark,
        "problem": result.problem,
        "iterations": result.validation.get("iterations"),
        "seconds": result.samples_s[0],
        "phases": {name: told["time_s"] for name, told in result.phases.items()},
    }


def measure(folder: Path, rounds: int, n: int, until: float) -> None:
    """Measure all missing rounds; no layout starts after `until`."""
    done = {(record["round"], record["ranks"]) for record in kept(folder)}
    for number, ranks in ((number, ranks) for number in range(rounds) for ranks in GRIDS):
        if (number, ranks) in done:
            continue
        if time.time() > until:
            return
        begun, journal = time.time(), folder / "turns.jsonl"
        journal.unlink(missing_ok=True)
        command = ["mpiexec", "-n", str(ranks), sys.executable, __file__, str(folder), "-N", str(n), "--take-turns"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
        lines = [json.dumps({**r, "round": number, "ranks": ranks}) for r in found if r["kind"] != "complete"]
        with (folder / "measured.jsonl").open("a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        print(f"round {number + 1}: {ranks} ranks, {time.time() - begun:.0f} s", flush=True)


def kept(folder: Path) -> list[Record]:
    """Return the stored measurements."""
    file = folder / "measured.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


# --- what comes out -----------------------------------------------------------------------------------------------


def usual(records: list[Record]) -> list[Record]:
    """Return each kernel once, with the mean of its times."""
    of: dict[str, list[Record]] = {}
    for record in records:
        of.setdefault(json.dumps(probe_of(record)), []).append(record)
    means = []
    for first, *others in of.values():
        seconds = mean(record["seconds"] for record in (first, *others))
        rate = {"rate": first["rate"] * first["seconds"] / seconds} if "rate" in first else {}
        means.append({**first, "seconds": seconds, **rate})
    return means


def beside(records: list[Record]) -> list[tuple[Record, list[Record]]]:
    """Yield each run of one layout and round with the kernels directly before and after it.

    `records` are in the order in which they were written.
    """
    passes: list[list[Record]] = [[]]
    runs = []
    for record in records:
        if record["kind"] == "run":
            runs.append(record)
            passes.append([])
        else:
            passes[-1].append({key: value for key, value in record.items() if key != "round"})
    return [(run, usual([*before, *behind])) for run, before, behind in zip(runs, passes, passes[1:])]


def machine_of(records: list[Record], ranks: int, steps: int | None) -> Machine:
    """Return the machine that the kernels of one layout describe."""
    layout = Layout(
        title="this machine",
        ranks=ranks,
        threads=THREADS[ranks],
        ranks_per_node=ranks,
        cores=len(one_core_each()),
        memory_bytes=1e9,
        steps=steps,
    )
    return machine_from("tuned", {"tuned": machine_table(records, layout)}, "here")


def compared(records: list[Record]) -> list[Record]:
    """Return each run with its prediction."""
    rows = []
    for ranks, grids in GRIDS.items():
        rounds = sorted({r["round"] for r in records if r["ranks"] == ranks})
        turns = [
            (run, predicted(kernels, run, ranks))
            for number in rounds
            for run, kernels in beside([r for r in records if (r["ranks"], r["round"]) == (ranks, number)])
        ]
        for grid, benchmark in product(grids, SIZES):
            asked = benchmark, *grid
            rows.append(row_of([t for t in turns if (t[0]["benchmark"], *grid_of(t[0])) == asked], THREADS[ranks]))
    return rows


def grid_of(run: Record) -> tuple[int, int]:
    """Return the process grid of a run."""
    return run["problem"]["P"], run["problem"]["Q"]


def row_of(turns: list[tuple[Record, LuForecast]], threads: int) -> Record:
    """Return all runs of a benchmark on a grid, with their predictions."""
    runs, models = [run for run, _ in turns], [model for _, model in turns]
    errors = [run["seconds"] / model.time_s - 1 for run, model in turns]
    low, middle, high = quantiles(errors, n=4, method="inclusive")
    ran_s, time_s = (median(seconds) for seconds in ([run["seconds"] for run in runs], [m.time_s for m in models]))
    return {
        "benchmark": runs[0]["benchmark"],
        "P": runs[0]["problem"]["P"],
        "Q": runs[0]["problem"]["Q"],
        "threads": threads,
        "n": runs[0]["problem"]["n"],
        "nb": runs[0]["problem"]["nb"],
        "precision": SIZES[runs[0]["benchmark"]][0],
        "predicted_flops": models[0].flops / time_s,
        "ran_flops": models[0].flops / ran_s,
        "error": middle,
        "quartiles": [low, high],
        "error_of_means": mean(run["seconds"] for run in runs) / mean(model.time_s for model in models) - 1,
        "samples_s": [run["seconds"] for run in runs],
        "errors": errors,
        "predicted_s": {"all": mean(m.time_s for m in models), **means([m.phases for m in models])},
        "ran_s": {"all": mean(run["seconds"] for run in runs), **means([run["phases"] for run in runs])},
    }


def means(phases: list[Any]) -> dict[str, float]:
    """Return the mean time of each phase."""
    return {name: mean(one.get(name, 0.0) for one in phases) for name in phases[0]}


def predicted(kernels: list[Record], run: Record, ranks: int) -> LuForecast:
    """Return the prediction of the model for the sizes of a run."""
    same = {name: run["problem"][name] for name in ("n", "nb", "P", "Q", "order", "bcast")}
    case = LuRun(**same, precision=SIZES[run["benchmark"]][0])
    return simulate_lu(run["benchmark"], case, machine_of(kernels, ranks, run["iterations"]))


def say(row: Record) -> None:
    """Return one run as text."""
    errors = " ".join(f"{100 * error:+.0f}" for error in row["errors"])
    low, high = (100 * error for error in row["quartiles"])
    print(
        f"{row['benchmark']:8} {row['P']}x{row['Q']}  predicted {row['predicted_flops'] / 1e9:6.1f}  "
        f"ran {row['ran_flops'] / 1e9:6.1f} GFLOP/s  {100 * row['error']:+.0f} % ({low:+.0f} to {high:+.0f}), "
        f"by means {100 * row['error_of_means']:+.0f} %;  runs {errors} %",
        flush=True,
    )


def main() -> None:
    """Measure the runs and compare them with the predictions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-N", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=600.0, help="minutes after which no layout starts")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--take-turns", action="store_true", help=argparse.SUPPRESS)  # for the started ranks
    args = parser.parse_args()
    if args.take_turns:
        return take_turns(args.folder / "turns.jsonl", args.N)
    args.folder.mkdir(parents=True, exist_ok=True)
    measure(args.folder, args.rounds, args.N, time.time() + 60.0 * args.minutes)
    records = kept(args.folder)
    if {record["ranks"] for record in records} != set(GRIDS):
        return
    rows = compared(records)
    for row in rows:
        say(row)
    if args.out:
        body = {
            "driver": "benchmarks/predictions.py",
            "command": f"python benchmarks/predictions.py FOLDER -N {args.N} --rounds {args.rounds}",
            "n": args.N,
            "machine": host_facts(),
            "software": software_facts(),
            "environment": environment(),
            "rows": rows,
        }
        args.out.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

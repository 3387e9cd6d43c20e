"""Measure what a process keeps after many small runs: memory, open files, threads, and temporary files.

    python benchmarks/endurance.py --minutes 20 --out result.json
    python benchmarks/endurance.py --runs 100

One process alternately runs all benchmarks as `mxpeak run` does, eight Python threads that call solve, norm and gmres,
and a forked and a spawned child process that make the same calls. Each of these tasks runs once before anything is
counted. Every few rounds, the script collects all garbage and takes a sample: resident memory, open file descriptors,
threads, and new files in the temporary folder and in /dev/shm. The output compares the means of the first quarter of
the samples with those of the last quarter.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import itertools
import json
import multiprocessing
import os
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import scipy.sparse

import mxpeak as mx
from mxpeak.cli.main import main as command_line
from mxpeak.perf.host import environment, host_facts, software_facts

THREADS = 8
#: The arguments of `mxpeak run`.
BENCHMARKS = (
    "hpl -N 150 --nb 32",
    "hpl-mxp -N 150 --nb 32",
    "hpg-mxp --nx 8 --rt 0.02 --mode explore",
    "hpcg --nx 16 --rt 0.02",
    "norms -N 100 --kind one",
)
PRECONDITIONERS = ("lu", "gs", "sgs", "none")
FIGURES = ("memory_bytes", "open_files", "threads", "files_left")


def benchmark(words: str) -> None:
    """Run a benchmark by its command line, with its results in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as output:
        code = command_line(["run", *words.split(), "--threads", "2", "--quiet", "--out", f"{folder}/results"])
    if code != 0:
        raise SystemExit(f"mxpeak run {words} ends with {code}: {output.getvalue()}")


def library(seed: int = 0) -> None:
    """Call solve, norm and gmres for new matrices, and check the results."""
    rng = np.random.default_rng(seed)
    A, b = rng.standard_normal((60, 60)), rng.standard_normal(60)
    x, info = mx.solve(A, b)
    T = scipy.sparse.diags_array([-1.0, 2.5 + rng.random(), -1.0], offsets=[-1, 0, 1], shape=(500, 500), format="csr")
    y, outcome = mx.gmres(T, np.ones(500), preconditioner=PRECONDITIONERS[seed % len(PRECONDITIONERS)])
    norm = mx.norm(A, "one")
    if not (info.solved and outcome.converged and np.isclose(norm, np.abs(A).sum(axis=0).max())):
        raise SystemExit(f"seed {seed}: {info.message}; {outcome}; {norm}")
    if not (np.allclose(A @ x, b) and np.allclose(T @ y, 1.0)):
        raise SystemExit(f"seed {seed}: x is not a solution")


def threads() -> None:
    """Call `library` in eight threads at the same time."""
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(library, range(THREADS)))


def child(how: str) -> None:
    """Call `library` in another process, while this process has its own threads."""
    process = multiprocessing.get_context(how).Process(target=library)  # type: ignore[attr-defined]
    process.start()
    process.join(120.0)
    if process.exitcode != 0:
        process.kill()
        raise SystemExit(f"a child by {how} ends with {process.exitcode}")
    process.close()


TURNS: dict[str, Callable[[], None]] = {
    **{words.split()[0]: partial(benchmark, words) for words in BENCHMARKS},
    "threads": threads,
    "fork": partial(child, "fork"),
    "spawn": partial(child, "spawn"),
}


def found_in(*folders: str) -> set[str]:
    """Return all files in a folder."""
    return {os.path.join(where, name) for folder in folders for where, _, names in os.walk(folder) for name in names}


def sample(runs: int, begin: float, before: set[str], folders: tuple[str, ...]) -> dict[str, Any]:
    """Return the current resources of this process, after ended threads and processes have had time to disappear."""
    time.sleep(0.2)
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "runs": runs,
        "time_s": time.monotonic() - begin,
        "memory_bytes": pages * resource.getpagesize(),
        "open_files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "files_left": len(found_in(*folders) - before),
    }


def endured(turns: list[str], runs: int, seconds: float, every: int) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Run all tasks, and return the samples and the number of runs of each task."""
    taken: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        for name in turns:
            TURNS[name]()
        begin, folders = time.monotonic(), (folder, "/dev/shm")
        before = found_in(*folders)
        for rounds in itertools.count():
            if rounds % every == 0:
                taken.append(sample(counts.total(), begin, before, folders))
                print(json.dumps(taken[-1]), flush=True)
            if counts.total() >= runs or time.monotonic() - begin > seconds:
                break
            for name in turns:
                TURNS[name]()
                counts[name] += 1
        tempfile.tempdir = None
    return taken, counts


def quarters(samples: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the means of the first and of the last quarter of the samples."""
    size = max(1, len(samples) // 4)
    parts = {"first_quarter": samples[:size], "last_quarter": samples[-size:]}
    return {part: {key: fmean(one[key] for one in found) for key in FIGURES} for part, found in parts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="finish the current round after this time")
    parser.add_argument("--runs", type=int, help="end after this number of runs (default: 1000 without --minutes)")
    parser.add_argument("--every", type=int, default=2, help="number of rounds between samples (default: %(default)s)")
    parser.add_argument("--turns", default=",".join(TURNS), help="tasks that alternate (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write all samples to this JSON file")
    args = parser.parse_args()
    most = args.runs or (sys.maxsize if args.minutes else 1000)
    seconds = 60.0 * args.minutes if args.minutes else float("inf")
    samples, counts = endured(args.turns.split(","), most, seconds, args.every)
    body = {
        "driver": "benchmarks/endurance.py",
        "command": re.sub(r" --out \S+", "", " ".join(["python", "benchmarks/endurance.py", *sys.argv[1:]])),
        "machine": host_facts(),
        "software": software_facts(),
        "environment": environment(),
        "runs": dict(counts),
        "threads_of_python": THREADS,
        **quarters(samples),
        "samples": samples,
    }
    for part in ("first_quarter", "last_quarter"):
        print(part.replace("_", " "), json.dumps(body[part]))
    print(f"{counts.total()} runs")
    if args.out:
        args.out.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""The same benchmark from two source trees, runs interleaved: is the new tree as fast as the old one?

    python benchmarks/before_after.py ../old/src src --repeat 5 -- hpl-mxp -N 10000 --threads 2
    python benchmarks/before_after.py ../old/src src --repeat 5 -- hpl -N 10000 --grid 1x2 --ranks 2 --threads 1

What follows `--` is what follows `mxpeak run`.  Both trees run in this Python, each with a cache of kernels of its own;
the first run of each compiles and is not counted.  The order alternates (old new, new old, ...), so that a machine that
drifts favours neither.  Ratios are new over old: of the medians, of the bests, and the median over pairs.
Exit code 1 if the ratio of the medians is below --least.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

#: What a result may be measured in, in this order.
RATES = ("rate_flops", "rate_bytes")


def measure(source: Path, cache: Path, arguments: list[str]) -> float:
    """The rate of one run of `mxpeak run arguments` from a source tree."""
    environ = {**os.environ, "PYTHONPATH": str(source), "MXPEAK_CACHE_DIR": str(cache)}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "mxpeak", "run", *arguments, "--json", "-", "--quiet", "--out", "out"]
        run = subprocess.run(command, cwd=folder, env=environ, text=True, capture_output=True)
    if run.returncode:
        sys.exit(f"{source}: mxpeak run {' '.join(arguments)} ended with {run.returncode}:\n{run.stderr[-2000:]}")
    result = json.loads(run.stdout)["result"]
    return next(float(result[name]) for name in RATES if result.get(name))


def ratios(old: list[float], new: list[float]) -> dict[str, float]:
    """New over old."""
    return {
        "of_medians": statistics.median(new) / statistics.median(old),
        "of_bests": max(new) / max(old),
        "of_pairs": statistics.median(b / a for a, b in zip(old, new)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="the old tree's src")
    parser.add_argument("new", type=Path, help="the new tree's src")
    parser.add_argument("arguments", nargs="+", help="the arguments of mxpeak run, after --")
    parser.add_argument("--repeat", type=int, default=5, help="counted runs of each tree (default: %(default)s)")
    parser.add_argument("--least", type=float, default=0.99, help="the least ratio of medians (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write all rates to this JSON file")
    args = parser.parse_args()
    trees = {"old": args.old.resolve(), "new": args.new.resolve()}
    for source in trees.values():
        if not (source / "mxpeak").is_dir():
            parser.error(f"{source} has no package mxpeak; name the tree's src folder")

    rates: dict[str, list[float]] = {"old": [], "new": []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.repeat + 1):
            for name in ("old", "new") if turn % 2 else ("new", "old"):
                rate = measure(trees[name], Path(folder) / name, args.arguments)
                if turn > 0:
                    rates[name].append(rate)
                print(f"{name} {rate / 1e9:9.3f} G/s{'' if turn else '  (not counted)'}", flush=True)
    ratio = ratios(rates["old"], rates["new"])
    found: dict[str, Any] = {"arguments": args.arguments, "ratio": ratio, "rates": rates}
    print("  ".join(f"{name} {value:.4f}" for name, value in ratio.items()))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if ratio["of_medians"] >= args.least else 1


if __name__ == "__main__":
    sys.exit(main())

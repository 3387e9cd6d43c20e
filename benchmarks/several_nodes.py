"""Run every benchmark over invented nodes, and compare the results with those of the same ranks on one node.

    sudo python benchmarks/several_nodes.py --out nodes.json

Eight ranks run on four nodes, which are network namespaces of one Linux machine (see invented_cluster.py). All messages
between nodes pass through TCP. The rates mean nothing, because the nodes share the cores of the machine.

A line per comparison has the value on one node, the value on four nodes and the verdict. The exit code is 1 if a run
fails its validation, if it does not use four nodes, or if the values differ.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from invented_cluster import BRIDGE, GROUPS, LAUNCHER, NETWORK, NODES, ONLY_NETWORK, RANKS, RANKS_PER_NODE, cluster

Result = Mapping[str, Any]
LU = ["-N", "500", "--nb", "16", "--grid", "2x4", "--warmup", "none"]
SPARSE = ["--nx", "16", "--rt", "0", "--quick", "--iterations", "30"]
#: The options of each run, and the value of a result that must be equal on one node and on four nodes.
RUNS: dict[str, tuple[Sequence[str], Callable[[Result], Any]]] = {
    "hpl": (LU, lambda result: result["validation"]["residual"]),
    "hpl-mxp": (LU, lambda result: result["validation"]["iterations"]),
    "hpg-mxp": (
        SPARSE,
        lambda result: [result["validation"][f"{solver}_iterations"] for solver in ("double", "mixed")],
    ),
    "hpcg": (SPARSE[:-2], lambda result: result["result"]["optimized_iterations_per_set"]),
    "norms": (
        ["-N", "500", "--nb", "48", "--kind", "max,one,inf,fro", "--dtype", "float64,complex64", "--deterministic"],
        lambda result: result["result"]["value"],
    ),
}


def run(words: Sequence[str], launcher: Sequence[str], folder: Path) -> tuple[int, list[Result]]:
    """Run mxpeak on all ranks, and return its exit code and its results."""
    file = folder / "result.json"
    file.unlink(missing_ok=True)
    command = ["mpiexec", *launcher, "-n", str(RANKS), sys.executable, "-m", "mxpeak", "run", *words]
    ended = subprocess.run(
        [*command, "--threads", "1", "--json", str(file), "--out", str(folder / f"out-{os.urandom(4).hex()}"),
         "--quiet", "--watchdog", "off"],
        capture_output=True, text=True, env={**os.environ, **ONLY_NETWORK}, check=False,
    )  # fmt: skip
    if not file.exists():
        raise SystemExit(f"mxpeak ended with {ended.returncode}: {ended.stdout[-500:]}{ended.stderr[-500:]}")
    body = json.loads(file.read_text())
    return ended.returncode, list(body["results"]) if "results" in body else [body]


def hosts(result: Result) -> set[str]:
    """Return the names of the nodes of a run."""
    return {rank["host"] for rank in result["launch"]["binding"]}


def main() -> int:
    """Run all benchmarks on one node and on four nodes, print a line per comparison, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmarks", nargs="*", default=list(RUNS), metavar="BENCHMARK", help=f"{', '.join(RUNS)}")
    parser.add_argument("--out", help="file for the results")
    args = parser.parse_args()
    if unknown := [name for name in args.benchmarks if name not in RUNS]:
        parser.error(f"{unknown[0]!r} is unknown; use one of {', '.join(RUNS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # otherwise the namespaces would remain
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as text, cluster():
        folder = Path(text)
        script = folder / "launcher.sh"
        script.write_text(LAUNCHER.format(groups=GROUPS))
        script.chmod(0o700)
        addresses = ",".join(f"{NETWORK}.{i + 1}:{RANKS_PER_NODE}" for i in range(NODES))
        over = ["-iface", BRIDGE, "-launcher", "ssh", "-launcher-exec", str(script), "-hosts", addresses]
        for name in args.benchmarks:
            words, value_of = RUNS[name]
            codes, results = zip(*(run([name, *words], launcher, folder) for launcher in ([], over)))
            one, four = ([value_of(result) for result in part] for part in results)
            nodes = len(hosts(results[1][0]))
            right = codes == (0, 0) and nodes == NODES and one == four and all(map(bool, results))
            lines.append({"benchmark": name, "options": list(words), "one_node": one, "four_nodes": four,
                          "nodes": nodes, "exit_codes": list(codes), "right": right})  # fmt: skip
            print(f"{name:8} {nodes} nodes, exit codes {codes}: {one} on one node, {four} on {NODES} nodes: "
                  f"{'equal' if right else 'WRONG'}", flush=True)  # fmt: skip
    if args.out:
        Path(args.out).write_text(json.dumps({"runs": lines}, indent=1) + "\n")
    return int(not all(line["right"] for line in lines))


if __name__ == "__main__":
    raise SystemExit(main())

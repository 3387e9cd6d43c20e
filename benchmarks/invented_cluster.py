"""Scan an invented cluster with known defects, and count how often `mxpeak scan` names them.

    sudo python benchmarks/invented_cluster.py --rounds 5 --clean 20 --out cluster.json
    sudo python benchmarks/invented_cluster.py --defects busy,bit --scan "--unit node -N 1344 --tolerance 20%"

The first command compares ranks and links, and the second one nodes by HPL.

Four nodes of two ranks run on one Linux machine under MPICH's mpiexec. Each node has a network namespace, whose
interface is connected to a bridge, and a control group with the same share of the processor. In each round, every
defect occurs once on another node:

    busy    a program uses the cores of the node
    link    the network interface sends at most --link-rate
    bit     one rank computes a wrong bit in its factors

A defect counts as found if the scan names its node and no other one. A clean scan must name no node and no link.
The exit code is 1 if a defect was missed or a clean scan named one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

NODES, RANKS_PER_NODE = 4, 2
RANKS = NODES * RANKS_PER_NODE
BRIDGE, NETWORK = "mxbridge", "10.77.0"
#: Keeps UCX from the shared memory of the machine, through which it would pass by the interfaces of the nodes.
ONLY_NETWORK = {"UCX_TLS": "tcp,self"}
GROUPS = Path("/sys/fs/cgroup/cpu/mxpeak-invented")
#: Starts the processes of a node in its control group and its namespace. mpiexec passes the address and a command.
LAUNCHER = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
i=$(( ${{1##*.}} - 1 )); shift
echo $$ > {groups}/$i/cgroup.procs
export MXPEAK_NODE=node$i
exec ip netns exec mxnode$i bash -c "$*"
"""
#: Flips the last bit of one factor on one rank, in the LU of HPL-MxP (fp32) and in HPL (fp64).
FLIP = """
import os
from mxpeak.verbs.scan import probes

def flipping(factorize, kind):
    def flipped(A, *arguments):
        factorize(A, *arguments)
        if os.environ.get("PMI_RANK") == os.environ["WRONG_RANK"]:
            A.local.view(kind)[-1, -1] ^= 1

    return flipped

probes.factorize = flipping(probes.factorize, "i4")
probes.factorize_with_pivoting = flipping(probes.factorize_with_pivoting, "i8")
"""
#: The defects that the script creates.
DEFECTS = ("busy", "link", "bit")


def run(*command: str, check: bool = True) -> None:
    """Run a command of the system, and raise an error with its message if it fails."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and ended.returncode:
        raise SystemExit(f"{' '.join(command)}: {ended.stderr.strip()}")


@contextmanager
def cluster() -> Iterator[None]:
    """Create namespaces, links and control groups of the nodes, and remove them at the end."""
    try:
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "addr", "add", f"{NETWORK}.254/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        for i in range(NODES):
            node = f"mxnode{i}"
            (GROUPS / str(i)).mkdir(parents=True, exist_ok=True)
            (GROUPS / "cpu.shares").write_text(str(1024 * RANKS))  # as much as other processes of the machine
            run("ip", "netns", "add", node)
            run("ip", "link", "add", f"mxlink{i}", "type", "veth", "peer", "name", "eth0", "netns", node)
            run("ip", "link", "set", f"mxlink{i}", "master", BRIDGE, "up")
            run("ip", "-n", node, "addr", "add", f"{NETWORK}.{i + 1}/24", "dev", "eth0")
            for interface in ("eth0", "lo"):
                run("ip", "-n", node, "link", "set", interface, "up")
        yield
    finally:
        for i in range(NODES):
            run("ip", "link", "del", f"mxlink{i}", check=False)
            run("ip", "netns", "del", f"mxnode{i}", check=False)
            run("rmdir", str(GROUPS / str(i)), check=False)
        run("ip", "link", "del", BRIDGE, check=False)
        run("rmdir", str(GROUPS), check=False)


@contextmanager
def busy(node: int) -> Iterator[None]:
    """Run a loop on each core of a node."""
    group = GROUPS / str(node) / "cgroup.procs"
    loops = [
        subprocess.Popen(["bash", "-c", f"echo $$ > {group}; exec taskset -c {core} bash -c 'while :; do :; done'"])
        for core in range(RANKS_PER_NODE)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextmanager
def slow_link(node: int, rate: str) -> Iterator[None]:
    """Limit the rate at which a node sends."""
    run("ip", "netns", "exec", f"mxnode{node}", "tc", "qdisc", "add", "dev", "eth0", "root", "tbf",
        "rate", rate, "burst", "256kb", "latency", "50ms")  # fmt: skip
    try:
        yield
    finally:
        run("ip", "netns", "exec", f"mxnode{node}", "tc", "qdisc", "del", "dev", "eth0", "root", check=False)


def scan(folder: Path, words: Sequence[str], variables: Mapping[str, str]) -> dict[str, Any]:
    """Scan the cluster, and return the result."""
    launcher, file = folder / "launcher.sh", folder / "scan.json"
    launcher.write_text(LAUNCHER.format(groups=GROUPS))
    launcher.chmod(0o700)
    file.unlink(missing_ok=True)
    hosts = ",".join(f"{NETWORK}.{i + 1}:{RANKS_PER_NODE}" for i in range(NODES))
    ended = subprocess.run(
        ["mpiexec", "-iface", BRIDGE, "-launcher", "ssh", "-launcher-exec", str(launcher), "-hosts", hosts,
         "-n", str(RANKS), sys.executable, "-m", "mxpeak", "scan", *words, "--progress", "never", "--json", str(file),
         "--out", str(folder / f"scan-{time.time_ns()}")],
        capture_output=True, text=True, env={**os.environ, **ONLY_NETWORK, **variables}, check=False,
    )  # fmt: skip
    if not file.exists():
        raise SystemExit(f"the scan ended with {ended.returncode}: {ended.stdout[-500:]}{ended.stderr[-500:]}")
    return dict(json.loads(file.read_text()))


def named(body: Mapping[str, Any]) -> list[str]:
    """Return the nodes that the scan names as slow or wrong, because of their rates, results or links."""
    hosts = {body["ranks"][finding["rank"]]["host"] for key in ("slow", "wrong") for finding in body[key]}
    return sorted(hosts | set(body.get("link_hosts", ())))


def main() -> int:
    """Run all rounds, print a line per scan, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds with each defect")
    parser.add_argument("--clean", type=int, default=20, help="number of scans without a defect")
    parser.add_argument("--defects", default=",".join(DEFECTS), help="defects, separated by commas")
    parser.add_argument("--link-rate", default="500mbit", help="rate of the slow link")
    parser.add_argument(
        "--scan", default="-N 2080 --rounds 7 --warmup gemm --links --tolerance 15%", help="scan options"
    )
    parser.add_argument("--out", help="file for the results")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # otherwise loops and namespaces would remain
    defects = args.defects.split(",")
    cases = [(name, (k + at) % NODES) for k in range(args.rounds) for at, name in enumerate(defects)]
    cases += [("clean", -1)] * args.clean
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as text, ExitStack() as stack:
        folder = Path(text)
        (folder / "flip.py").write_text(FLIP)
        stack.enter_context(cluster())
        for name, node in cases:
            variables: dict[str, str] = {}
            with ExitStack() as defect:
                if name == "busy":
                    defect.enter_context(busy(node))
                elif name == "link":
                    defect.enter_context(slow_link(node, args.link_rate))
                elif name == "bit":
                    path = os.pathsep.join(filter(None, [text, os.environ.get("PYTHONPATH")]))
                    variables = {"PYTHONPATH": path, "MXPEAK_IMPORT": "flip", "WRONG_RANK": str(2 * node)}
                begin = time.perf_counter()
                body = scan(folder, args.scan.split(), variables)
            expected = [] if name == "clean" else [f"node{node}"]
            outliers, links = named(body), len(body.get("slow_links", ()))
            right = outliers == expected and (name != "clean" or not links)
            undecided = sorted({finding["measure"] for finding in body["undecided"] if "measure" in finding})
            lines.append({"defect": name, "expected": expected, "named": outliers, "slow_links": links, "right": right,
                          "undecided": undecided, "seconds": time.perf_counter() - begin})  # fmt: skip
            print(f"{name:6} expected {expected or 'none'}, named {outliers or 'none'}, {links} slow links, undecided "
                  f"{undecided or 'none'}: {'right' if right else 'WRONG'}", flush=True)  # fmt: skip
    if args.out:
        machine = {key: body["machine"][key] for key in ("cpu_model",) if key in body["machine"]}
        Path(args.out).write_text(json.dumps({"options": vars(args), "machine": machine, "scans": lines}, indent=1))
    for name in (*defects, "clean"):
        those = [line for line in lines if line["defect"] == name]
        print(f"{name:6} {sum(line['right'] for line in those)} of {len(those)} right")
    return int(not all(line["right"] for line in lines))


if __name__ == "__main__":
    raise SystemExit(main())

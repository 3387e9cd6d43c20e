"""Proofs that need several GPUs: each runs mxpeak and compares what it measures with what is expected.

    python benchmarks/multi_gpu.py order --gpus 8 --out order.json

Parts, each with one command and a limit below ten minutes:

    order      messages over NCCL or RCCL wait for the work that fills their buffers: HPL and HPL-MxP repeat bitwise,
               and torch's sanitizer of streams reports nothing
    messages   GPU-aware MPI sends device memory, gives the solution of staged messages, and is not slower
    hpl        HPL on 1 and on all GPUs with constant memory per GPU
    halo       HPG-MxP on 1 and on all GPUs with a constant box per GPU: halos are hidden behind interior points
    norms      one process with all GPUs: bits of one GPU, NaN from every device, and the sum of their bandwidths

A line per comparison has the measured value, the expected one and the verdict. The exit code is 1 if any fails. With
--small and --device cpu, the parts run on CPU ranks to test this script; rates of CPUs are not compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

#: Least efficiency of HPL with constant memory per GPU; rocHPL reports over 90 % up to 128 nodes (section IV-C).
MIN_HPL = 0.9
#: Least efficiency of HPG-MxP with a constant box per GPU. Within a node, all halos should be hidden.
MIN_HALO = 0.9
#: Least rate of a norm on G devices, as a share of G times that on one. One process starts the work of all devices.
MIN_NORMS = 0.8
#: Largest time with GPU-aware MPI, as a multiple of that with staged messages; the noise of two runs is allowed.
MAX_DIRECT = 1.05
#: Least number of runs that are compared bit by bit.
MIN_RUNS = 3


@dataclass(frozen=True)
class Check:
    """A measured value next to the expected one."""

    name: str
    measured: str
    expected: str
    passed: bool


@dataclass(frozen=True)
class Ended:
    """A finished command: its exit code, what it printed to stderr, and its result file."""

    code: int
    stderr: str
    body: Mapping[str, Any]

    @property
    def results(self) -> Sequence[Mapping[str, Any]]:
        """Return the results of all cases."""
        return self.body.get("results") or ()


#: Runs `mxpeak run` with these words, a limit in seconds and variables, and returns how it ended.
Run = Callable[[Sequence[str], float, Mapping[str, str]], Ended]


def mxpeak(words: Sequence[str], limit_s: float, variables: Mapping[str, str]) -> Ended:
    """Run mxpeak in a process of its own. A run that exceeds its limit ends with code 124."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = [sys.executable, "-m", "mxpeak", "run", *words, "--json", str(file), "--out", f"{folder}/out"]
        print("$ mxpeak run", *words, *(f"({name}={value})" for name, value in variables.items()), flush=True)
        try:
            ran = subprocess.run(
                [*command, "--progress", "never", "--quiet"],
                capture_output=True, text=True, timeout=limit_s, env=os.environ | variables, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            return Ended(124, str(late), {})
        sys.stderr.write(ran.stderr)
        return Ended(ran.returncode, ran.stderr, json.loads(file.read_text()) if file.exists() else {})


def valid(name: str, ended: Ended, least: int = 1) -> Check:
    """Compare the exit code and the validation of every case."""
    states = [str(result.get("status")) for result in ended.results]
    passed = ended.code == 0 and len(states) >= least and set(states) == {"valid"}
    return Check(
        f"{name}: validation", f"exit {ended.code}, {', '.join(states) or 'no result'}", "exit 0, valid", passed
    )


def repeats(name: str, ended: Ended) -> Check:
    """Compare the runs of a soak test bit by bit."""
    soaks = [(result.get("telemetry") or {}).get("soak") or {} for result in ended.results]
    runs, differ = (
        min((soak.get("runs", 0) for soak in soaks), default=0),
        [d for s in soaks for d in s.get("differ", ())],
    )
    found = f"{runs} runs, {len(differ)} ranks differ"
    return Check(f"{name}: runs", found, f"at least {MIN_RUNS} runs, 0 ranks differ", runs >= MIN_RUNS and not differ)


def at_least(name: str, value: float | None, least: float) -> Check:
    """Compare a ratio with its least value; a missing ratio fails."""
    return Check(
        name, "none" if value is None else f"{value:.3f}", f">= {least:g}", value is not None and value >= least
    )


def figure(ended: Ended, name: str, case: int = 0) -> float | None:
    """Return a figure of a case, or None if there is no such case."""
    value = (ended.results[case].get("result") or {}).get(name) if len(ended.results) > case else None
    return float(value) if isinstance(value, int | float) else None


def order(run: Run, args: argparse.Namespace) -> list[Check]:
    """Return the checks of the order of messages and work over NCCL, RCCL or Gloo."""
    where = ["--device", args.device, "--ranks", str(args.gpus), "--comm", "torch", "--kernels", "torch"]
    n, nb, seconds = ("200", "16", "6s") if args.small else ("16384", "512", "40s")
    checks = []
    for benchmark in ("hpl", "hpl-mxp"):
        size = [benchmark, *where, "-N", n, "--nb", nb]
        soak = run([*size, "--soak", seconds], 150, {})
        checks += [valid(benchmark, soak), repeats(benchmark, soak)]
        if args.device != "cpu":
            checks.append(valid(f"{benchmark} under torch's sanitizer", run(size, 120, {"TORCH_CUDA_SANITIZER": "1"})))
    return checks


def messages(run: Run, args: argparse.Namespace) -> list[Check]:
    """Return the checks of GPU-aware MPI against messages that are staged through host memory."""
    n, nb = ("200", "16") if args.small else ("65536", "512")
    words = ["hpl", "--device", args.device, "--ranks", str(args.gpus), "--comm", "mpi", "--kernels", "torch"]
    words += ["-N", n, "--nb", nb, "--repeat", "3"]
    direct = run(words, 280, {"MXPEAK_GPU_AWARE_MPI": "yes"})
    staged = run(words, 280, {"MXPEAK_GPU_AWARE_MPI": "no"})
    checks = [valid("hpl, device memory", direct), valid("hpl, staged", staged)]
    residuals = [ended.results[0]["validation"]["residual"] if ended.results else None for ended in (direct, staged)]
    same = None not in residuals and residuals[0] == residuals[1]
    checks.append(Check("residual of both", f"{residuals[0]} and {residuals[1]}", "equal", same))
    if args.device != "cpu":
        used = "messages are staged" not in direct.stderr
        checks.append(Check("messages", "device memory" if used else "staged", "device memory", used))
        times = figure(direct, "time_s"), figure(staged, "time_s")
        ratio = times[0] / times[1] if times[0] and times[1] else None
        shown = "none" if ratio is None else f"{ratio:.3f}"
        checks.append(Check("time over staged", shown, f"<= {MAX_DIRECT}", ratio is not None and ratio <= MAX_DIRECT))
    return checks


def scaled(name: str, run: Run, args: argparse.Namespace, words: Sequence[str], least: float) -> list[Check]:
    """Return the checks of a weak scaling study on one and on all GPUs."""
    study = ["--scaling-study", "weak", "--ranks-list", f"1,{args.gpus}"]
    ended = run([*words, "--device", args.device, "--kernels", "torch", *study], 580, {})
    points = (ended.body.get("study") or {}).get("points") or [{}]
    checks = [valid(name, ended, least=2)]
    ranks = points[-1].get("ranks")
    checks.append(Check("GPUs of the last point", str(ranks), str(args.gpus), ranks == args.gpus))
    efficiency = points[-1].get("efficiency")
    if args.device == "cpu":
        return [*checks, Check("efficiency", str(efficiency), "a number", isinstance(efficiency, float))]
    return [*checks, at_least("efficiency", efficiency, least)]


def hpl(run: Run, args: argparse.Namespace) -> list[Check]:
    """Return the checks of HPL on one and on all GPUs."""
    size = ["-N", "200", "--nb", "16"] if args.small else ["--mem", "50%"]
    return scaled("hpl", run, args, ["hpl", *size], MIN_HPL)


def halo(run: Run, args: argparse.Namespace) -> list[Check]:
    """Return the checks of HPG-MxP on one and on all GPUs."""
    size = ["--nx", "16", "--ny", "16", "--nz", "16", "--rt", "0.1"] if args.small else ["--rt", "30"]
    return scaled("hpg-mxp", run, args, ["hpg-mxp", "--mode", "explore", *size], MIN_HALO)


def norms(run: Run, args: argparse.Namespace) -> list[Check]:
    """Return the checks of norms on one and on all GPUs of a process. On a CPU, both runs use the same device."""
    size = ["-m", "200", "-N", "300", "--nb", "32"] if args.small else ["-m", "32768", "-N", "65536", "--nb", "2048"]
    words = ["norms", "--device", args.device, "--kernels", "torch", "--layout", "tiles", *size, "--extended"]
    words += ["--kind", "one,fro"]
    many = ["--devices-per-rank", str(args.gpus)] if args.device != "cpu" else []
    same = [run([*words, *devices, "--deterministic"], 140, {}) for devices in ([], many)]
    fast = [run([*words, *devices], 140, {}) for devices in ([], many)]
    checks = [valid(f"norms, {name}", ended) for name, ended in zip(("one", "all", "one", "all"), [*same, *fast])]
    for case, kind in enumerate(("one", "fro")):
        values = [figure(ended, "value", case) for ended in same]
        bits = [value.hex() if value is not None else "none" for value in values]
        checks.append(Check(f"{kind} on one and all", " ".join(bits), "equal", bits[0] == bits[1] != "none"))
        rates = [figure(ended, "rate_bytes", case) for ended in fast]
        ratio = rates[1] / (args.gpus * rates[0]) if rates[0] and rates[1] else None
        if args.device != "cpu":
            checks.append(at_least(f"{kind}: rate over {args.gpus} times that of one", ratio, MIN_NORMS))
    return checks


PARTS: dict[str, Callable[[Run, argparse.Namespace], list[Check]]] = {
    "order": order, "messages": messages, "hpl": hpl, "halo": halo, "norms": norms,
}  # fmt: skip


def main(argv: Sequence[str] | None = None, run: Run = mxpeak) -> int:
    """Run one part, print a line per comparison, and return 1 if any fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--gpus", type=int, default=2, help="number of GPUs (default: 2)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="small sizes, to test this script")
    parser.add_argument("--out", type=Path, help="file for the results")
    args = parser.parse_args(argv)
    if args.gpus < 2:
        parser.error(f"--gpus {args.gpus} is too small: a proof compares at least 2 GPUs; use --gpus 2")
    if args.out and not os.access(args.out.parent, os.W_OK):  # before minutes of measurements
        parser.error(f"--out {args.out}: {args.out.parent} is not a writable folder; use another file")
    checks = PARTS[args.part](run, args)
    for check in checks:
        verdict = "PASSED" if check.passed else "FAILED"
        print(f"{verdict}  {check.name}: measured {check.measured}, expected {check.expected}", flush=True)
    if args.out:
        body = {"part": args.part, "gpus": args.gpus, "device": args.device, "checks": [asdict(c) for c in checks]}
        args.out.write_text(json.dumps(body, indent=1) + "\n")
    return 0 if checks and all(check.passed for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Start-up times of the package and of the command, next to the time of Python alone: python benchmarks/startup.py

Each time is the median of processes that run alternately, after one that fills the caches of the file system and writes
the bytecode, as an installation does. The times include the start and the end of Python. The target is for processor
time, which other programs change less than elapsed time.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

LIMIT_S = 0.15
COMMANDS = {
    "python -c pass": ("-c", "pass"),
    "import mxpeak": ("-c", "import mxpeak"),
    "mxpeak --help": ("-m", "mxpeak", "--help"),
}


def processor_seconds() -> float:
    """Return the processor time of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def seconds(words: tuple[str, ...], bytecode: str) -> tuple[float, float]:
    """Run Python with these arguments, and return its processor time and its elapsed time."""
    environ = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    used, begin = processor_seconds(), time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, env=environ)
    return processor_seconds() - used, time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as bytecode:
        rounds = [{name: seconds(words, bytecode) for name, words in COMMANDS.items()} for _ in range(args.repeat + 1)]
    for name in COMMANDS:
        used, elapsed = (statistics.median(values) for values in zip(*(times[name] for times in rounds[1:])))
        excess = "" if used < LIMIT_S else f", above the target of {LIMIT_S} s"
        print(f"{name:16} {used:.3f} s of processor time, {elapsed:.3f} s elapsed{excess}")


if __name__ == "__main__":
    main()

"""Start-up times of the package and of the command, next to the time of Python alone: python benchmarks/startup.py

Each time is the median of processes that run alternately, after one that fills the caches of the file system. The times
include the start and the end of Python.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

LIMIT_S = 0.15
COMMANDS = {
    "python -c pass": ("-c", "pass"),
    "import mxpeak": ("-c", "import mxpeak"),
    "mxpeak --help": ("-m", "mxpeak", "--help"),
}


def seconds(words: tuple[str, ...]) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=7)
    args = parser.parse_args()
    rounds = [{name: seconds(words) for name, words in COMMANDS.items()} for _ in range(args.repeat + 1)][1:]
    for name in COMMANDS:
        found = statistics.median(times[name] for times in rounds)
        print(f"{name:16} {found:.3f} s{'' if found < LIMIT_S else f', above the target of {LIMIT_S} s'}")


if __name__ == "__main__":
    main()

"""Read many mutated files with every reader: python -m tests.fuzz.many 100000 [READER …]

Prints for each reader how many files it accepted and refused, its slowest case, and the peak memory so far.  Ends with
1 if anything but a refusal came out, a case took more than SLOW_S, or the process grew beyond MAX_BYTES.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
import traceback
from functools import cache
from pathlib import Path

from mxpeak.perf.simulation import machines
from tests.support.fuzzing import DOORS, try_one

SLOW_S, MAX_BYTES = 10.0, 500 * 10**6


def main() -> int:
    count, names = int(sys.argv[1]), sys.argv[2:] or list(DOORS)
    each, bad = -(-count // len(names)), 0
    machines.known_machines = cache(machines.known_machines)  # to parse the same table once
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in names:
            accepted, worst_s, begun = 0, 0.0, time.monotonic()
            for seed in range(each):
                start = time.process_time()
                try:
                    accepted += try_one(name, seed, Path(folder)) is None
                except Exception as error:
                    bad += 1
                    told = "".join(traceback.format_exception(error)).rstrip().splitlines()
                    print(f"{name}, seed {seed}:", *told[-4:], sep="\n    ", flush=True)
                worst_s = max(worst_s, time.process_time() - start)
            peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            bad += (worst_s > SLOW_S) + (peak > MAX_BYTES)
            print(
                f"{name:<28} {each:>6} files: {accepted:>6} accepted, {each - accepted:>6} not; "
                f"worst {worst_s:.2f} s of CPU, all {time.monotonic() - begun:.0f} s, peak {peak / 1e6:.0f} MB",
                flush=True,
            )
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())

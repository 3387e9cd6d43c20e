"""Which of OpenBLAS's kernels run: settled here, before NumPy or SciPy load the library."""

from __future__ import annotations

import os

#: AVX-512 as Skylake-X has it: what OpenBLAS's kernels of that name need.
SKYLAKE_X = {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}


def prefer_core_type(cpuinfo: str = "/proc/cpuinfo") -> str | None:
    """Tell OpenBLAS to use its AVX-512 kernels where the processor has AVX-512 but is too new for it to know.

    OpenBLAS falls back to AVX2 on an AMD family that it does not know: 118 instead of 203 GFLOP/s DGEMM on two Zen 5
    cores.  Intel's processors it tells apart by their features, so they are left alone, and so is the user's own
    OPENBLAS_CORETYPE.  The choice is reported with every result.
    """
    if "OPENBLAS_CORETYPE" in os.environ:
        return os.environ["OPENBLAS_CORETYPE"]
    try:
        with open(cpuinfo) as file:
            first = file.read().split("\n\n")[0]
    except OSError:
        return None
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    if facts.get("vendor_id") != "GenuineIntel" and set(facts.get("flags", "").split()) >= SKYLAKE_X:
        os.environ["OPENBLAS_CORETYPE"] = "SKYLAKEX"
        return "SKYLAKEX"
    return None

"""Read from the environment whether a library is set to emulate products of fp64 matrices.

The variables only request an emulation. `solvers/fp64_probe.py` determines the arithmetic that a library uses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

#: The variable that switches the emulation of cuBLAS on (1) and off (0), and the one that fixes its number of bits.
CUBLAS, CUBLAS_BITS = "CUBLAS_EMULATE_DOUBLE_PRECISION", "CUBLAS_FIXEDPOINT_EMULATION_MANTISSA_BIT_COUNT"
#: The scheme of cuBLAS.
CUBLAS_SCHEME = "Ozaki I of cuBLAS"
#: Variables of GEMMul8 with the number of moduli.
GEMMUL8 = ("GEMMUL8_NUM_MOD_D_GEMM", "GEMMUL8_NUM_MOD_D")
#: The variable of ozIMMU with the number of slices, such as fp64_int8_9.
OZIMMU = "OZIMMU_COMPUTE_MODE"


@dataclass(frozen=True, slots=True)
class EmulationRequest:
    """A request to emulate products of fp64 matrices.

    variable   the variable or flag with the request
    scheme     the scheme and the library that implements it
    bits       the number of bits per entry; None if the library chooses it
    """

    variable: str
    scheme: str
    bits: int | None = None


def requested_emulation(environment: Mapping[str, str], architecture: str) -> EmulationRequest | None:
    """Return the emulation that the variables request for a device, or None.

    `architecture` is that of the device: sm_90, gfx942, or an empty string for the host. Libraries that replace cuBLAS
    or hipBLAS must be in LD_PRELOAD.
    """
    nvidia, amd = architecture.startswith("sm_"), architecture.startswith("gfx")
    preloaded = environment.get("LD_PRELOAD", "").lower()
    if (nvidia or amd) and "gemmul8" in preloaded:
        for name in GEMMUL8:
            if (moduli := _number(environment.get(name))) > 0:
                return EmulationRequest(name, f"Ozaki II of GEMMul8, {moduli} moduli")
    if nvidia and "ozimmu" in preloaded:
        slices = re.fullmatch(r"fp64_int8_(\d+|auto)", environment.get(OZIMMU, ""))
        if slices:
            of = "adaptive slices" if slices[1] == "auto" else f"{slices[1]} slices"
            return EmulationRequest(OZIMMU, f"Ozaki I of ozIMMU, {of}")
    if nvidia and _number(environment.get(CUBLAS)) == 1:
        return EmulationRequest(CUBLAS, CUBLAS_SCHEME, _number(environment.get(CUBLAS_BITS)) or None)
    return None


def _number(text: str | None) -> int:
    """Return a variable as an integer, or 0 if it is unset or not a number."""
    return int(text) if text is not None and text.strip().isdecimal() else 0

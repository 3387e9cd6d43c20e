"""Compute a fingerprint of the machine and its software. Tuned settings apply only to the same fingerprint.

Two machines with the same fingerprint have the same processors, number of cores, devices and libraries, and about the
same amount of memory. Host names are excluded, so that all nodes of a cluster share one measurement.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from mxpeak.perf.host import host_facts, software_facts, text_in

#: Host facts and package versions in the fingerprint.
OF_HOST = (
    "architecture",
    "cpu_model",
    "sockets",
    "physical_cores",
    "logical_cores_allowed",
    "l2_bytes",
    "l3_bytes",
    "avx2",
    "avx512",
)
OF_SOFTWARE = ("mxpeak", "python", "numpy", "scipy", "numba", "mpi4py", "mpich", "torch", "triton")
#: Environment variables that change the code path of a library.
VARIABLES = ("OPENBLAS_CORETYPE", "MKL_ENABLE_INSTRUCTIONS", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")


def machine_facts(root: str | Path = "/", environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the facts for the fingerprint. No library is loaded, because BLAS must start after the cores are bound."""
    environ = os.environ if environ is None else environ
    host, software = host_facts(root), software_facts()
    memory = host["memory_total_bytes"]
    return {
        **{name: host[name] for name in OF_HOST},
        # rounded to a power of two, because kernels and hypervisors reserve some memory
        "memory_class_gib": None if not memory else 2.0 ** round(math.log2(memory / 2**30)),
        "devices": gpu_models(root),
        **{name: software[name] for name in OF_SOFTWARE},
        "blas": blas_files(),
        "variables": {name: environ[name] for name in VARIABLES if name in environ},
    }


def digest(facts: Mapping[str, Any]) -> str:
    """Return the fingerprint of the facts, a hash of 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def gpu_models(root: str | Path = "/") -> list[str]:
    """Return the names of the GPUs that their drivers report in /proc and /sys, without opening a GPU."""
    proc, nodes = Path(root) / "proc/driver/nvidia/gpus", Path(root) / "sys/class/kfd/kfd/topology/nodes"
    names = []
    for folder in _folders(proc):
        names += re.findall(r"^Model:\s*(.+?)\s*$", text_in(folder / "information") or "", re.MULTILINE)
    for folder in _folders(nodes):
        names += re.findall(r"^gfx_target_version ([1-9]\d*)$", text_in(folder / "properties") or "", re.MULTILINE)
    return names


def blas_files() -> list[str]:
    """Return the file names of the BLAS libraries in the wheels of NumPy and SciPy; empty if there are none."""
    names = []
    for package in ("numpy", "scipy"):
        try:
            files = metadata.files(package) or []
        except metadata.PackageNotFoundError:
            continue
        names += [
            file.name
            for file in files
            if re.search(r"(blas|mkl|lapack|blis).*\.(so|dylib|dll)", file.name) and f"{package}.libs" in str(file)
        ]
    return sorted(names)


def _folders(parent: Path) -> list[Path]:
    return sorted(parent.iterdir()) if parent.is_dir() else []

"""`mxpeak doctor`: report which components this machine has, and the commands that install the missing ones."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mxpeak.errors import ExitCode, MxpeakError, ResourceError
from mxpeak.installation import install_command
from mxpeak.options import integer, path_name
from mxpeak.perf.published import PublishedRate, published_rates
from mxpeak.records import figure_text, three_digits

if TYPE_CHECKING:
    from mxpeak.cli.session import Session
    from mxpeak.kernels.contract import Kernels, Matrix

#: Labels for facts whose JSON names are not readable as labels.
LABELS = {
    "cpu_model": "processor",
    "physical_cores": "cores",
    "logical_cores_allowed": "usable logical cores",
    "cores_allowed": "core numbers",
    "numa_nodes": "NUMA nodes",
    "l2_bytes": "L2 cache",
    "l3_bytes": "L3 cache",
    "avx2": "AVX2",
    "avx512": "AVX-512",
    "memory_total_bytes": "memory",
    "memory_available_bytes": "available memory",
    "governor": "frequency governor",
}

#: The rows and columns of products that show whether a GPU emulates fp64; libraries do not emulate small products.
GPU_SIDE = 4096
#: The inner dimension of these products.
INNER = 512

#: Components that a run does not need.
OPTIONAL = ("16-bit GEMM", "MPI", "GPU", "cores", "tuned settings")

EXAMPLE = """\
examples:
  mxpeak doctor --ranks 4
  mxpeak doctor --json -
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `doctor`."""
    parser.description = (
        "Show the processor, memory, BLAS, MPI and GPUs. Exit code 0 means that mxpeak can run on the CPU."
    )
    parser.epilog = EXAMPLE
    parser.add_argument(
        "--ranks", type=integer(1, 4096), default=1, metavar="R", help="show the cores that R ranks would use"
    )
    parser.add_argument("--json", type=path_name, metavar="FILE", help="write JSON to FILE; use - to print only JSON")
    parser.set_defaults(action=doctor)


def doctor(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Examine each component, print the verdict first, and return 0 if a run on the CPU is possible."""
    from mxpeak.cli.output import show

    if session.rank != 0:
        return ExitCode.VALID
    sections: dict[str, Mapping[str, Any]] = {}
    for title, facts, remedy in _parts(args.ranks):
        try:
            sections[title] = facts()
        except (ImportError, OSError, MxpeakError) as error:
            sections[title] = {"missing": str(error), "fix": remedy}
    verdict = _verdict(sections)
    text = "\n\n".join([verdict["text"], *(_part_text(title, facts) for title, facts in sections.items())])
    show({"schema": "mxpeak.doctor/1", "verdict": verdict, "sections": sections}, f"{text}\n", args.json)
    return ExitCode.VALID if verdict["cpu"] else ExitCode.RESOURCE


def _parts(ranks: int) -> list[tuple[str, Callable[[], Mapping[str, Any]], str]]:
    """Return the title of each component, the function that returns its properties, and a fix if the function fails."""
    return [
        ("host", _host_facts, "mount /proc and /sys, and make them readable"),
        ("BLAS", _blas_facts, "pip install --force-reinstall numpy scipy numba"),
        ("16-bit GEMM", _engine_facts, "pip install --force-reinstall numpy scipy numba"),
        ("MPI", _mpi_facts, install_command("mpich")),
        ("GPU", _gpu_facts, f"install a GPU driver and {install_command('gpu')}"),
        ("cores", lambda: _core_facts(ranks), f"use fewer --ranks than {ranks}"),
        ("tuned settings", _tuned_facts, "mxpeak tune"),
    ]


def _tuned_facts() -> dict[str, str]:
    """Return the stored settings of each benchmark and layout, and whether their search was cut short."""
    from mxpeak.runtime.tuned import is_empty, this_store
    from mxpeak.verbs.tune.run import stored

    none = "no settings are stored for this machine"
    if is_empty():
        raise ResourceError(none)
    book, trouble = this_store().book()
    if not book.winners:
        raise ResourceError(trouble or none)
    return {key: _tuned_text(stored(winner), winner.runs_left) for key, winner in book.winners.items()}


def _tuned_text(settings: str, runs_left: int) -> str:
    """Return the settings of a winner, and how to continue its search if it was cut short."""
    rest = f"{runs_left} run{'s' * (runs_left != 1)} missing; repeat the mxpeak tune command to continue the search"
    return f"{settings} ({rest})" if runs_left else settings


def _mpi_facts() -> dict[str, Any]:
    """Return the MPI library, its version and its launcher."""
    from mxpeak.runtime.launch import mpi_facts

    return mpi_facts()


def _part_text(title: str, facts: Mapping[str, Any]) -> str:
    """Return the text about one component: a label and a value per line, or the reason why it is missing."""
    if "missing" in facts:
        mark, remedy = ("–", "to use it") if title in OPTIONAL else ("✗", "fix")
        return f"{mark} {title}\n  missing: {facts['missing']}\n  {remedy}: {facts['fix']}"
    labels = {name: LABELS.get(name, name.replace("_", " ")) for name in facts}
    width = max(map(len, labels.values()), default=0)
    return "\n".join([f"✓ {title}", *(f"  {labels[name]:<{width}}  {_shown(name, facts[name])}" for name in facts)])


def _verdict(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the verdict as text, and whether the CPU, MPI and a GPU can be used; `to_do` lists the necessary fixes."""
    able = {name: "missing" not in sections[name] for name in sections}
    cpu = able["host"] and able["BLAS"]
    where = "on the CPU and on GPUs" if able["GPU"] else "on the CPU"
    text = f"ready: mxpeak runs {where}{'' if able['MPI'] else ', on one rank'}"
    to_do = [str(sections[name]["fix"]) for name in ("host", "BLAS") if not able[name]]
    return {
        "cpu": cpu,
        "mpi": able["MPI"],
        "gpu": able["GPU"],
        "text": text if cpu else f"not ready: mxpeak cannot run yet; {'; '.join(to_do)}",
        "to_do": to_do,
    }


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_bytes"):
        return f"{three_digits(value / 2**30)} GiB" if value >= 2**30 else f"{three_digits(value / 2**20)} MiB"
    return str(value)


def _host_facts() -> Mapping[str, Any]:
    from mxpeak.layout.cores import short_list
    from mxpeak.perf.host import host_facts

    facts = host_facts()
    nodes = facts["numa_nodes"] or []
    return {**facts, "cores_allowed": short_list(facts["cores_allowed"]), "numa_nodes": len(nodes) or None}


def _blas_facts() -> Mapping[str, Any]:
    from mxpeak.kernels.host.engine.blas import blas_facts, gemm
    from mxpeak.kernels.reference.kernels import ReferenceKernels

    class _Blas(ReferenceKernels):
        """The reference kernels with the products of BLAS."""

        def subtract_product(self, C: Matrix, A: Matrix, B: Matrix) -> None:
            gemm(-1.0, A, B, C)

    facts = blas_facts() | {"fp64_products": _arithmetic(_Blas(), 0)}
    pinned = os.environ.get("OPENBLAS_CORETYPE")
    return facts if pinned is None else {**facts, "warning": f"OPENBLAS_CORETYPE={pinned} is set; unset it to compare"}


def _arithmetic(kernels: Kernels, side: int) -> str:
    """Return a text about the products of fp64 matrices with this many rows: native, or the method of emulation."""
    from mxpeak.perf.emulation import requested_emulation
    from mxpeak.solvers.fp64_probe import probe_products

    products = probe_products(kernels, side, side, INNER)
    request = requested_emulation(os.environ, str(kernels.device_facts().get("device_architecture", "")))
    if not products.emulated:
        return "native" if request is None else f"native, although {request.variable} requests an emulation"
    bits = products.bits or (request and request.bits)
    return f"emulated ({request.scheme if request else 'scheme unknown'}, {bits or 'unknown number of'} bits)"


def _gpu_arithmetic(index: int) -> str:
    """Return the arithmetic of fp64 products on a GPU, or the reason why it is unknown, such as too little memory."""
    from mxpeak.kernels.choose import choose, device_failure

    try:
        return _arithmetic(choose("torch", f"cuda:{index}", 1), GPU_SIDE)
    except RuntimeError as error:
        return f"unknown: {device_failure(error) or error}"


def _engine_facts() -> Mapping[str, Any]:
    """Return the engine or emulation that multiplies bf16 and fp16, and the engines that are slower than fp32."""
    from mxpeak.kernels.host.engine.matrix_engines import chosen, engine_for, present

    used = {name: engine_for(name, chosen()) for name in ("bf16", "fp16")}
    emulated = "emulated: rounded in software, at the speed of fp32"
    facts = {name: engine.name if engine else emulated for name, engine in used.items()}
    unused = [engine for engine in present() if engine not in chosen()]
    reasons = {True: "not tested on hardware", False: "slower than fp32 here"}
    texts = [f"{engine.name}: {reasons[engine.unproven]}" for engine in unused]
    return facts | ({"not used": "; ".join(texts)} if texts else {})


def _gpu_facts() -> Mapping[str, Any]:
    """Return name, memory and NUMA node of each GPU that torch can use, and the NUMA node of each network adapter."""
    from mxpeak.kernels.choose import gpu_driver
    from mxpeak.perf.devices import gpu_location, nics

    if not gpu_driver():
        raise ResourceError("no GPU driver was found (neither /dev/nvidia0 nor /dev/kfd exists)")
    from mxpeak.kernels.torch.engine.device import count, open_device

    facts: dict[str, Any] = {}
    for index in range(count()) or [0]:
        gpu = open_device(f"cuda:{index}")
        location, chip = gpu_location(gpu.bus), gpu.chip
        facts[f"cuda:{index}"] = f"{chip.name}, {three_digits(gpu.memory()[0] / 2**30)} GiB, at {gpu.bus}"
        facts[f"cuda:{index} node"] = location.node
        facts[f"cuda:{index} fp64 products"] = _gpu_arithmetic(index)
        facts |= {f"{rate.name} of {chip.name}": _published(rate) for rate in published_rates(chip.name)}
    return facts | {f"adapter {name}": f"NUMA node {node}" for name, node in nics().items()}


def _published(rate: PublishedRate) -> str:
    return f"{figure_text(rate.as_dict())} ({rate.source})"


def _core_facts(ranks: int) -> Mapping[str, Any]:
    """Return the cores to which each local rank is bound."""
    from mxpeak.layout.cores import core_masks, short_list
    from mxpeak.perf.host import idle_cores, one_core_each

    fast, idle = one_core_each(), idle_cores()
    if ranks > len(fast):
        fast, idle = sorted([*fast, *idle]), []
    masks = core_masks(fast, ranks)
    users = [core for mask in masks for core in mask]
    return ({"slower cores, idle": short_list(idle)} if idle else {}) | {
        f"rank {rank}": short_list(mask) + ("  (shared with another rank)" if users.count(mask[0]) > 1 else "")
        for rank, mask in enumerate(masks)
    }

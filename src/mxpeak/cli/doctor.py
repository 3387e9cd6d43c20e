"""mxpeak doctor: what was found on this machine, and what to install for what was not."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mxpeak.errors import ExitCode, MxpeakError, ResourceError
from mxpeak.installation import install_command
from mxpeak.options import integer
from mxpeak.records import three_digits

if TYPE_CHECKING:
    from mxpeak.cli.session import Session

EXAMPLE = """\
example:
  mxpeak doctor --ranks 4
  mxpeak doctor --json -
"""


def add_verb(verbs: Any) -> None:
    """Add `doctor` to the command line."""
    parser = verbs.add_parser(
        "doctor",
        help="show hardware and software, and what to install",
        epilog=EXAMPLE,
        description="Show processor, memory, BLAS, MPI and GPUs. Exit code 0 means that a run on the CPU is possible.",
    )
    parser.add_argument(
        "--ranks", type=integer(1, 4096), default=1, metavar="R", help="show the cores that R ranks would use"
    )
    parser.add_argument("--json", metavar="FILE", help="write JSON to FILE; - writes only JSON to stdout")
    parser.set_defaults(action=doctor)


def doctor(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Look at each part; what the CPU runs cannot do without decides the exit code."""
    if session.rank != 0:
        return ExitCode.VALID
    sections: dict[str, dict[str, Any]] = {}
    for title, facts, remedy in _parts(args.ranks):
        sections[title] = _section(facts, remedy)
        if args.json != "-":
            _print(title, sections[title])
    verdict = _verdict(sections)
    if args.json is not None:
        from mxpeak.cli.output import write_json

        write_json({"schema": "mxpeak.doctor/1", "verdict": verdict, "sections": sections}, args.json)
    if args.json != "-":
        print(f"\n{verdict['text']}")
    return ExitCode.VALID if verdict["cpu"] else ExitCode.RESOURCE


def _parts(ranks: int) -> list[tuple[str, Callable[[], Mapping[str, Any]], str]]:
    """What is looked at: its title, its facts, and what to do where they are not available."""
    return [
        ("host", _host_facts, "the /proc and /sys of Linux"),
        ("BLAS", _blas_facts, "pip install --force-reinstall numpy scipy numba"),
        ("16-bit GEMM", _unit_facts, "pip install --force-reinstall numpy scipy numba"),
        ("MPI", _mpi_facts, f"{install_command('mpich')}; without it a run has one rank"),
        ("GPU", _gpu_facts, f"a driver, and {install_command('gpu')}; without them a run is on the CPU"),
        ("cores", lambda: _core_facts(ranks), f"fewer --ranks than {ranks}"),
    ]


def _section(facts: Callable[[], Mapping[str, Any]], remedy: str) -> dict[str, Any]:
    """The facts of one part, or what is missing of it and how to mend that."""
    try:
        return dict(facts())
    except (ImportError, OSError, MxpeakError) as error:
        return {"missing": str(error), "fix": remedy}


def _print(title: str, found: Mapping[str, Any]) -> None:
    print(f"\n{title}")
    if "missing" in found:
        print(f"  missing: {found['missing']}\n  fix: {found['fix']}")
    for name, value in found.items() if "missing" not in found else ():
        print(f"  {name:<20} {_shown(name, value)}")
    sys.stdout.flush()


def _verdict(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What a run here can be, in words and for programs; `to_do` is for what it cannot do without."""
    able = {name: "missing" not in sections[name] for name in sections}
    cpu = able["host"] and able["BLAS"]
    where = "on the CPU and on GPUs" if able["GPU"] else "on the CPU"
    text = f"a run {where} is possible{'' if able['MPI'] else ', with one rank'}: type mxpeak"
    to_do = [str(sections[name]["fix"]) for name in ("host", "BLAS") if not able[name]]
    return {
        "cpu": cpu,
        "mpi": able["MPI"],
        "gpu": able["GPU"],
        "text": text if cpu else f"a run on the CPU is NOT possible yet: {'; '.join(to_do)}",
        "to_do": to_do,
    }


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "unknown"
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
    from mxpeak.kernels.host.blas import blas_facts

    facts = blas_facts()
    pinned = os.environ.get("OPENBLAS_CORETYPE")
    return facts if pinned is None else {**facts, "warning": f"OPENBLAS_CORETYPE={pinned} is set; unset it to compare"}


def _unit_facts() -> Mapping[str, Any]:
    """What multiplies operands of 16 bits, and which of that a run uses."""
    from mxpeak.kernels.host.units import chosen, present, unit_for

    used = {name: unit_for(name, chosen()) for name in ("bf16", "fp16")}
    facts = {name: unit.name if unit else "emulated: rounded in software, fp32's speed" for name, unit in used.items()}
    slower = [unit.name for unit in present() if unit not in chosen()]
    return facts | ({"not used": f"{', '.join(slower)}: slower than fp32 here"} if slower else {})


def _mpi_facts() -> Mapping[str, Any]:
    from mxpeak.runtime.launch import mpi_facts

    return mpi_facts()


def _gpu_facts() -> Mapping[str, Any]:
    """The GPUs that torch can use, where they lie, and the adapters beside them."""
    from mxpeak.kernels.choose import gpu_driver
    from mxpeak.perf.devices import gpu_location, nics

    if not gpu_driver():
        raise ResourceError("no GPU driver found (/dev/nvidia0, /dev/kfd)")
    from mxpeak.kernels.torch.device import count, open_device

    found: dict[str, Any] = {}
    for index in range(count()) or [0]:
        gpu = open_device(f"cuda:{index}")  # says why, where there is none
        location, chip = gpu_location(gpu.bus), gpu.chip
        found[f"cuda:{index}"] = f"{chip.name}, {three_digits(gpu.memory()[0] / 2**30)} GiB, at {gpu.bus}"
        found[f"cuda:{index} node"] = location.node
    return found | {f"adapter {name}": f"NUMA node {node}" for name, node in nics().items()}


def _core_facts(ranks: int) -> Mapping[str, Any]:
    """The cores of each local rank."""
    from mxpeak.layout.cores import core_masks, short_list
    from mxpeak.perf.host import one_core_each

    masks = core_masks(one_core_each(), ranks)
    users = [core for mask in masks for core in mask]
    return {
        f"rank {rank}": short_list(mask) + ("  (shared with another rank)" if users.count(mask[0]) > 1 else "")
        for rank, mask in enumerate(masks)
    }

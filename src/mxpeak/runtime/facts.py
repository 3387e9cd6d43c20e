"""Collect the facts about a run that all its results share."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalar
from mxpeak.kernels.contract import Kernels
from mxpeak.layout.cores import short_list
from mxpeak.options import Run
from mxpeak.perf.devices import adapter_advice, bus_address, cross_socket, map_lines, rank_location
from mxpeak.perf.host import environment, host_facts, software_facts
from mxpeak.perf.nearest_adapter import adapter_of_each, gpus_in
from mxpeak.records import Caution
from mxpeak.runtime.launch import ADAPTER_VARIABLES, library_name
from mxpeak.runtime.launcher import launcher
from mxpeak.runtime.nodes import node_name, nodes_of
from mxpeak.runtime.placement import Placement


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that all cases of a run share in the result file."""

    argv: list[str]
    config: dict[str, Any]
    machine: dict[str, Any]
    software: dict[str, Any]
    launch: dict[str, Any]
    cautions: list[Caution]

    def sections(self, start_unix: float, end_unix: float, grid: str = "") -> dict[str, Any]:
        """Return the sections of a result that do not depend on the benchmark; `grid` describes the process grid."""
        return {
            "run": self.run_section(start_unix, end_unix),
            "config": self.config,
            "machine": self.machine,
            "software": self.software,
            "launch": {**self.launch, "grid": grid} if grid else self.launch,
        }

    def run_section(self, start_unix: float, end_unix: float) -> dict[str, Any]:
        """Return the section with an identifier of the run, its command line, and its start and end times."""
        return {
            "id": str(uuid.uuid4()),
            "argv": self.argv,
            "start_unix": start_unix,
            "end_unix": end_unix,
            "start": _utc(start_unix),
            "end": _utc(end_unix),
        }


def _utc(unix: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix))


def facts_of(argv: Sequence[str], run: Run[Any], comm: Communicator, placement: Placement, kernels: Kernels) -> Facts:
    """Collect the facts of a run and return them. Collective over comm."""
    of_place = placement.cautions
    if run.config.on_gpu:  # slower cores do not delay a GPU
        of_place = [caution for caution in of_place if caution.code != "hybrid-cores"]
    nodes, devices = placement.nodes, {**kernels.device_facts(), **counted(comm, kernels)}
    return Facts(
        argv=list(argv),
        config=run.section(),
        machine={**host_facts(affinity=placement.before), "nodes": nodes, **devices},
        software={**software_facts(), **kernels.facts(), **mpi_library(comm), "environment": environment()},
        launch=launch_facts(comm, placement, kernels),
        cautions=[*of_place, *gpu_cautions(comm, placement, kernels.device_facts())],
    )


def facts_at_start(argv: Sequence[str], run: Run[Any], comm: Communicator) -> Facts:
    """Return the facts that rank 0 knows before the kernels are loaded, without communication."""
    launched = launcher()
    started_by = launched[0] if launched and comm.size > 1 else "shell"
    return Facts(
        argv=list(argv),
        config=run.section(),
        machine=host_facts(),
        software={**software_facts(), **mpi_library(comm), "environment": environment()},
        launch={"launcher": started_by, "ranks": comm.size, "comm": comm.name},
        cautions=[],
    )


def mpi_library(comm: Communicator) -> dict[str, str]:
    """Return the name and version of the MPI library of the communicator, or an empty dictionary without MPI."""
    if comm.name != "mpi":
        return {}
    from mxpeak.comm.transports.mpi import library_version  # already loaded, because `comm` uses it

    return {"mpi_library": library_name(library_version())}


def counted(comm: Communicator, kernels: Kernels) -> dict[str, int]:
    """Count the GPUs that the ranks use; ranks of a node may share a GPU. Collective over comm."""
    bus = kernels.device_facts().get("device_bus")
    if bus is None:
        return {}
    nodes = nodes_of(comm, bus)
    return {"device_count": int(allreduce_scalar(comm, float(nodes.values.index(bus) == nodes.rank), "sum"))}


def launch_facts(comm: Communicator, placement: Placement, kernels: Kernels) -> dict[str, Any]:
    """Return the launcher, and the cores and devices of all ranks, complete only on rank 0. Collective over comm."""
    launched = launcher()
    ranks = comm.gather_objects(
        {
            "rank": comm.rank,
            "host": node_name(),
            "cores": short_list(placement.cores),
            "threads": placement.threads,
            **kernels.device_facts(),
            **adapter_facts(kernels.device_facts()),
        }
    )
    return {
        "launcher": launched[0] if launched and comm.size > 1 else "shell",
        "ranks": comm.size,
        "comm": comm.name,
        "binding": ranks,
    }


def adapter_facts(device: Mapping[str, Any], root: str | Path = "/") -> dict[str, Any]:
    """Return the network adapter nearest to this rank's GPU, and the variables with which mxpeak selected it."""
    buses = gpus_in(root)
    chosen = dict(zip(buses, adapter_of_each(buses, root)))
    adapter = chosen.get(bus_address(str(device.get("device_bus", ""))))
    return {"adapter": adapter.name, "adapter_variables": dict(ADAPTER_VARIABLES)} if adapter else {}


def gpu_cautions(comm: Communicator, placement: Placement, device: Mapping[str, Any]) -> list[Caution]:
    """Return cautions about ranks whose cores are not on the socket of their GPU. Collective over comm."""
    if "device_bus" not in device:
        return []
    host = node_name()
    location = rank_location(comm.rank, host, placement.cores, device["device"], device["device_bus"])
    ranks = comm.gather_objects(location) or []
    if len(ranks) > 1:
        print("\n".join(map_lines(ranks)), file=sys.stderr, flush=True)
    if len({rank.host for rank in ranks}) > 1 and not ADAPTER_VARIABLES and (advice := adapter_advice(ranks)):
        print(advice, file=sys.stderr, flush=True)
    crossed = list(filter(None, map(cross_socket, ranks)))
    return [
        Caution("cross-socket", text, "let the launcher bind ranks to the cores of their GPU's NUMA node")
        for text in crossed
    ]

"""Choose the source of the sensors of each device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mxpeak.perf.sensors.amd_smi import AmdSmiSensors
from mxpeak.perf.sensors.amdgpu import AmdgpuSensors
from mxpeak.perf.sensors.contract import Sensors
from mxpeak.perf.sensors.cores import CoreSensors
from mxpeak.perf.sensors.nvml import NvmlSensors
from mxpeak.perf.sensors.pm_counters import pm_counters
from mxpeak.perf.sensors.rapl import rapl


def gpu_sensors(pci_bus_id: str, *, amd: bool, root: str | Path = "/") -> Sensors:
    """Return the sensors of the GPU with this PCI address: NVML, amdsmi, or the files of AMD's driver."""
    if not amd:
        return NvmlSensors(pci_bus_id)
    through_library = AmdSmiSensors(pci_bus_id, root)
    return through_library if through_library.available else AmdgpuSensors(pci_bus_id, root)


def sensors(cores: Sequence[int], pci_bus_id: str | None, *, amd: bool = False, root: str | Path = "/") -> Sensors:
    """Return the sensors of the GPU with this PCI address, or of the cores if there is no GPU."""
    return CoreSensors(cores, root) if pci_bus_id is None else gpu_sensors(pci_bus_id, amd=amd, root=root)


def processors(root: str | Path = "/") -> list[Sensors]:
    """Return the energy counters of this host's processor packages, and of their memory if it has a separate counter.

    If RAPL is missing or unreadable, the counters are those of Cray's pm_counters, if the host has them.
    """
    counters: list[Sensors] = [*rapl(root)]
    if any(counter.joules() is not None for counter in counters):
        return counters
    return [*pm_counters("cpu|memory", root)] or counters


def node_sensors(
    cores: Sequence[int], pci_bus_ids: Sequence[str], *, amd: bool = False, root: str | Path = "/"
) -> list[Sensors]:
    """Return the sensors of these cores and GPUs, of all processors of the host, and of the node if it is a Cray."""
    gpus = [gpu_sensors(bus, amd=amd, root=root) for bus in dict.fromkeys(pci_bus_ids)]
    return [CoreSensors(cores, root), *processors(root), *pm_counters(r"accel\d+|node", root), *gpus]

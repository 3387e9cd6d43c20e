"""Choose the cores, threads and GPU of this rank, and load the kernels, compiled before any time measurement."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalars, is_leader, raise_first_error
from mxpeak.comm.devices import check_device_messages
from mxpeak.configs.run import PlaceConfig
from mxpeak.errors import MxpeakError, ResourceError, UsageError
from mxpeak.kernels.choose import (
    GPUS,
    can_emulate_fp64,
    chip_name,
    choose,
    device_norms,
    gpu_buses,
    gpu_count,
    open_device,
    resolve,
    select_blas,
)
from mxpeak.kernels.contract import Kernels
from mxpeak.kernels.contract.norms import NormKernels
from mxpeak.layout.cores import device_groups, devices_near, oversubscribed, short_list, split_masks
from mxpeak.options import AnyRun, Run
from mxpeak.perf.devices import gpu_location
from mxpeak.perf.host import core_groups, idle_cores, one_core_each
from mxpeak.perf.nearest_adapter import Adapter, adapter_of_each
from mxpeak.precision import PRECISIONS
from mxpeak.records import Caution
from mxpeak.runtime.compile import announced, cold_shares, compile_side_by_side
from mxpeak.runtime.launch import bind, local_rank
from mxpeak.runtime.nodes import nodes_of


class Idle(NamedTuple):
    """The number of slower cores that no rank uses, and the number of threads per rank that would use all cores."""

    cores: int
    threads: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The cores and threads of this rank.

    ranks_a_node  number of ranks on the fullest node
    device        the number of this rank's GPU on its node
    shared        whether other ranks of the run also use some of these cores

    The calling thread is bound to cores[0] until `release`. Thread t of the kernels' team binds itself to cores[t].
    """

    cores: list[int]
    threads: int
    local_rank: int
    device: int
    ranks_a_node: int
    nodes: int
    crowded: bool
    shared: bool
    before: list[int]
    idle: Idle | None = None

    def release(self) -> None:
        """Bind the calling thread to its original cores again."""
        bind(self.before)

    @property
    def cautions(self) -> list[Caution]:
        """Return warnings about the placement for the results of the run."""
        cautions = []
        if self.crowded:
            cautions.append(_too_many(self.ranks_a_node))
        elif self.threads > len(self.cores):
            text = f"{self.threads} threads per rank on {len(self.cores)} cores"
            cautions.append(Caution("oversubscribed", text, f"use --threads {len(self.cores)}"))
        if self.idle and self.idle.cores:
            text = f"{self.idle.cores} slower cores stay idle, because equal shares would make the fast cores wait"
            cautions.append(Caution("hybrid-cores", text, f"use --threads {self.idle.threads} for all cores"))
        if pinned := os.environ.get("OPENBLAS_CORETYPE"):
            text = f"OPENBLAS_CORETYPE={pinned} is set, so OpenBLAS uses those kernels on any processor"
            cautions.append(Caution("core-type", text, "unset OPENBLAS_CORETYPE to let OpenBLAS choose"))
        return cautions


def device_number(config: PlaceConfig, comm: Communicator, root: str | Path = "/") -> int:
    """Return the number of the GPU nearest to this rank's cores. Collective over comm.

    Call this function before the ranks are bound. If a launcher shows each rank different GPUs, its choice is used.
    """
    if not config.on_gpu or config.device != GPUS:
        return 0
    nodes = nodes_of(comm, (tuple(one_core_each()), tuple(gpu_buses(config.device))))
    shown = {buses for _, buses in nodes.values}
    if len(shown) > 1 or not all(shown):
        return local_rank(comm)
    device_cores = [gpu_location(bus, root).cores for bus in shown.pop()]
    return devices_near([cores for cores, _ in nodes.values], device_cores)[nodes.rank]


@dataclass(frozen=True, slots=True)
class NormDevices:
    """The norm kernels of a rank.

    each       the kernels of each device, which allocate tiles in the memory of their device
    together   the kernels that read the tiles of all devices
    devices    the devices, or an empty list if there is only one
    """

    each: list[NormKernels]
    together: NormKernels
    devices: list[Any]

    def wait(self) -> None:
        """Wait until all devices have finished. The kernels of a single device are awaited by the caller."""
        for device in self.devices:
            device.wait()


def norm_devices(config: PlaceConfig, comm: Communicator, placement: Placement, own: NormKernels) -> NormDevices:
    """Return the norm kernels of this rank's devices. `own` are the kernels of its first device. Collective over comm.

    Raise an error on every rank if a node has fewer devices than its ranks need.
    """
    each = config.gpus_per_rank
    if each == 1:
        return NormDevices([own], own, [])
    buses = tuple(gpu_buses(config.device)) if config.on_gpu else ()
    nodes = nodes_of(comm, (placement.device % max(1, len(buses)), buses))
    apart = len({shown for _, shown in nodes.values}) > 1  # the launcher shows each rank its own devices
    first, ranks = ([nodes.values[nodes.rank][0]], 1) if apart else ([number for number, _ in nodes.values], nodes.size)
    mistake: MxpeakError | None = None
    if not config.on_gpu or config.device != GPUS:
        mistake = UsageError(
            f"--devices-per-rank {each} needs {each} GPUs per rank, but the device is {config.device}; use --device "
            f"{GPUS}, or remove --devices-per-rank"
        )
    elif ranks * each > len(buses):
        mistake = ResourceError(
            f"{ranks} ranks with {each} devices each need {ranks}*{each} = {ranks * each} devices, but {len(buses)} "
            f"are visible; use --devices-per-rank {max(1, len(buses) // ranks)}, or fewer ranks"
        )
    raise_first_error(comm, mistake)
    mine = device_groups(first, len(buses), each)[0 if apart else nodes.rank]
    opened = [open_device(GPUS, number) for number in reversed(mine)]  # the last one opened is torch's current device
    devices = opened[::-1]
    return NormDevices([device_norms([device]) for device in devices], device_norms(devices), devices)


def bind_to_cores(
    comm: Communicator, threads: int | None, near: Sequence[int] = (), row: int | None = None, number: int = 0
) -> Placement:
    """Assign this rank its share of the node's cores and its threads, and bind it. Collective over comm.

    Call this function before any use of BLAS. Libraries start as many threads as there are visible cores, but only the
    team's threads should run. torch is an exception: mxpeak imports it earlier to read the GPU's bus address, and sets
    its number of threads when kernels are loaded. Ranks that a launcher has bound to different cores keep their cores;
    ranks with the same cores divide them. `near` contains the cores near this rank's device, which has the number
    `number`. If all ranks have such a list, each rank gets a share of its list. `row` is the process row whose ranks
    compute alternately and share all cores except their first.
    """
    nodes = nodes_of(comm, (_usable_cores(), tuple(near), row))
    usable = [of_rank for of_rank, _, _ in nodes.values]
    bound = _bound_cores(usable, threads)
    masks = split_masks(bound, [near_cores for _, near_cores, _ in nodes.values], [of for _, _, of in nodes.values])
    own, every = bound[nodes.rank], usable[nodes.rank].every
    sharing = bound.count(own)
    idle = Idle(len(every) - len(own), len(every) // sharing) if threads is None else None
    cores = list(masks[nodes.rank])
    before, shared = bind(cores[:1]), sum(core in mask for core in cores for mask in masks) > len(cores)
    return Placement(
        cores, threads or len(cores), local_rank(comm), number, nodes.max_ranks, nodes.count,
        oversubscribed(own, sharing), shared, before, idle,
    )  # fmt: skip


class UsableCores(NamedTuple):
    """One core per physical core that a rank may use: the fast ones alone, and all of them."""

    fast: tuple[int, ...]
    every: tuple[int, ...]


def _usable_cores() -> UsableCores:
    """Return the cores that this rank may use. Collective calls pass them to the other ranks of the node."""
    fast = tuple(one_core_each())
    return UsableCores(fast, tuple(sorted({*fast, *idle_cores()})))


def _bound_cores(usable: Sequence[UsableCores], threads: int | None) -> list[tuple[int, ...]]:
    """Return the cores of each rank of a node: the fast ones if they suffice for all ranks with the same cores."""
    return [own.every if (threads or 1) * usable.count(own) > len(own.fast) else own.fast for own in usable]


def cores_near(config: PlaceConfig, number: int, root: str | Path = "/") -> list[int]:
    """Return the cores near this GPU, or an empty list if the system does not report the cores.

    The list is also empty without a GPU. `load_kernels` later reports a missing GPU on all ranks.
    """
    if not config.on_gpu:
        return []
    try:
        return gpu_location(open_device(config.device, number).bus, root).cores
    except MxpeakError:
        return []


def _too_many(ranks: int) -> Caution:
    """Return the caution about a node with more ranks than cores."""
    text = f"{ranks} ranks on a node share fewer cores, which lowers the rates"
    return Caution("oversubscribed", text, "start at most one rank per core")


def map_of_a_node(
    config: PlaceConfig, comm: Communicator, row: int | None = None, root: str | Path = "/"
) -> tuple[list[str], list[Caution]]:
    """Return lines with the GPU, the cores and the network adapter of each rank of a node, and cautions about them.

    The function binds no rank and reads only the addresses of GPUs. The device in `config` must be resolved. Collective
    over comm.
    """
    nodes = nodes_of(comm, (_usable_cores(), tuple(gpu_buses(config.device)), row))
    bound = _bound_cores([usable for usable, _, _ in nodes.values], config.threads)
    shown = {buses for _, buses, _ in nodes.values}
    near: list[list[int]] = [[] for _ in bound]
    gpus, devices = ["-"] * len(bound), [0] * len(bound)
    adapters: list[Adapter] = []
    if config.on_gpu and config.device == GPUS and len(shown) == 1 and (buses := shown.pop()):
        device_cores = [gpu_location(bus, root).cores for bus in buses]
        devices = devices_near(bound, device_cores)
        near, gpus = [device_cores[device] for device in devices], [f"{device} ({buses[device]})" for device in devices]
        adapters = adapter_of_each(buses, root)
    elif config.on_gpu:
        gpus = ["as the launcher shows" if config.device == GPUS else config.device.removeprefix(f"{GPUS}:")] * len(
            bound
        )
    masks = split_masks(bound, near, [of for _, _, of in nodes.values])
    rows = [("rank", "GPU", "cores", "adapter" if adapters else "")]
    for rank, (gpu, mask) in enumerate(zip(gpus, masks)):
        rows.append((str(rank), gpu, short_list(mask), adapters[devices[rank]].name if adapters else ""))
    widths = [max(len(line[column]) for line in rows) for column in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    crowded = oversubscribed({core for mask in masks for core in mask}, len(masks))
    return lines, [_too_many(len(masks))] if crowded else []


def parts_here(config: PlaceConfig) -> int:
    """Return the number of devices on this host, or the number of core groups if no GPU computes.

    Each device or group serves one rank. A group consists of the cores of one third-level cache, or of --threads of
    these cores. If all cores share one cache, each core is a group.
    """
    _, device = resolve(config.kernels, config.device)
    if device != "cpu":
        return gpu_count(device)
    groups = core_groups()
    if config.threads is not None:
        return max(1, sum(map(len, groups)) // config.threads)
    return len(groups) if len(groups) > 1 else max(1, len(groups[0]))


def ranks_here(config: PlaceConfig) -> tuple[int, str]:
    """Return the number of ranks that can have their own device or cores on this host, with the reason."""
    _, device = resolve(config.kernels, config.device)
    if device != "cpu":
        gpus = max(1, gpu_count(device))
        return gpus, f"this host has {gpus} GPUs"
    cores, threads = max(1, len(one_core_each())), config.threads or 1
    return max(1, cores // threads), f"this host has {cores} cores, {threads} per rank"


def has_slow_fp64(config: PlaceConfig, comm: Communicator) -> bool:
    """Return whether this rank's GPU multiplies much slower in fp64 than in fp32. Collective over comm."""
    return config.on_gpu and not open_device(config.device, local_rank(comm)).has_fast_fp64


def emulation_pays(config: PlaceConfig, comm: Communicator) -> bool:
    """Return whether the GPU of every rank multiplies slowly in fp64 and can emulate fp64. Collective over comm."""
    if not config.on_gpu:
        return False
    device = open_device(config.device, local_rank(comm))
    return comm.agree(not device.has_fast_fp64 and can_emulate_fp64(device))


def threads_of(comm: Communicator) -> int:
    """Return the default number of threads per rank. Collective over comm."""
    placement = bind_to_cores(comm, None)
    placement.release()
    return placement.threads


def on_device(run: AnyRun) -> AnyRun:
    """Return the run with kernels and device resolved, and with the defaults of this device."""
    name, device = resolve(run.config.kernels, run.config.device)
    chosen: dict[str, Any] = {"kernels": name, "device": device}
    if device != "cpu":
        chosen |= _open_values(run, gpu_defaults(run.config, device))
    return run.with_choices(chosen)


def gpu_defaults(config: PlaceConfig, device: str) -> Mapping[str, Any]:
    """Return the default settings for runs on this GPU."""
    return config.on_chip(chip_name(device))


def on_processor(run: AnyRun, native: Collection[str]) -> AnyRun:
    """Return the run with the defaults of a processor that multiplies these precisions natively."""
    return run.with_choices(_open_values(run, run.config.natively(native)))


def _open_values(run: Run[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of `values` for settings that no source has set."""
    defaults = type(run.config).__dataclass_fields__
    return {
        name: value
        for name, value in values.items()
        if run.is_default(name) and getattr(run.config, name) == defaults[name].default
    }


def native_precisions(config: PlaceConfig) -> frozenset[str]:
    """Return the low precisions that this rank's processor multiplies natively, or an empty set if a GPU computes."""
    if config.kernels != "host":
        return frozenset()
    from mxpeak.kernels.host.engine.matrix_engines import chosen

    return frozenset(engine.precision for engine in chosen())


def load_kernels(
    config: PlaceConfig, placement: Placement, comm: Communicator, *, blas_hint: str = ""
) -> tuple[Kernels, Communicator]:
    """Return the kernels, and the communicator that exchanges their arrays.

    `blas_hint` is added to the error of a BLAS library that cannot be used, which is raised before compilation.

    One rank per cache folder compiles kernels at their first use, and the other ranks load the machine code. If a
    device is missing on one rank, all ranks raise an error. A precision is native only if all processors multiply it
    natively, because the operand layouts differ. Collective.
    """
    from mxpeak.kernels.host.engine.cache import cache_directory, is_cached, token

    mistake: MxpeakError | None = None
    try:
        _select_blas(config, blas_hint)
    except MxpeakError as error:
        mistake = error
    raise_first_error(comm, mistake)  # raise it before the compilation, which takes minutes
    panels = leaves_panels(config, comm.size)
    compiled = _compiled(config, panels)
    multiplied = native_precisions(config)
    lacked = allreduce_scalars(comm, [float(name not in multiplied) for name in PRECISIONS], "max")
    native = frozenset(name for name, lacks in zip(PRECISIONS, lacked) if not lacks)
    leader = is_leader(comm, token())
    kernels: Kernels | None = None
    compiled_here = not compiled or (is_cached() and not cold_shares(compiled))
    cold = not comm.agree(compiled_here or not leader)
    text = f"first use: compiling kernels into {cache_directory()} (once, a minute or more)"
    with announced(text, compiled) if cold and comm.rank == 0 else nullcontext() as compiles:
        if compiles is not None:
            compiles.set()
        for first in (True, False):
            if leader == first:
                try:
                    if leader:
                        compile_side_by_side(compiled, placement.before)
                    kernels = choose(
                        config.kernels,
                        config.device,
                        placement.threads,
                        placement.cores,
                        placement.device,
                        native,
                        alone=not placement.shared,
                        panels=panels,
                        emulated=config.fp64_products == "emulated",
                    )
                except MxpeakError as error:
                    mistake = error
            comm.barrier()
    raise_first_error(comm, mistake)
    assert kernels is not None
    if kernels.transport is None:
        return kernels, comm
    if not config.on_gpu:
        return kernels, comm.with_transport(kernels.transport)
    return kernels, check_device_messages(comm, kernels.transport)


def _select_blas(config: PlaceConfig, hint: str) -> None:
    """Select the BLAS library of the configuration; add the hint to the error if the library cannot be used."""
    try:
        select_blas(config.kernels, config.blas)
    except ResourceError as error:
        if not hint:
            raise
        raise ResourceError(f"{error}; {hint}") from None


def leaves_panels(config: PlaceConfig, ranks: int) -> bool:
    """Return whether the host factors a device matrix's panels, because several ranks share a process column."""
    return config.kernels == "torch" and config.leaves_panels(ranks)


def _compiled(config: PlaceConfig, panels: bool) -> str:
    """Return the name of the set of host kernels that is compiled in advance, or an empty string for most GPUs."""
    from mxpeak.kernels.host.engine.first_use import LOADING, LOADING_PANELS

    if config.kernels == "host":
        return LOADING
    return LOADING_PANELS if panels else ""

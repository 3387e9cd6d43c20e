"""Where this rank computes: its cores, its threads, and the kernels that are compiled before any clock starts."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from mxpeak.bench.facts import Facts
from mxpeak.comm.base import Communicator
from mxpeak.comm.devices import check_device_messages
from mxpeak.comm.launch import bind, hosts, launcher, local_rank, ranks_a_node
from mxpeak.configs import RunConfig
from mxpeak.errors import MxpeakError
from mxpeak.kernels.contract import Kernels, choose, settled
from mxpeak.layout.cores import core_masks, core_ranges, oversubscribed
from mxpeak.options import Setting
from mxpeak.perf.devices import cross_socket, map_lines, rank_place
from mxpeak.perf.host import environment, host_facts, one_core_each, software_facts
from mxpeak.records import Caution

AnyConfig = TypeVar("AnyConfig", bound=RunConfig)

#: Seconds after which a first use that compiles says so.
SILENT_S = 1.0


@dataclass(frozen=True, slots=True)
class Placement:
    """The cores and threads of this rank; `ranks_a_node` ranks share the fullest of the nodes.

    The calling thread is bound to cores[0] until `release`; thread t of the kernels' team binds itself to cores[t].
    """

    cores: list[int]
    threads: int
    local_rank: int
    ranks_a_node: int
    nodes: int
    crowded: bool
    before: list[int]

    def release(self) -> None:
        """Give the calling thread back the cores that it had before."""
        bind(self.before)

    @property
    def cautions(self) -> list[Caution]:
        """What a reader of the result should know about it."""
        found = []
        if self.crowded:
            text = f"{self.ranks_a_node} ranks share fewer cores on a node: rates are lower than the machine's"
            found.append(Caution("oversubscribed", text, "start at most one rank per core"))
        elif self.threads > len(self.cores):
            text = f"{self.threads} threads a rank on {len(self.cores)} cores"
            found.append(Caution("oversubscribed", text, f"use --threads {len(self.cores)}"))
        if pinned := os.environ.get("OPENBLAS_CORETYPE"):
            text = f"OPENBLAS_CORETYPE={pinned} is set: OpenBLAS uses those kernels, whatever the processor could do"
            found.append(Caution("core-type", text, "unset OPENBLAS_CORETYPE to let OpenBLAS choose"))
        return found


def place(comm: Communicator, threads: int | None) -> Placement:
    """Settle this rank's share of the node's cores and its threads, and bind it.  Collective over comm.

    Call it before anything loads BLAS: libraries start as many threads as they see cores, and none but the team's are
    wanted.  A launcher that has bound the ranks of a node to different cores is left alone.
    """
    mine = one_core_each()
    nodes = hosts(comm)
    here = [rank for rank, node in enumerate(nodes) if node == nodes[comm.rank]]
    place_here = here.index(comm.rank)
    masks = comm.bcast_object(comm.gather_objects(mine))
    bound_already = len({tuple(masks[rank]) for rank in here}) > 1
    cores = mine
    crowded = oversubscribed(mine, len(here)) and not bound_already
    if len(here) > 1 and not bound_already:
        cores = core_masks(mine, (1, len(here)), None, share=False)[place_here]
    before = bind(cores[:1])
    return Placement(
        cores, threads or len(cores), local_rank(comm), ranks_a_node(nodes), len(set(nodes)), crowded, before
    )


def on_device(config: AnyConfig, settings: Mapping[str, Setting]) -> tuple[AnyConfig, dict[str, Setting]]:
    """The configuration with kernels and device settled, and with what is another default there."""
    name, device = settled(config.kernels, config.device)
    changed: dict[str, Any] = {"kernels": name, "device": device}
    if device != "cpu":
        asked = {key for key, setting in settings.items() if setting.origin != "default"}
        changed |= {key: value for key, value in config.GPU_DEFAULTS.items() if key not in asked and _open(config, key)}
    new = {key: Setting(value, "auto") for key, value in changed.items() if getattr(config, key) != value}
    return replace(config, **changed), {**settings, **new}


def _open(config: RunConfig, name: str) -> bool:
    """Whether a setting has the value that it has where nobody says anything."""
    return bool(getattr(config, name) == type(config).__dataclass_fields__[name].default)


def load_kernels(config: RunConfig, placement: Placement, comm: Communicator) -> tuple[Kernels, Communicator]:
    """The kernels, and the ranks as these talk to each other with the kernels' arrays.

    Compiled (on first use) by one rank per cache folder and loaded by the others; a device that one rank has not is
    an error on all.  Collective.
    """
    from mxpeak.kernels.host.compiled import cache_directory, is_cached, token

    folders = comm.bcast_object(comm.gather_objects(token()))
    leader = folders.index(folders[comm.rank]) == comm.rank
    if comm.rank == 0 and config.kernels != "reference" and not is_cached():
        where = cache_directory()
        print(f"first use: compiling kernels into {where} (about ten seconds)", file=sys.stderr, flush=True)
    kernels: Kernels | None = None
    mistake: MxpeakError | None = None
    for turn in (True, False):
        if leader == turn:
            try:
                kernels = choose(
                    config.kernels, config.device, placement.threads, placement.cores, placement.local_rank
                )
            except MxpeakError as error:
                mistake = error
        comm.barrier()
    mistakes = comm.bcast_object(comm.gather_objects(mistake))
    for rank, wrong in enumerate(mistakes):
        if wrong is not None:
            raise wrong if comm.size == 1 else type(wrong)(f"rank {rank}: {wrong}")
    assert kernels is not None
    if kernels.carrier is None:
        return kernels, comm
    if not config.on_gpu:
        return kernels, comm.carried(kernels.carrier)
    return kernels, check_device_messages(comm, kernels.carrier)


def gpu_cautions(comm: Communicator, placement: Placement, place: Mapping[str, Any]) -> list[Caution]:
    """Where ranks compute beside another socket than their GPU's; rank 0 shows who has which.  Collective over comm."""
    if "device_bus" not in place:
        return []
    host = os.uname().nodename
    mine = rank_place(comm.rank, host, placement.cores, place["device"], place["device_bus"])
    ranks = comm.gather_objects(mine) or []
    if len(ranks) > 1:
        print("\n".join(map_lines(ranks)), file=sys.stderr, flush=True)
    crossed = list(filter(None, map(cross_socket, ranks)))
    return [Caution("cross-socket", text, "let the launcher bind ranks beside their GPUs") for text in crossed]


def compile_in_turn(comm: Communicator, what: str, use: Callable[[], None]) -> None:
    """Use kernels that compile when first used: one rank a cache folder first, the others load what it made.

    Says so on rank 0 where it does not end at once.  Collective over comm.
    """
    from mxpeak.kernels.host.compiled import token

    folders = comm.bcast_object(comm.gather_objects(token()))
    leads = folders.index(folders[comm.rank]) == comm.rank
    text = f"{what}: compiling its kernels (about ten seconds)"
    timer = threading.Timer(SILENT_S, lambda: print(text, file=sys.stderr, flush=True))
    if comm.rank == 0:
        timer.start()
    try:
        for turn in (True, False):
            if leads == turn:
                use()
            comm.barrier()
    finally:
        timer.cancel()


def facts_of(
    argv: Sequence[str], settings: Mapping[str, Setting], comm: Communicator, placement: Placement, kernels: Kernels
) -> Facts:
    """What all cases of one run share in the result file.  Collective over comm."""
    return Facts(
        argv=list(argv),
        config={name: {"value": s.value, "origin": s.origin} for name, s in settings.items()},
        machine={**host_facts(affinity=placement.before), "nodes": placement.nodes, **kernels.place()},
        software={**software_facts(), **kernels.facts(), "environment": environment()},
        launch=launch_facts(comm, placement, kernels),
        cautions=[*placement.cautions, *gpu_cautions(comm, placement, kernels.place())],
    )


def launch_facts(comm: Communicator, placement: Placement, kernels: Kernels) -> dict[str, Any]:
    """Who started the run, and what each rank got.  Collective over comm; whole on rank 0."""
    found = launcher()
    ranks = comm.gather_objects(
        {"rank": comm.rank, "host": os.uname().nodename, "cores": core_ranges(placement.cores),
         "threads": placement.threads, **kernels.place()}
    )  # fmt: skip
    return {"launcher": found[0] if found and comm.size > 1 else "shell", "ranks": comm.size, "binding": ranks}

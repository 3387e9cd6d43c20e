"""Determine the memory of each node, the memory that a case needs, and the largest problem that fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalars, raise_first_error
from mxpeak.comm.transports.solo import DryRunCommunicator
from mxpeak.configs.run import PlaceConfig
from mxpeak.errors import MxpeakError
from mxpeak.kernels.choose import gpu_count, open_device
from mxpeak.options import Run, memory_bytes
from mxpeak.perf.counts import Footprint, largest_n
from mxpeak.perf.host import available_memory_bytes, total_memory_bytes
from mxpeak.records import size_text
from mxpeak.runtime.nodes import nodes_of
from mxpeak.runtime.placement import device_number

#: Share of the free memory that a plan may use. The rest is for Python, MPI and the padding of rows.
MARGIN = 0.95


@dataclass(frozen=True, slots=True)
class Budget:
    """The memory in bytes of the node with the least memory.

    limit     the memory that a case may use
    default   the memory that a default size may use
    total     all memory of the node

    Every node is assumed to have `ranks_a_node` ranks, the number of ranks on the fullest node. If GPUs compute, the
    memory of a node is the memory of its ranks' GPUs.
    """

    limit: int
    default: int
    ranks_a_node: int
    of: str = "per node"
    total: int = 2**63

    @property
    def available(self) -> str:
        """Return a text with the memory that a case may use."""
        return f"only {size_text(self.limit)} {self.of} is available"

    def need(self, footprint: Footprint, n: int, nb: int, P: int, Q: int) -> int:
        """Return the bytes that a case needs on the node with the most ranks."""
        total, ranks = footprint(n, nb, P, Q)["total"], P * Q
        return total * min(self.ranks_a_node, ranks) // ranks

    def fits(self, footprint: Footprint, n: int, nb: int, P: int, Q: int) -> bool:
        """Return whether a case fits on every node; the result is the same on all ranks."""
        return self.need(footprint, n, nb, P, Q) <= self.limit

    def default_n(self, footprint: Footprint, nb: int, P: int, Q: int) -> int:
        """Return the largest order N that fits in the memory for a default size."""
        return self._largest(self.default, footprint, nb, P, Q)

    def share_n(self, share: float, footprint: Footprint, nb: int, P: int, Q: int) -> int:
        """Return the largest order N that uses this share of the total memory, regardless of the free memory."""
        return self._largest(int(share * self.total), footprint, nb, P, Q)

    def too_large(self, footprint: Footprint, n: int, nb: int, P: int, Q: int) -> str:
        """Return a text that explains why a case does not fit, and states the largest size that fits."""
        parts = footprint(n, nb, P, Q)
        limit = self._largest(self.limit, footprint, nb, P, Q)
        return (
            f"N = {n} needs {size_text(parts['matrix'])} for the matrix ({parts['matrix'] / n**2:.3g}*N*N "
            f"bytes), and {size_text(self.need(footprint, n, nb, P, Q))} {self.of} with buffers, but only "
            f"{size_text(self.limit)} is available (free memory less {1 - MARGIN:.0%}, or --mem); use -N "
            f"{limit}, the largest N that fits"
        )

    def _largest(self, node_bytes: int, footprint: Footprint, nb: int, P: int, Q: int) -> int:
        return largest_n(node_bytes * P * Q // min(self.ranks_a_node, P * Q), nb, P, Q, footprint)


def memory_budget(run: Run[Any], comm: Communicator, number: int | None = None) -> Budget:
    """Return the memory budget: the free memory minus a margin, but at most --mem if the user gives it.

    `number` is the number of this rank's GPU in its placement, or None before ranks are bound. Collective over comm.
    """
    config, ranks = run.config, nodes_of(comm, None).max_ranks
    total, free = _gpu_memory(config, comm, number) if config.on_gpu else _host_memory()
    requested, free = memory_bytes(config.mem, total), int(MARGIN * free)
    here = (free if run.is_default("mem") else min(free, requested), min(free, requested))
    limit, default, least = (
        int(-least) for least in allreduce_scalars(comm, [-float(one) for one in (*here, total)], "max")
    )
    return Budget(limit, default, ranks, "on a node's GPUs" if config.on_gpu else "per node", least)


def _host_memory() -> tuple[int, int]:
    return total_memory_bytes() or 2**63, available_memory_bytes() or 2**63


def _gpu_memory(config: PlaceConfig, comm: Communicator, number: int | None) -> tuple[int, int]:
    """Return the total and the free GPU memory, in bytes, of a node with the most ranks.

    All ranks of this node are assumed to have GPUs like this one; ranks may share a GPU. Collective over comm.
    """
    number = device_number(config, comm) if number is None else number
    mistake, here, device = None, (0, 0), ""
    try:
        device_opened = open_device(config.device, number)
        here, device = device_opened.memory(), str(device_opened.where)
    except MxpeakError as error:
        mistake = error
    raise_first_error(comm, mistake)
    nodes = nodes_of(comm, device)
    sharing = nodes.values.count(device)
    if isinstance(comm, DryRunCommunicator):  # the only process answers for all ranks, which share the GPUs
        sharing = -(-nodes.size // gpu_count(config.device))
    ranks = nodes.max_ranks * config.gpus_per_rank
    return ranks * here[0] // sharing, ranks * here[1] // sharing

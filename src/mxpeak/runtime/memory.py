"""How large a problem may be: what each node can give, what a case needs there, and what fits."""

from __future__ import annotations

from dataclasses import dataclass

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalars, raise_first_error
from mxpeak.comm.transports.dry_run import DryRunCommunicator
from mxpeak.configs.run import PlaceConfig
from mxpeak.errors import MxpeakError
from mxpeak.kernels.choose import gpu_count, open_device
from mxpeak.options import Setting, memory_bytes
from mxpeak.perf.counts import Footprint, largest_n
from mxpeak.perf.host import available_memory_bytes, total_memory_bytes
from mxpeak.records import size_text
from mxpeak.runtime.nodes import nodes_of
from mxpeak.runtime.placement import device_number

#: Share of the free memory that may be planned for: Python, MPI and the padding of rows come on top.
MARGIN = 0.95


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes that the poorest node can give: at most, and to a problem whose size was left open; and all that it has.

    Nodes are counted as if each held `ranks_a_node` ranks, as the fullest does.  Where GPUs compute, a node's memory
    is that of its ranks' GPUs.
    """

    most: int
    default: int
    ranks_a_node: int
    of: str = "per node"
    total: int = 2**63

    def need(self, footprint: Footprint, n: int, nb: int, P: int, Q: int) -> int:
        """Bytes that a case needs on a full node."""
        total, ranks = footprint(n, nb, P, Q)["total"], P * Q
        return total * min(self.ranks_a_node, ranks) // ranks

    def fits(self, footprint: Footprint, n: int, nb: int, P: int, Q: int) -> bool:
        """Whether every node has room for a case; the same answer on every rank."""
        return self.need(footprint, n, nb, P, Q) <= self.most

    def default_n(self, footprint: Footprint, nb: int, P: int, Q: int) -> int:
        """The largest order for a problem whose size was left open."""
        return self._largest(self.default, footprint, nb, P, Q)

    def share_n(self, share: float, footprint: Footprint, nb: int, P: int, Q: int) -> int:
        """Return the largest order that takes this share of all memory, whatever is free now."""
        return self._largest(int(share * self.total), footprint, nb, P, Q)

    def too_large(self, footprint: Footprint, n: int, nb: int, P: int, Q: int) -> str:
        """Why a case does not fit, and what would."""
        parts = footprint(n, nb, P, Q)
        most = self._largest(self.most, footprint, nb, P, Q)
        return (
            f"N = {n} needs {size_text(parts['matrix'])} for the matrix ({parts['matrix'] / n**2:.3g}*N*N "
            f"bytes), and {size_text(self.need(footprint, n, nb, P, Q))} {self.of} with buffers, but only "
            f"{size_text(self.most)} is available (free memory less {1 - MARGIN:.0%}, or --mem); use -N "
            f"{most}, the largest N that fits"
        )

    def _largest(self, node_bytes: int, footprint: Footprint, nb: int, P: int, Q: int) -> int:
        return largest_n(node_bytes * P * Q // min(self.ranks_a_node, P * Q), nb, P, Q, footprint)


def memory_budget(
    config: PlaceConfig, settings: dict[str, Setting], comm: Communicator, number: int | None = None
) -> Budget:
    """What is free now, less a margin for all that is not counted; an explicit --mem caps it.

    `number`: that of this rank's GPU, as a placement has it; None: of no bound rank.  Collective over comm.
    """
    ranks = nodes_of(comm, None).most
    total, free = _gpu_memory(config, comm, number) if config.on_gpu else _host_memory()
    asked, free = memory_bytes(config.mem, total), int(MARGIN * free)
    explicit = settings.get("mem", Setting("", "default")).origin != "default"
    mine = (min(free, asked) if explicit else free, min(free, asked))
    most, default, least = (
        int(-least) for least in allreduce_scalars(comm, [-float(one) for one in (*mine, total)], "max")
    )
    return Budget(most, default, ranks, "on a node's GPUs" if config.on_gpu else "per node", least)


def _host_memory() -> tuple[int, int]:
    return total_memory_bytes() or 2**63, available_memory_bytes() or 2**63


def _gpu_memory(config: PlaceConfig, comm: Communicator, number: int | None) -> tuple[int, int]:
    """What a full node's ranks have on their GPUs, if each has what this one has; ranks may share one."""
    number = device_number(config, comm) if number is None else number
    mistake, mine, device = None, (0, 0), ""
    try:
        found = open_device(config.device, number)
        mine, device = found.memory(), str(found.where)
    except MxpeakError as error:
        mistake = error
    raise_first_error(comm, mistake)
    nodes = nodes_of(comm, device)
    sharing = nodes.told.count(device)
    if isinstance(comm, DryRunCommunicator):  # which all say what this one says: each would have the next GPU
        sharing = -(-nodes.here // gpu_count(config.device))
    return nodes.most * mine[0] // sharing, nodes.most * mine[1] // sharing

"""Orders of LU runs with --quick: fixed for a class of machine, so that all quick runs of a machine have one problem.

A class is what does not change from run to run.  A measured rate does: it would give another N on another day.

host    cores that compute, and how fast products of the precision are by design
GPU     its memory, and whether its products in fp64 are as fast as those in fp32
"""

from __future__ import annotations

from dataclasses import dataclass

#: Seconds that a run on the host should take, and the flop/s in fp64 that a core of a server sustains meanwhile.
HOST_S, CORE_RATE = 8.0, 35e9
#: The largest orders: beyond them a share of the limit hardly grows.
HOST_MOST, GPU_MOST = 19968, 79872
#: Orders are multiples of these: NB of 64, 96, 128, 192, 256, 384 and 512 divide 1536, so that tune does not change N.
HOST_STEP, GPU_STEP = 1536, 3072
#: The order for kernels that are written to be read.
REFERENCE_N = 512
#: Share of a node's memory that a quick run may fill; of a GPU whose products in fp64 are slow, where time binds.
SHARE, SLOW_FP64_SHARE = 1 / 4, 1 / 16


@dataclass(frozen=True, slots=True)
class Machine:
    """What the order of a quick run depends on.

    cores       cores that compute, over all ranks
    speed       of products, by design and compared with fp64: 2 in fp32, 4 in 16 bits that the processor multiplies
    on_gpu      whether GPUs compute
    slow_fp64   whether products in fp64 are asked of a GPU that is slow at them
    reference   whether the reference kernels compute
    """

    cores: int = 1
    speed: float = 1.0
    on_gpu: bool = False
    slow_fp64: bool = False
    reference: bool = False

    @property
    def step(self) -> int:
        """The distance between two orders."""
        return GPU_STEP if self.on_gpu else HOST_STEP

    @property
    def most(self) -> int:
        """The largest order, by time: n^3 = 3/2 flops."""
        if self.on_gpu:
            return GPU_MOST
        if self.reference:
            return REFERENCE_N
        return min(HOST_MOST, int((1.5 * self.cores * self.speed * CORE_RATE * HOST_S) ** (1 / 3)))

    @property
    def share(self) -> float:
        """The share of the memory that may be filled."""
        return SLOW_FP64_SHARE if self.slow_fp64 else SHARE

    def order(self, largest: int) -> int:
        """Return the order, where `largest` is the largest one that the share of the memory holds."""
        n = min(self.most, largest)
        return n // self.step * self.step or n

"""Choose the orders of LU runs with --quick. They are fixed per class of machine, so that quick runs are comparable.

A class depends only on properties that do not change from run to run. An order derived from a measured rate would
differ between runs.

host    the number of cores that compute, and the nominal speed of products in the precision
GPU     its memory, and whether its products in fp64 are as fast as those in fp32
"""

from __future__ import annotations

from dataclasses import dataclass

#: Intended seconds of a run on the host, and the flop/s in fp64 that a core of a server sustains.
HOST_S, CORE_RATE = 8.0, 35e9
#: The largest orders: the share of the limit hardly grows with larger orders.
HOST_MAX_N, GPU_MAX_N = 19968, 79872
#: Orders are multiples of these numbers. NB of 64, 96, 128, 192, 256, 384 and 512 divide 1536, so tuned values of NB
#: do not change N.
HOST_STEP, GPU_STEP = 1536, 3072
#: The order for the reference kernels.
REFERENCE_N = 512
#: Share of the memory that a quick run may fill. It is smaller on a GPU with slow fp64, because time is the limit.
SHARE, SLOW_FP64_SHARE = 1 / 4, 1 / 16


@dataclass(frozen=True, slots=True)
class MachineClass:
    """The class of a machine, which determines the order of a quick run.

    cores       number of cores that compute, over all ranks
    speed       nominal speed of products relative to fp64: 2 in fp32, 4 in native 16-bit formats
    on_gpu      whether GPUs compute
    slow_fp64   whether the run multiplies in fp64 on a GPU with slow fp64
    reference   whether the reference kernels compute
    """

    cores: int = 1
    speed: float = 1.0
    on_gpu: bool = False
    slow_fp64: bool = False
    reference: bool = False

    @property
    def step(self) -> int:
        """Return the step between two possible orders; every order is a multiple of the step."""
        return GPU_STEP if self.on_gpu else HOST_STEP

    @property
    def max_order(self) -> int:
        """Return the largest order for the intended duration of a quick run, from 2/3 n^3 = flops in this time."""
        if self.on_gpu:
            return GPU_MAX_N
        if self.reference:
            return REFERENCE_N
        return min(HOST_MAX_N, int((1.5 * self.cores * self.speed * CORE_RATE * HOST_S) ** (1 / 3)))

    @property
    def share(self) -> float:
        """Return the share of the memory that a quick run may fill."""
        return SLOW_FP64_SHARE if self.slow_fp64 else SHARE

    def order(self, largest: int) -> int:
        """Return the order of a quick run: a multiple of the step, at most `max_order` and at most `largest`."""
        n = min(self.max_order, largest)
        return n // self.step * self.step or n

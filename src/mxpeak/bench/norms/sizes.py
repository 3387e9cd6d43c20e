"""Choose the default size of the norms benchmark, and check structures and memory."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt

from mxpeak.bench.harness import check_grids
from mxpeak.bench.norms.config import NormsCase, NormsConfig
from mxpeak.bench.norms.matrix import footprint
from mxpeak.bench.norms.scalapack import check_comparison
from mxpeak.comm.base import Communicator
from mxpeak.configs.norms import OF_STRUCTURES, STRUCTURES
from mxpeak.errors import UsageError
from mxpeak.layout.structure import Structure, structure
from mxpeak.options import alternatives
from mxpeak.perf.counts import Footprint
from mxpeak.records import Caution, size_text
from mxpeak.runtime.memory import Budget

#: The default size, and the bytes of the largest matrix with --quick.
DEFAULT_N, QUICK_BYTES = 10240, 256 * 10**6
GPU_N, GPU_QUICK_BYTES = 40960, 8 * 10**9


def check(config: NormsConfig, comm: Communicator) -> tuple[tuple[int, int], ...]:
    """Return all process grids; raise a UsageError on every rank if a case cannot be run."""
    if config.min_gflops is not None:
        raise UsageError(
            f"--min-gflops {config.min_gflops:g} applies to rates in GFLOP/s, but mxpeak measures norms in "
            "GB/s; remove --min-gflops"
        )
    grids = check_grids(config, comm)
    cases = list(config.cases(comm.size, [DEFAULT_N]))
    for case in cases:
        structure_of(case)
    check_comparison(config, comm, cases)
    return grids


def not_used(case: NormsCase) -> list[str]:
    """Return the settings that have no effect on a case."""
    names = [name for name in OF_STRUCTURES if name not in STRUCTURES[case.structure]]
    return names + ["nb"] * (case.tiles is not None)


def without_effect(config: NormsConfig, origins: Mapping[str, str]) -> list[Caution]:
    """Return a caution for each option that the user chose and that no case uses."""

    def is_chosen(name: str) -> bool:
        return origins.get(name, "default") not in ("default", "auto", "tuned")

    cautions = []
    if config.tiles is not None and is_chosen("nb"):
        text = "--nb has no effect with --tiles, which sets the sizes of the blocks"
        cautions.append(Caution("unused", text, "remove --nb"))
    used = {name for structure in config.structure for name in STRUCTURES[structure]}
    for name in OF_STRUCTURES:
        if name not in used and is_chosen(name):
            text = f"--{name} has no effect on {' and '.join(config.structure)} matrices"
            structures = alternatives([other for other, names in STRUCTURES.items() if name in names])
            cautions.append(Caution("unused", text, f"remove --{name}, or use --structure {structures}"))
    return cautions


def structure_of(case: NormsCase) -> Structure:
    """Return the structure of a case's matrix; raise a UsageError if its options are invalid."""
    try:
        return structure(case.structure, case.m, case.n, uplo=case.uplo, diag=case.diag, kl=case.kl, ku=case.ku)
    except UsageError as error:
        raise UsageError(f"--structure {case.structure}: {error}, or remove -m") from None


def matrix_of(case: NormsCase) -> tuple[object, ...]:
    """Return the settings that identify the matrix of a case, as a key for grouping."""
    return case.P, case.Q, case.m, case.n, case.nb, case.tiles, case.seed, case.dtype, case.layout


def matrix_bytes(case: NormsCase) -> int:
    """Return the size of the whole matrix in bytes."""
    return case.m * case.n * case.itemsize


def read_bytes(case: NormsCase) -> int:
    """Return the bytes that a norm reads, which are those of the structure's entries."""
    return structure_of(case).entries * case.itemsize


class NormsSizes:
    """The cases of a run and their memory, identical on every rank. The constructor is collective."""

    def __init__(self, config: NormsConfig, comm: Communicator, budget: Budget, threads: int):
        self._config, self._ranks, self._budget, self._threads = config, comm.size, budget, threads
        self.cautions: list[Caution] = []
        self._n = None if config.n is not None else [int(comm.bcast_object(self._default_n()))]

    def cases(self) -> list[NormsCase]:
        """Return all cases of the run."""
        return list(self._config.cases(self._ranks, self._n))

    def memory(self, case: NormsCase) -> dict[str, int]:
        """Return the bytes over all ranks: of the matrix, of the buffers, and in total."""
        return self._footprint(case)(case.n, case.nb, case.P, case.Q)

    def fits(self, case: NormsCase) -> bool:
        """Return whether a case fits into every node's memory."""
        return self._budget.fits(self._footprint(case), case.n, case.nb, case.P, case.Q)

    def too_large(self, case: NormsCase) -> str:
        """Return the message for a case that does not fit into memory."""
        if self._config.m is None:
            return self._budget.too_large(self._footprint(case), case.n, case.nb, case.P, case.Q)
        need = self._budget.need(self._footprint(case), case.n, case.nb, case.P, case.Q)
        return (
            f"a {case.m}x{case.n} {case.dtype} matrix needs {size_text(matrix_bytes(case))}, or "
            f"{size_text(need)} per node with buffers, but {size_text(self._budget.limit)} per node is "
            "available (free memory, or --mem); use a smaller -m or -N"
        )

    def line(self, case: NormsCase) -> str:
        """Return the dry-run line with the matrix sizes and the memory of a case."""
        need, ranks = self.memory(case), case.P * case.Q
        text = (
            f"{case.m}x{case.n} {case.dtype} {case.layout}  NB {case.blocks}  grid {case.P}x{case.Q}: matrix "
            f"{size_text(need['matrix'])} and buffers {size_text(need['buffers'])}, "
            f"{size_text(need['total'] / ranks)} per rank"
        )
        return text if self.fits(case) else f"{text}; does not fit: {self._budget.available}"

    def _footprint(self, case: NormsCase) -> Footprint:
        return footprint(case, square=self._config.m is None, threads=self._threads)

    def _default_n(self) -> int:
        """Choose the default number of columns, or a smaller one for --quick.

        If the matrix does not fit into memory, reduce the number and record a warning.
        """
        config = self._config
        wanted, quick = (GPU_N, GPU_QUICK_BYTES) if config.on_gpu else (DEFAULT_N, QUICK_BYTES)
        models = list(config.cases(self._ranks, [wanted]))
        model = max(models, key=lambda case: self.memory(case)["total"])
        nb = max(config.nb)
        if config.quick:
            n = isqrt(quick // model.itemsize)
            wanted = n // nb * nb or n
        fitting = self._budget.default_n(self._footprint(model), nb, model.P, model.Q)
        if fitting < wanted:
            total = self._footprint(model)(wanted, nb, model.P, model.Q)["total"]
            text = (
                f"N = {wanted} needs {size_text(total)}, but {size_text(self._budget.default)} per node can be used; "
                f"N = {fitting} is used instead"
            )
            self.cautions.append(Caution("size", text, "use -N, or a larger --mem"))
        return min(fitting, wanted)

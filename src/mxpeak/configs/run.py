"""Options of every benchmark: hardware, measurement and output."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from mxpeak.errors import UsageError
from mxpeak.options import (
    Setting,
    ValueParser,
    boolean,
    device,
    integer,
    listed,
    memory_budget,
    one_of,
    option,
    real,
    seconds,
    share,
    stall_limit,
    users_file,
    users_folder,
)

#: The formats of --format for continuous integration, which every benchmark supports.
CI_FORMATS = ("junit", "bencher")
#: The values of --kernels.
BACKENDS = ("auto", "reference", "host", "torch")
#: The names of BLAS libraries that --blas accepts in addition to "scipy" and to paths.
BLAS_LIBRARIES = ("openblas", "mkl", "blis", "accelerate", "armpl", "nvpl")


def _blas_name(text: str) -> str:
    """Check that the text is the name of a BLAS library or looks like a path, and return the text."""
    names = ("scipy", *BLAS_LIBRARIES)
    if text not in names and not re.search(r"[/\\.]", text):
        raise UsageError(f"{text!r} is not a BLAS library; use one of {', '.join(names)}, or a path with a slash")
    return text


blas_library = ValueParser(_blas_name, "{scipy,openblas,mkl,blis,PATH}")


@dataclass(frozen=True, kw_only=True)
class PlaceConfig:
    """Options that select where a computation runs: device, kernels, ranks, threads and memory.

    GPU_DEFAULTS   values that are the defaults on a GPU
    CHIP_NB        best NB by a word in the name of a GPU, with its source
    """

    device: str = option("auto", device, "device to compute on", "hardware", "{auto,cpu,cuda,cuda:0,...}")
    kernels: str = option(
        "auto", one_of(*BACKENDS), "kernels: host (CPU), torch (any device) or reference (slow)", "hardware"
    )
    comm: str = option("auto", one_of("auto", "solo", "mpi", "torch"), "communication between ranks", "hardware")
    ranks: int | None = option(None, integer(1, 4096), "start R local ranks", "hardware", "R")
    threads: int | None = option(
        None, integer(1, 4096), "threads per rank (default: an equal share of the cores)", "hardware", "T"
    )
    blas: str = option("scipy", blas_library, "BLAS library of the host kernels: a name or a path", "hardware")
    mem: str = option("80%", memory_budget, "memory budget per node, such as 80%% or 64GiB", "hardware")

    GPU_DEFAULTS: ClassVar[Mapping[str, Any]] = {}
    CHIP_NB: ClassVar[Mapping[str, tuple[int, str]]] = {}

    def on_chip(self, chip: str) -> dict[str, Any]:
        """Return the default settings on a GPU with this name, including the best known NB."""
        nb = next((nb for word, (nb, _) in self.CHIP_NB.items() if word in chip), None)
        return {**self.GPU_DEFAULTS, **({} if nb is None else {"nb": (nb,)})}

    def natively(self, native: Collection[str]) -> dict[str, Any]:
        """Return the default settings for a processor that multiplies the low precisions in `native` in hardware."""
        return {}

    @property
    def fp64_products(self) -> str:
        """Return the requested arithmetic of fp64 products: native, emulated or auto."""
        return "native"

    @property
    def explores(self) -> bool:
        """Return whether the run may break the published rules, as with --mode explore."""
        return False

    @property
    def least_ranks(self) -> int:
        """Return the minimum number of ranks for the given process grid, or 1 if no grid is given."""
        return 1

    @property
    def gpus_per_rank(self) -> int:
        """Return the number of GPUs that each rank uses."""
        return 1

    def leaves_panels(self, ranks: int) -> bool:
        """Return whether hosts factor the panels of devices, because several ranks share a process column."""
        return False

    @property
    def on_gpu(self) -> bool:
        """Return whether the computation runs on a GPU, after `auto` is resolved."""
        return self.device.startswith("cuda")


@dataclass(frozen=True, kw_only=True)
class RunConfig(PlaceConfig):
    """Options of every benchmark: hardware, measurement and output files."""

    quick: bool = option(False, boolean, "use a small problem that runs in a few seconds", "measuring")
    repeat: int = option(1, integer(1, 10_000), "time each case at least K times", "measuring", "K")
    warmup: str = option(
        "gemm",
        one_of("none", "gemm", "full"),
        "warm-up before timing: none, gemm (measures the limit) or full",
        "measuring",
    )
    min_gflops: float | None = option(
        None, real(0.0), "exit with code 4 if the best rate is below X GFLOP/s", "measuring"
    )
    min_share: float | None = option(
        None, share, "exit with code 4 if rate divided by limit is below X", "measuring", "X"
    )
    watchdog: str = option(
        "10,60",
        stall_limit,
        "end the run after K longest steps and S seconds without progress",
        "measuring",
        "{K[,S],off}",
    )
    study: str | None = option(
        None,
        one_of("weak", "strong"),
        "scaling study: weak (constant memory per rank) or strong (constant size)",
        "measuring",
        flags=("--scaling-study",),
        aliases=("--study",),
    )
    ranks_list: tuple[int, ...] | None = option(
        None,
        listed(integer(1)),
        "rank counts for --scaling-study (default: 1,2,4,... and all cores)",
        "measuring",
        "R,...",
    )
    trace: str | None = option(None, users_file, "write a timeline for ui.perfetto.dev to FILE", "output")

    @property
    def report_to(self) -> str:
        """Return the target of the benchmark's report: stdout, stderr, or a file name."""
        return "stdout"

    @property
    def submission_folder(self) -> str | None:
        """Return the folder to which the fields of a submission form are written, or None if there is no submission."""
        return None

    def with_sample(self) -> Self:
        """Return the config with values for the settings that an input file needs and that this config does not set."""
        return self

    def as_run(self, case: Any, ranks: int) -> dict[str, Any]:
        """Return the settings of a run by name; `case`, the first case of the run, provides values that are not set."""
        return dict(vars(self))

    @staticmethod
    def settle(settings: Mapping[str, Setting]) -> dict[str, Setting]:
        """Return the settings unchanged, because no two settings of this config set the same value."""
        return dict(settings)


@dataclass(frozen=True, kw_only=True)
class ShowConfig:
    """Options of JSON output and progress."""

    json: str | None = option(None, users_file, "write JSON to FILE; use - to print only JSON", "output")
    progress: str = option(
        "auto", one_of("auto", "always", "never", "table"), "show progress on stderr; table: a row per step", "output"
    )
    progress_interval: float | None = option(
        None, seconds, "seconds between progress lines, also in files (default: automatic)", "output", "S"
    )
    quiet: bool = option(False, boolean, "print one line per result, without progress or notes", "output")

    @property
    def progress_mode(self) -> str:
        """Return the mode of the progress display: auto, always, never or table."""
        if self.quiet:
            return "never"
        return "always" if self.progress_interval is not None and self.progress == "auto" else self.progress

    def check_progress(self) -> None:
        """Raise a UsageError if --progress-interval has no effect."""
        if self.progress_interval is not None and (self.quiet or self.progress == "never"):
            other = "--quiet" if self.quiet else "--progress never"
            raise UsageError(f"{other} shows no progress; use either {other} or --progress-interval")


@dataclass(frozen=True, kw_only=True)
class StoppableConfig(RunConfig):
    """Options of a benchmark that mxpeak stops if the run is too slow."""

    target: float | None = option(None, real(0.0), "stop if X GFLOP/s can no longer be reached", "measuring")
    baseline: str | None = option(
        None, users_file, "compare progress with an earlier result: FILE or 'last'", "measuring"
    )
    max_slowdown: float | None = option(
        None, share, "stop if the run is slower than --baseline by this share", "measuring", "10%"
    )


@dataclass(frozen=True, kw_only=True)
class OutputConfig(ShowConfig):
    """Options of the output of a run, which are not part of its configuration."""

    out: str | None = option(
        None, users_folder, "folder for the result files (default: a new folder in mxpeak-out/)", "output"
    )
    format: str | None = option(None, str, "output: text, the benchmark's own, junit, bencher", "output", "NAME")
    events: str | None = option(None, users_file, "write events in JSON Lines format to FILE", "output")
    prometheus: str | None = option(None, users_file, "write metrics for Prometheus to FILE", "output")
    color: str = option(
        "auto", one_of("auto", "always", "never"), "when to color the output: auto, always or never", "output"
    )
    verbose: bool = option(
        False, boolean, "show the time of each phase and the cores of each rank", "output", flags=("-v", "--verbose")
    )
    tuned: str = option("yes", one_of("yes", "no"), "use tuned settings for all options that are not set", "output")
    dry_run: bool = option(False, boolean, "show settings, memory and expected time without running", "output")

"""What every benchmark is told: where it runs and what is measured; and what a run shows and writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from mxpeak.options import (
    Setting,
    boolean,
    device,
    integer,
    listed,
    memory_budget,
    one_of,
    option,
    real,
    share,
    stall_limit,
)

#: What --kernels may name.
BACKENDS = ("auto", "reference", "host", "torch")


@dataclass(frozen=True, kw_only=True)
class PlaceConfig:
    """Where something computes: device, kernels, ranks, threads and memory."""

    device: str = option(
        "auto",
        "--device",
        help="device to compute on",
        metavar="{auto,cpu,cuda,cuda:0,...}",
        parse=device,
        group="where",
    )
    kernels: str = option(
        "auto",
        "--kernels",
        help="kernels: host (CPU), torch (any device) or reference (slow)",
        metavar=f"{{{','.join(BACKENDS)}}}",
        parse=one_of(*BACKENDS),
        group="where",
    )
    comm: str = option(
        "auto",
        "--comm",
        help="communication between ranks",
        metavar="{auto,solo,mpi,torch}",
        parse=one_of("auto", "solo", "mpi", "torch"),
        group="where",
    )
    ranks: int | None = option(
        None, "--ranks", help="start R local ranks with mpiexec", metavar="R", parse=integer(1, 4096), group="where"
    )
    threads: int | None = option(
        None,
        "--threads",
        help="threads per rank (default: an equal share of the cores)",
        metavar="T",
        parse=integer(1, 4096),
        group="where",
    )
    mem: str = option(
        "80%", "--mem", help="memory budget per node, such as 80%% or 64GiB", parse=memory_budget, group="where"
    )

    #: What is another default on a GPU.
    GPU_DEFAULTS: ClassVar[Mapping[str, Any]] = {}
    #: NB by a word in a GPU's name, and where it was found best.
    CHIP_NB: ClassVar[Mapping[str, tuple[int, str]]] = {}

    def on_chip(self, chip: str) -> dict[str, Any]:
        """What is another default on a GPU of this name."""
        nb = next((nb for word, (nb, _) in self.CHIP_NB.items() if word in chip), None)
        return {**self.GPU_DEFAULTS, **({} if nb is None else {"nb": (nb,)})}

    def natively(self, native: Collection[str]) -> dict[str, Any]:
        """What is another default where the processor multiplies these low precisions itself."""
        return {}

    @property
    def least_ranks(self) -> int:
        """The ranks that the process grid needs, as far as it is given; 1 if it is left open."""
        return 1

    @property
    def on_gpu(self) -> bool:
        """Whether it computes on a GPU, once `auto` is settled."""
        return self.device.startswith("cuda")


@dataclass(frozen=True, kw_only=True)
class RunConfig(PlaceConfig):
    """Where a benchmark runs, what is measured, and where its results go: the same in every benchmark."""

    quick: bool = option(
        False, "--quick", help="use a small problem that runs in a few seconds", parse=boolean, group="measuring"
    )
    repeat: int = option(
        1, "--repeat", help="time each case at least K times", metavar="K", parse=integer(1, 10_000), group="measuring"
    )
    warmup: str = option(
        "gemm",
        "--warmup",
        help="warm-up before timing: none, gemm (measures the limit) or full",
        metavar="{none,gemm,full}",
        parse=one_of("none", "gemm", "full"),
        group="measuring",
    )
    min_gflops: float | None = option(
        None,
        "--min-gflops",
        help="exit with code 4 if the best rate is below X GFLOP/s",
        metavar="X",
        parse=real(0.0),
        group="measuring",
    )
    min_share: float | None = option(
        None,
        "--min-share",
        help="exit with code 4 if rate divided by limit is below X",
        metavar="X",
        parse=share,
        group="measuring",
    )

    watchdog: str = option(
        "10,60",
        "--watchdog",
        help="end the run if a rank makes no progress",
        metavar="{K[,S],off}",
        parse=stall_limit,
        group="measuring",
    )
    study: str | None = option(
        None,
        "--scaling-study",
        aliases=("--study",),
        help="scaling study: weak (constant memory per rank) or strong (constant size)",
        metavar="{weak,strong}",
        parse=one_of("weak", "strong"),
        group="measuring",
    )
    ranks_list: tuple[int, ...] | None = option(
        None,
        "--ranks-list",
        help="rank counts for --scaling-study (default: 1,2,4,... and all cores)",
        metavar="R,...",
        parse=listed(integer(1)),
        group="measuring",
    )
    trace: str | None = option(
        None,
        "--trace",
        help="write a timeline for ui.perfetto.dev to FILE",
        metavar="FILE",
        parse=str,
        users_path=True,
        group="output",
    )

    @property
    def report_to(self) -> str:
        """Where an input file sends the benchmark's own report: stdout, stderr, or a file of this name."""
        return "stdout"

    @property
    def submission_folder(self) -> str | None:
        """The folder that takes the fields of a list's form."""
        return None

    def with_sample(self) -> Self:
        """The same with what an input file has to say, where this says nothing."""
        return self

    def as_run(self, case: Any, ranks: int) -> dict[str, Any]:
        """The settings by name, with what they left open as `case`, the first one, has it."""
        return dict(vars(self))

    @staticmethod
    def settle(settings: Mapping[str, Setting]) -> dict[str, Setting]:
        """The settings after those that say the same thing twice have been made one; here there are none."""
        return dict(settings)


@dataclass(frozen=True, kw_only=True)
class ShowConfig:
    """What is shown of something that measures: its JSON, its progress."""

    json: str | None = option(
        None,
        "--json",
        help="write JSON to FILE; use - to print only JSON",
        metavar="FILE",
        parse=str,
        users_path=True,
        group="output",
    )
    progress: str = option(
        "auto",
        "--progress",
        help="show progress on stderr: auto, always or never",
        metavar="{auto,always,never}",
        parse=one_of("auto", "always", "never"),
        group="output",
    )
    quiet: bool = option(
        False, "--quiet", help="print one line per result, without progress or notes", parse=boolean, group="output"
    )


@dataclass(frozen=True, kw_only=True)
class OutputConfig(ShowConfig):
    """What a run shows and where its files go: the same for every benchmark, and no part of its configuration."""

    out: str | None = option(
        None,
        "--out",
        help="folder for the result files (default: a new folder in mxpeak-out/)",
        metavar="DIR",
        parse=str,
        users_path=True,
        group="output",
    )
    format: str | None = option(
        None,
        "--format",
        help="format on stdout: text or the benchmark's own report",
        metavar="NAME",
        parse=str,  # registered benchmarks bring formats: `cli.request` knows them all
        group="output",
    )
    events: str | None = option(
        None,
        "--events",
        help="write events in JSON Lines format to FILE",
        metavar="FILE",
        parse=str,
        users_path=True,
        group="output",
    )
    prometheus: str | None = option(
        None,
        "--prometheus",
        help="write metrics for Prometheus to FILE",
        metavar="FILE",
        parse=str,
        users_path=True,
        group="output",
    )
    color: str = option(
        "auto",
        "--color",
        help="when to color the output: auto, always or never",
        metavar="{auto,always,never}",
        parse=one_of("auto", "always", "never"),
        group="output",
    )
    verbose: bool = option(
        False,
        "-v",
        "--verbose",
        help="show the time of each phase and the cores of each rank",
        parse=boolean,
        group="output",
    )
    tuned: str = option(
        "yes",
        "--tuned",
        help="use tuned settings for all options that are not set",
        metavar="{yes,no}",
        parse=one_of("yes", "no"),
        group="output",
    )
    dry_run: bool = option(
        False,
        "--dry-run",
        help="show settings, memory and expected time without running",
        parse=boolean,
        group="output",
    )

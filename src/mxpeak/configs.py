"""What each benchmark can be told: its configuration, and the cases that the lists of it make."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

from mxpeak.errors import UsageError
from mxpeak.options import (
    ORIGINS,
    Setting,
    boolean,
    device,
    grid_shape,
    integer,
    listed,
    memory_budget,
    one_of,
    option,
    positive,
    real,
)
from mxpeak.precision import PRECISIONS, Precision

BCASTS = ("1ring", "1ringM", "2ring", "2ringM", "long", "longM", "lib", "ilib")
FACTS = ("left", "crout", "right")
SWAPS = ("bin", "long", "mix")
ORDERS = ("row", "column")
GENERATORS = ("sqrt-n", "ddd", "fasi-higham", "gaussian", "dominant-n", "icl", "hpl")

#: Norms, also by the names that NumPy and LAPACK give them.
NORM_KINDS = ("max", "one", "inf", "fro")
KIND_NAMES = {**{kind: kind for kind in (*NORM_KINDS, "all")}, "1": "one", "infinity": "inf", "frobenius": "fro"}
#: Structures of matrices whose norms are taken, and which options each takes (what they are: `layout.structure`).
STRUCTURES: dict[str, tuple[str, ...]] = {
    "general": (), "trapezoid": ("uplo", "diag"), "triangular": ("uplo", "diag"), "symmetric": ("uplo",),
    "hermitian": ("uplo",), "band": ("kl", "ku"), "hermitian-band": ("uplo", "kl"), "hessenberg": (),
}  # fmt: skip
#: Types of entries, by NumPy's names, with the format of their real part; and the other names of each.
DTYPES = {
    "float64": "fp64", "float32": "fp32", "complex128": "fp64", "complex64": "fp32", "float16": "fp16",
    "bfloat16": "bf16",
}  # fmt: skip
DTYPE_NAMES = {
    **{dtype: dtype for dtype in DTYPES}, "fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16",
    "c128": "complex128", "c64": "complex64", "d": "float64", "s": "float32", "z": "complex128", "c": "complex64",
}  # fmt: skip
LAYOUTS = ("C", "F", "tiles")


def _called(names: Mapping[str, str]) -> Callable[[str], str]:
    """A parser of one word out of `names`, by which it is known afterwards."""

    def parse(text: str) -> str:
        if text not in names:
            raise UsageError(f"{text!r} is unknown; choose one of {', '.join(names)}")
        return names[text]

    return parse


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Where a benchmark runs, what is measured, and where its results go: the same in every benchmark."""

    device: str = option(
        "auto", "--device", help="where it computes", metavar="{auto,cpu,cuda,cuda:0,...}", parse=device,
        group="where",
    )  # fmt: skip
    kernels: str = option(
        "auto", "--kernels", help="which kernels compute: the host's, torch's on any device, or the reference oracle",
        metavar="{auto,reference,host,torch}", parse=one_of("auto", "reference", "host", "torch"), group="where",
    )  # fmt: skip
    comm: str = option(
        "auto", "--comm", help="how ranks talk", metavar="{auto,solo,mpi,torch}",
        parse=one_of("auto", "solo", "mpi", "torch"),
        group="where",
    )  # fmt: skip
    ranks: int | None = option(
        None, "--ranks", help="start R local ranks (mpiexec is started for you)", metavar="R",
        parse=integer(1, 4096), group="where",
    )  # fmt: skip
    threads: int | None = option(
        None, "--threads", help="threads of a rank (default: its share of the cores)", metavar="T",
        parse=integer(1, 4096), group="where",
    )  # fmt: skip
    mem: str = option(
        "80%", "--mem", help="memory to plan for: a share (80%%) or a size (64GiB) of each node",
        parse=memory_budget, group="where",
    )  # fmt: skip
    quick: bool = option(False, "--quick", help="a size that takes seconds", parse=boolean, group="measuring")
    repeat: int = option(
        1, "--repeat", help="run each case this often; the best counts, all are kept", metavar="K",
        parse=integer(1, 10_000), group="measuring",
    )  # fmt: skip
    warmup: str = option(
        "gemm", "--warmup", help="what runs before the clock: nothing, a GEMM (which also measures the limit), or a "
        "whole small run", metavar="{none,gemm,full}", parse=one_of("none", "gemm", "full"), group="measuring",
    )  # fmt: skip
    min_gflops: float | None = option(
        None, "--min-gflops", help="exit with 4 when the best rate is below X GFLOP/s", metavar="X",
        parse=real(0.0), group="measuring",
    )  # fmt: skip

    #: What is another default on a GPU.
    GPU_DEFAULTS: ClassVar[Mapping[str, Any]] = {}

    @property
    def on_gpu(self) -> bool:
        """Whether it computes on a GPU, once `auto` is settled."""
        return self.device.startswith("cuda")

    @staticmethod
    def settle(settings: Mapping[str, Setting]) -> dict[str, Setting]:
        """The settings after those that say the same thing twice have been made one; here there are none."""
        return dict(settings)


@dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """What a run shows and where its files go: the same for every benchmark, and no part of its configuration."""

    out: str | None = option(
        None, "--out", help="folder of the result files (default: a new one in mxpeak-out/)", metavar="DIR",
        parse=str, group="output",
    )  # fmt: skip
    json: str | None = option(
        None, "--json", help="also write the result as JSON to FILE; - is stdout, which then holds nothing else",
        metavar="FILE", parse=str, group="output",
    )  # fmt: skip
    format: str | None = option(
        None, "--format", help="what goes to stdout: text, or the benchmark's own report: hpl, mxp, hpcg (default: "
        "text; with --dat what line 4 says)", metavar="{text,hpl,mxp,hpcg}",
        parse=one_of("text", "hpl", "mxp", "hpcg"), group="output",
    )  # fmt: skip
    progress: str = option(
        "auto", "--progress", help="show progress on stderr; auto: where a run takes more than two seconds",
        metavar="{auto,always,never}", parse=one_of("auto", "always", "never"), group="output",
    )  # fmt: skip
    color: str = option(
        "auto", "--color", help="colour on terminals", metavar="{auto,always,never}",
        parse=one_of("auto", "always", "never"), group="output",
    )  # fmt: skip
    verbose: bool = option(False, "-v", "--verbose", help="show where the time went", parse=boolean, group="output")
    quiet: bool = option(
        False, "--quiet", help="one line a result, no progress, no notes", parse=boolean, group="output"
    )
    dry_run: bool = option(
        False, "--dry-run", help="show configuration, grid and memory, and run nothing", parse=boolean, group="output"
    )


@dataclass(frozen=True, kw_only=True)
class GridConfig(RunConfig):
    """A benchmark on a P×Q process grid."""

    P: tuple[int, ...] | None = option(
        None, "-P", help="process rows", metavar="P,...", parse=listed(integer(1)), group="grid"
    )
    Q: tuple[int, ...] | None = option(
        None, "-Q", help="process columns", metavar="Q,...", parse=listed(integer(1)), group="grid"
    )
    grid: tuple[tuple[int, int], ...] | None = option(
        None, "--grid", help="process grid, instead of -P and -Q", metavar="PxQ,...", parse=listed(grid_shape),
        group="grid",
    )  # fmt: skip
    order: str = option(
        "row",
        "--order",
        help="ranks fill the grid by rows or by columns",
        metavar="{row,column}",
        parse=one_of(*ORDERS),
        group="grid",
    )
    node_grid: tuple[int, int] | None = option(
        None, "--node-grid", help="the part of the grid that one node holds", metavar="PxQ", parse=grid_shape,
        group="grid",
    )  # fmt: skip
    idle_ranks: bool = False

    @staticmethod
    def settle(settings: Mapping[str, Setting]) -> dict[str, Setting]:
        """Let the grid's strongest source win: --grid displaces the P and Q of a file, and the other way round."""
        settled = dict(settings)
        one, two = settled["grid"].strength, max(settled["P"].strength, settled["Q"].strength)
        if one > two:
            settled["P"] = settled["Q"] = Setting(None, "default")
        elif two > one:
            settled["grid"] = Setting(None, "default")
        if max(one, two) != ORIGINS.index("HPL.dat"):
            settled["idle_ranks"] = Setting(False, "default")
        return settled

    def grids(self, ranks: int) -> tuple[tuple[int, int], ...]:
        """The process grids to run on `ranks` ranks: as asked for, completed, or the squarest P <= Q.

        An explicit grid must use all ranks, except that HPL.dat's several grids may leave some idle.
        """
        shapes = self._shapes(ranks)
        for P, Q in shapes:
            taken = P * Q
            if taken > ranks or (taken < ranks and not self.idle_ranks):
                raise UsageError(
                    f"grid {P}x{Q} takes {P}*{Q} = {taken} ranks, but there {_are(ranks)}; "
                    f"start {taken} ranks (--ranks {taken}, or mpiexec -n {taken}), "
                    f"or give --grid {'x'.join(map(str, squarest(ranks)))}"
                )
        return shapes

    def _shapes(self, ranks: int) -> tuple[tuple[int, int], ...]:
        if self.grid is not None:
            if self.P is not None or self.Q is not None:
                raise UsageError("--grid says it all: leave out -P and -Q, or leave out --grid")
            return self.grid
        if self.P is not None and self.Q is not None:
            if len(self.P) != len(self.Q):
                raise UsageError(f"-P has {len(self.P)} values but -Q {len(self.Q)}; they are read in pairs")
            return tuple(zip(self.P, self.Q))
        if self.P is not None:
            return tuple((p, _cofactor("-P", p, ranks)) for p in self.P)
        if self.Q is not None:
            return tuple((_cofactor("-Q", q, ranks), q) for q in self.Q)
        return (squarest(ranks),)


@dataclass(frozen=True, kw_only=True)
class PanelConfig(GridConfig):
    """A benchmark that factors panels: how they travel over the grid."""

    bcast: tuple[str, ...] = option(
        ("1ringM",), "--bcast", help="panel broadcast: " + ", ".join(BCASTS), metavar="NAME,...",
        parse=listed(one_of(*BCASTS, digits=True)), group="grid",
    )  # fmt: skip
    depth: tuple[int, ...] = option(
        (1,), "--depth", help="look-ahead, 0 or 1 (deeper runs as 1)", metavar="D,...", parse=listed(integer(0, 99)),
        group="grid",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HplCase:
    """One HPL run: one choice out of each list of its config."""

    n: int
    nb: int
    P: int
    Q: int
    order: str = "row"
    node_grid: tuple[int, int] | None = None
    pfact: str = "right"
    nbmin: int = 8
    ndiv: int = 2
    rfact: str = "right"
    bcast: str = "1ringM"
    depth: int = 1
    swap: str = "mix"
    swap_threshold: int = 64
    split: float = 0.0
    seed: int = 100
    threshold: float = 16.0

    @property
    def tag(self) -> str:
        """HPL's encoded variant, such as WR11C2R4; a broadcast that HPL does not know shows as its digit 6 or 7."""
        letter = {"left": "L", "crout": "C", "right": "R"}
        return (
            f"W{'R' if self.order == 'row' else 'C'}{self.depth}{BCASTS.index(self.bcast)}"
            f"{letter[self.rfact]}{self.ndiv}{letter[self.pfact]}{self.nbmin}"
        )


@dataclass(frozen=True, kw_only=True)
class HplConfig(PanelConfig):
    """All that `mxpeak run hpl` can be told; lists run every combination, in HPL's order."""

    GPU_DEFAULTS = {"nb": (512,)}  # noqa: RUF012  (nobody writes into it)

    n: tuple[int, ...] | None = option(
        None, "-N", "--n", help="order of the matrix (default: what --mem allows, or --quick)", metavar="N,...",
        parse=listed(integer(0)), group="problem",
    )  # fmt: skip
    nb: tuple[int, ...] = option(
        (192,), "--nb", help="block size (default: 192, on a GPU 512)", metavar="NB,...", parse=listed(integer(1)),
        group="problem",
    )  # fmt: skip
    seed: int = option(
        100, "--seed", help="seed of the matrix", metavar="S", parse=integer(0, 2**31 - 1), group="problem"
    )
    split: float = option(
        0.0, "--split", help="share of the columns whose update hides the others' row swaps", metavar="FRACTION",
        parse=real(0.0, 1.0), group="grid",
    )  # fmt: skip
    pfact: tuple[str, ...] = option(
        ("right",), "--pfact", help="panel factorization: left, crout, right", metavar="NAME,...",
        parse=listed(one_of(*FACTS, digits=True)), group="grid",
    )  # fmt: skip
    rfact: tuple[str, ...] = option(
        ("right",), "--rfact", help="recursive panel factorization: left, crout, right", metavar="NAME,...",
        parse=listed(one_of(*FACTS, digits=True)), group="grid",
    )  # fmt: skip
    nbmin: tuple[int, ...] = option(
        (8,), "--nbmin", help="columns at which the recursion stops", metavar="K,...", parse=listed(integer(1)),
        group="grid",
    )  # fmt: skip
    ndiv: tuple[int, ...] = option(
        (2,), "--ndiv", help="parts of a panel in the recursion", metavar="K,...", parse=listed(integer(2)),
        group="grid",
    )  # fmt: skip
    swap: str = option(
        "mix", "--swap", help="row swaps: bin (binary exchange), long (spread and roll), mix",
        metavar="{bin,long,mix}", parse=one_of(*SWAPS, digits=True), group="grid",
    )  # fmt: skip
    swap_threshold: int = option(
        64, "--swap-threshold", help="columns up to which mix takes bin", metavar="K", parse=integer(0), group="grid"
    )
    threshold: float = option(
        16.0, "--threshold", help="scaled residuals below it pass; 0 or less: HPL's report without a check",
        metavar="X", parse=real(), group="problem",
    )  # fmt: skip

    # What only HPL.dat can say.  The forms, the equilibration and the alignment change no number that this code
    # computes: they stand in the report, as the file asked.
    l1_form: str = "transposed"
    u_form: str = "transposed"
    equilibration: bool = True
    alignment: int = 8
    output_file: str = "HPL.out"
    device_out: int = 6

    def cases(self, ranks: int, n: Sequence[int] | None = None) -> Iterator[HplCase]:
        """Every combination of the lists, in HPL's loop order; `n` stands in where the config leaves N open."""
        sizes = self.n if self.n is not None else n
        if sizes is None:
            raise UsageError("no order of the matrix: give -N")
        lists = (
            self.grids(ranks), sizes, self.nb, self.depth, self.bcast, self.rfact, self.pfact, self.nbmin, self.ndiv,
        )  # fmt: skip
        for (P, Q), n_, nb, depth, bcast, rfact, pfact, nbmin, ndiv in product(*lists):
            yield HplCase(
                n=n_, nb=nb, P=P, Q=Q, order=self.order, node_grid=self.node_grid, pfact=pfact, nbmin=nbmin,
                ndiv=ndiv, rfact=rfact, bcast=bcast, depth=depth, swap=self.swap,
                swap_threshold=self.swap_threshold, split=self.split, seed=self.seed, threshold=self.threshold,
            )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HplMxpCase:
    """One HPL-MxP run: one choice out of each list of its config."""

    n: int
    nb: int
    P: int
    Q: int
    order: str = "row"
    node_grid: tuple[int, int] | None = None
    bcast: str = "1ringM"
    depth: int = 1
    precision: str = "fp32"
    generator: str = "sqrt-n"
    diagonal_scale: float | None = None
    condition: float = 1000.0
    seed: int = 100
    refine: str = "gmres"
    restart: int = 50
    scaling: str = "none"
    threshold: float = 16.0
    mode: str = "official"

    @property
    def tag(self) -> str:
        """A variant in the manner of HPL's: mapping and broadcast, such as WR1; precision and generator follow."""
        return f"W{'R' if self.order == 'row' else 'C'}{BCASTS.index(self.bcast)}"


@dataclass(frozen=True, kw_only=True)
class HplMxpConfig(PanelConfig):
    """All that `mxpeak run hpl-mxp` can be told; lists run every combination."""

    GPU_DEFAULTS = {"nb": (1024,), "precision": ("fp16",)}  # noqa: RUF012

    n: tuple[int, ...] | None = option(
        None, "-N", "--n", help="order of the matrix (default: what --mem allows, or --quick)", metavar="N,...",
        parse=listed(integer(1)), group="problem",
    )  # fmt: skip
    nb: tuple[int, ...] = option(
        (320,), "--nb", help="block size (default: 320, on a GPU 1024)", metavar="NB,...", parse=listed(integer(1)),
        group="problem",
    )  # fmt: skip
    seed: int = option(
        100, "--seed", help="seed of the matrix", metavar="S", parse=integer(0, 2**31 - 1), group="problem"
    )
    generator: tuple[str, ...] = option(
        ("sqrt-n",), "--generator", help="the matrix: " + ", ".join(GENERATORS), metavar="NAME,...",
        parse=listed(one_of(*GENERATORS)), group="problem",
    )  # fmt: skip
    diagonal_scale: tuple[float, ...] | None = option(
        None, "--diagonal-scale", help="c of the diagonal c*sqrt(N) (sqrt-n and gaussian; default: 0.625), or theta of "
        "theta*sum|a_ij| (ddd; default: 1.25/sqrt(N))", metavar="C,...", parse=listed(real(0.0, 1e6)), group="problem",
    )  # fmt: skip
    condition: float = option(
        1000.0, "--condition", help="condition number of fasi-higham in the infinity norm", metavar="K",
        parse=real(1.5, 1e15), group="problem",
    )  # fmt: skip
    scaling: str = option(
        "none", "--scaling", help="balance rows and columns by powers of two before the LU; timed, and undone",
        metavar="{none,auto}", parse=one_of("none", "auto"), group="problem",
    )  # fmt: skip
    threshold: float = option(
        16.0, "--threshold", help="scaled backward errors below it pass", metavar="X", parse=positive, group="problem"
    )
    precision: tuple[str, ...] | None = option(
        None, "--precision", help="operands of the update: " + ", ".join(PRECISIONS) + " (default: fp32, on a GPU "
        "fp16)", metavar="NAME,...", parse=listed(one_of(*PRECISIONS)), group="precision and rules",
    )  # fmt: skip
    refine: str = option(
        "gmres", "--refine", help="refinement: GMRES preconditioned by the factors, or classical",
        metavar="{gmres,classical}", parse=one_of("gmres", "classical"), group="precision and rules",
    )  # fmt: skip
    restart: int = option(
        50, "--restart", help="steps after which GMRES starts anew", metavar="K", parse=integer(1, 1000),
        group="precision and rules",
    )  # fmt: skip
    mode: str = option(
        "official", "--mode", help="official: by the published rules, each broken one is named; explore: fp8 too, "
        "and never ADMISSIBLE", metavar="{official,explore}", parse=one_of("official", "explore"),
        group="precision and rules",
    )  # fmt: skip
    submit: str | None = option(
        None, "--submit", help="write the fields of the HPL-MxP list's form into DIR, filled from the machine",
        metavar="DIR", parse=str, group="output",
    )  # fmt: skip

    # What only HPL-MxP.dat can say.
    output_file: str = "HPL-MxP.out"
    device_out: int = 6

    def cases(self, ranks: int, n: Sequence[int] | None = None) -> Iterator[HplMxpCase]:
        """Every combination of the lists; `n` stands in where the config leaves N open."""
        sizes = self.n if self.n is not None else n
        if sizes is None:
            raise UsageError("no order of the matrix: give -N")
        lists = (
            self.grids(ranks), sizes, self.nb, self.depth, self.bcast, self.generator,
            self.diagonal_scale or (None,), self.precision or ("fp32",),
        )  # fmt: skip
        for (P, Q), n_, nb, depth, bcast, generator, scale, precision in product(*lists):
            yield HplMxpCase(
                n=n_, nb=nb, P=P, Q=Q, order=self.order, node_grid=self.node_grid, bcast=bcast, depth=depth,
                precision=precision, generator=generator, diagonal_scale=scale, condition=self.condition,
                seed=self.seed, refine=self.refine, restart=self.restart, scaling=self.scaling,
                threshold=self.threshold, mode=self.mode,
            )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NormsCase:
    """One measured norm: one choice out of each list of its config, None where the structure has no use for it."""

    m: int
    n: int
    nb: int
    P: int
    Q: int
    order: str = "row"
    node_grid: tuple[int, int] | None = None
    seed: int = 100
    dtype: str = "float64"
    layout: str = "C"
    structure: str = "general"
    uplo: str | None = None
    diag: str | None = None
    kl: int | None = None
    ku: int | None = None
    kind: str = "one"
    deterministic: bool = False

    @property
    def kinds(self) -> tuple[str, ...]:
        """The norms that one pass gives."""
        return NORM_KINDS if self.kind == "all" else (self.kind,)

    @property
    def complex(self) -> bool:
        """Whether entries have an imaginary part."""
        return self.dtype.startswith("complex")

    @property
    def precision(self) -> Precision:
        """The format of an entry, or of its real and imaginary part."""
        return PRECISIONS[DTYPES[self.dtype]]

    @property
    def itemsize(self) -> int:
        """Bytes of an entry."""
        return self.precision.bytes * (2 if self.complex else 1)

    @property
    def tag(self) -> str:
        """What is measured, such as: one general float64 C, and what the structure takes beside its name."""
        named = [f"{name}={value}" for name, value in (("kl", self.kl), ("ku", self.ku)) if value is not None]
        words = [self.kind, self.structure, self.uplo, "unit" if self.diag == "unit" else None, *named]
        words += [self.dtype, self.layout, "deterministic" if self.deterministic else None]
        return " ".join(word for word in words if word)


@dataclass(frozen=True, kw_only=True)
class NormsConfig(GridConfig):
    """All that `mxpeak run norms` can be told; lists run every combination of what the structure takes."""

    n: tuple[int, ...] | None = option(
        None, "-N", "--n", help="columns, and rows where -m is not given (default: 10240, or what --mem allows, or "
        "--quick)", metavar="N,...", parse=listed(integer(1)), group="problem",
    )  # fmt: skip
    m: tuple[int, ...] | None = option(
        None, "-m", help="rows (default: as many as columns)", metavar="M,...", parse=listed(integer(1)),
        group="problem",
    )  # fmt: skip
    nb: tuple[int, ...] = option(
        (512,), "--nb", help="block of the distribution, and side of a tile", metavar="NB,...",
        parse=listed(integer(1)), group="problem",
    )  # fmt: skip
    seed: tuple[int, ...] = option(
        (100,), "--seed", help="seed of the matrix", metavar="S,...", parse=listed(integer(0, 2**31 - 1)),
        group="problem",
    )  # fmt: skip
    kind: tuple[str, ...] = option(
        (*NORM_KINDS, "all"), "--kind", help="norms: max, one, inf, fro; all: the four in one pass",
        metavar="NAME,...", parse=listed(_called(KIND_NAMES)), group="norms",
    )  # fmt: skip
    structure: tuple[str, ...] = option(
        ("general",), "--structure", help="which entries are read: " + ", ".join(STRUCTURES), metavar="NAME,...",
        parse=listed(one_of(*STRUCTURES)), group="norms",
    )  # fmt: skip
    dtype: tuple[str, ...] = option(
        ("float64",), "--dtype", help=f"type of the entries: {', '.join(DTYPES)}; or fp64, ..., bf16, c128, c64, or "
        "LAPACK's d, s, z, c", metavar="NAME,...", parse=listed(_called(DTYPE_NAMES)),
        group="norms",
    )  # fmt: skip
    layout: tuple[str, ...] = option(
        ("C",), "--layout", help="how a rank stores its part: C by rows, F by columns, tiles: every block an array of "
        "its own", metavar="{C,F,tiles},...", parse=listed(one_of(*LAYOUTS)), group="norms",
    )  # fmt: skip
    uplo: tuple[str, ...] = option(
        ("lower",), "--uplo", help="the triangle that is read: lower, upper", metavar="NAME,...",
        parse=listed(one_of("lower", "upper")), group="norms",
    )  # fmt: skip
    diag: tuple[str, ...] = option(
        ("nonunit",), "--diag", help="diagonal of a triangle or trapezoid: nonunit (read), unit (ones)",
        metavar="NAME,...", parse=listed(one_of("nonunit", "unit")), group="norms",
    )  # fmt: skip
    kl: tuple[int, ...] = option(
        (20,), "--kl", help="diagonals below the main one of a band; on either side of a hermitian-band",
        metavar="K,...", parse=listed(integer(0)), group="norms",
    )  # fmt: skip
    ku: tuple[int, ...] = option(
        (100,), "--ku", help="diagonals above the main one of a band", metavar="K,...", parse=listed(integer(0)),
        group="norms",
    )  # fmt: skip
    deterministic: bool = option(
        False, "--deterministic", help="the same bits on any grid, in any layout, with any number of threads",
        parse=boolean, group="norms",
    )  # fmt: skip

    # What these two are of a benchmark whose rate is that of memory.
    warmup: str = option(
        "gemm", "--warmup", help="none: the read bandwidth, which is the limit, is not measured; the others: it is",
        metavar="{none,gemm,full}", parse=one_of("none", "gemm", "full"), group="measuring",
    )  # fmt: skip
    min_gflops: float | None = option(
        None, "--min-gflops", help="not for norms: their rate is in GB/s", metavar="X", parse=real(0.0),
        group="measuring",
    )  # fmt: skip

    def cases(self, ranks: int, n: Sequence[int] | None = None) -> Iterator[NormsCase]:
        """Every combination, those of one matrix after each other; `n` stands in where the config leaves N open."""
        sizes = self.n if self.n is not None else n
        if sizes is None:
            raise UsageError("no size of the matrix: give -N")
        matrices = (self.grids(ranks), self.m or (None,), sizes, self.nb, self.seed, self.dtype, self.layout)
        for (P, Q), m, n_, nb, seed, dtype, layout in product(*matrices):
            for structure, uplo, diag, kl, ku, kind in self._read():
                yield NormsCase(
                    m=n_ if m is None else m, n=n_, nb=nb, P=P, Q=Q, order=self.order, node_grid=self.node_grid,
                    seed=seed, dtype=dtype, layout=layout, structure=structure, uplo=uplo, diag=diag, kl=kl, ku=ku,
                    kind=kind, deterministic=self.deterministic,
                )  # fmt: skip

    def _read(self) -> Iterator[tuple[str, str | None, str | None, int | None, int | None, str]]:
        """What is read of a matrix, and which norm is taken: each structure with the options that it takes."""
        for name in self.structure:
            takes = STRUCTURES[name]
            lists = (getattr(self, one) if one in takes else (None,) for one in ("uplo", "diag", "kl", "ku"))
            yield from product((name,), *lists, dict.fromkeys(self.kind))  # a kind named twice is one


#: Formats of HPG-MxP's matrices, and of the vectors of its inner iteration.
SPARSE_PRECISIONS = ("fp64", "fp32", "bf16", "fp16", "fp8")
VECTOR_PRECISIONS = ("fp64", "fp32")


@dataclass(frozen=True, kw_only=True)
class SparseConfig(RunConfig):
    """A benchmark of the 27-point problem, whose ranks own a box of points each: one case, no lists."""

    nx: int | None = option(
        None, "--nx", help="points of a rank's box in x, and in y and z where they are not given (default: 104, or "
        "what --mem allows, or --quick)", metavar="NX", parse=integer(1), group="problem",
    )  # fmt: skip
    ny: int | None = option(
        None, "--ny", help="points of a rank's box in y (default: as in x)", metavar="NY", parse=integer(1),
        group="problem",
    )  # fmt: skip
    nz: int | None = option(
        None, "--nz", help="points of a rank's box in z (default: as in x)", metavar="NZ", parse=integer(1),
        group="problem",
    )  # fmt: skip
    npx: int | None = option(
        None, "--npx", help="ranks in x (default: as near to a cube of ranks as those given allow)", metavar="PX",
        parse=integer(1), group="grid",
    )  # fmt: skip
    npy: int | None = option(None, "--npy", help="ranks in y", metavar="PY", parse=integer(1), group="grid")
    npz: int | None = option(None, "--npz", help="ranks in z", metavar="PZ", parse=integer(1), group="grid")
    storage: str = option(
        "auto", "--storage", help="how matrices are stored: ell (rows padded to one length), sell (padded in slices), "
        "packed (with short column numbers)", metavar="{auto,ell,sell,packed}",
        parse=one_of("auto", "ell", "sell", "packed"), group="precision and rules",
    )  # fmt: skip
    smoother: str = option(
        "coloured", "--smoother", help="order of Gauss-Seidel: coloured, where the rows of a colour do not depend on "
        "each other; or natural, the reference's", metavar="{coloured,natural}", parse=one_of("coloured", "natural"),
        group="precision and rules",
    )  # fmt: skip
    colouring: str = option(
        "greedy", "--colouring", help="how --smoother coloured finds its colours: greedy, row by row; or jpl, Jones, "
        "Plassmann and Luby's", metavar="{greedy,jpl}", parse=one_of("greedy", "jpl"), group="precision and rules",
    )  # fmt: skip
    mode: str = option(
        "official", "--mode", help="official: by the published rules; explore: beyond them, and its results say so",
        metavar="{official,explore}", parse=one_of("official", "explore"), group="precision and rules",
    )  # fmt: skip
    rt: float | None = option(
        None, "--rt", help="seconds to measure for (default: 60; the rules ask for 1800)", metavar="SECONDS",
        parse=real(0.0), group="measuring",
    )  # fmt: skip
    # What this is of a benchmark whose limit is that of memory.
    warmup: str = option(
        "gemm", "--warmup", help="none: the read bandwidth, which is the limit, is not measured; the others: it is",
        metavar="{none,gemm,full}", parse=one_of("none", "gemm", "full"), group="measuring",
    )  # fmt: skip

    @staticmethod
    def settle(settings: Mapping[str, Setting]) -> dict[str, Setting]:
        """Let the strongest source win: --nx displaces ny and nz of a file, any of --npx, --npy, --npz its grid."""
        settled = dict(settings)
        x, grid = settled["nx"].strength, max(settled[name].strength for name in ("npx", "npy", "npz"))
        for name, least in (("ny", x), ("nz", x), ("npx", grid), ("npy", grid), ("npz", grid)):
            if settled[name].strength < least:
                settled[name] = Setting(None, "default")
        return settled

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """The points of a rank's box in x, y, z; None where they were left open."""
        if self.nx is not None:
            return self.nx, self.ny or self.nx, self.nz or self.nx
        for flag, n in (("--ny", self.ny), ("--nz", self.nz)):
            if n is not None:
                raise UsageError(f"{flag} {n} was given without --nx, which --ny and --nz follow; type --nx {n} too")
        return None


@dataclass(frozen=True, kw_only=True)
class HpcgConfig(SparseConfig):
    """All that `mxpeak run hpcg` can be told."""


@dataclass(frozen=True, kw_only=True)
class HpgMxpConfig(SparseConfig):
    """All that `mxpeak run hpg-mxp` can be told."""

    nonsymmetric: bool = option(
        False, "--nonsymmetric", help="the non-symmetric matrix: -1.5 for the neighbour below in z, -0.5 for the one "
        "above", parse=boolean, group="problem",
    )  # fmt: skip
    matrix: str | None = option(
        None, "--matrix", help="a matrix of your own in Matrix Market's format, instead of the 27-point one",
        metavar="FILE.mtx", parse=str, group="problem",
    )  # fmt: skip
    threshold: float = option(
        1e-9, "--threshold", help="relative residual at which the solves of the validation end", metavar="X",
        parse=real(1e-15, 1.0), group="problem",
    )  # fmt: skip
    iterations: int = option(
        300, "--iterations", help="iterations of a timed solve", metavar="K", parse=integer(1), group="problem"
    )
    precision: str = option(
        "auto", "--precision", help="format of the inner iteration's matrices: " + ", ".join(SPARSE_PRECISIONS) + "; "
        "auto: the narrowest that holds every value exactly", metavar="NAME",
        parse=one_of("auto", *SPARSE_PRECISIONS), group="precision and rules",
    )  # fmt: skip
    mg_precision: tuple[str, ...] | None = option(
        None, "--mg-precision", help="format of multigrid's matrices, one for all levels or one each, finest first "
        "(default: that of --precision)", metavar="NAME,...", parse=listed(one_of("auto", *SPARSE_PRECISIONS)),
        group="precision and rules",
    )  # fmt: skip
    krylov_precision: str = option(
        "fp32", "--krylov-precision", help="format of the inner iteration's vectors: " + ", ".join(VECTOR_PRECISIONS),
        metavar="NAME", parse=one_of(*VECTOR_PRECISIONS), group="precision and rules",
    )  # fmt: skip
    value_tolerance: float = option(
        0.0, "--value-tolerance", help="relative error that --mode explore allows a stored value", metavar="X",
        parse=real(0.0, 1.0), group="precision and rules",
    )  # fmt: skip
    restart: int = option(
        30, "--restart", help="steps after which GMRES starts anew", metavar="K", parse=integer(1, 1000),
        group="precision and rules",
    )  # fmt: skip
    validation: str = option(
        "standard", "--validation", help="where the mixed solver is held against the double one: standard, on a "
        "few ranks; fullscale, on all of them", metavar="{standard,fullscale}", parse=one_of("standard", "fullscale"),
        group="precision and rules",
    )  # fmt: skip
    trace: str | None = option(
        None, "--trace", help="also write every span of one restart cycle to FILE, for chrome://tracing",
        metavar="FILE", parse=str, group="output",
    )  # fmt: skip

    def mg_precisions(self, levels: int) -> tuple[str, ...]:
        """The format of each level's matrix."""
        asked = self.mg_precision or (self.precision,)
        if len(asked) not in (1, levels):
            raise UsageError(
                f"--mg-precision {','.join(asked)} has {len(asked)} formats for {levels} levels; "
                f"give one for all, or {levels}"
            )
        return asked if len(asked) == levels else asked * levels


def squarest(ranks: int) -> tuple[int, int]:
    """The grid P <= Q of all ranks whose sides differ least."""
    P = max(p for p in range(1, math.isqrt(ranks) + 1) if ranks % p == 0)
    return P, ranks // P


def _are(ranks: int) -> str:
    return "is 1" if ranks == 1 else f"are {ranks}"


def _cofactor(flag: str, part: int, ranks: int) -> int:
    if ranks % part:
        raise UsageError(
            f"{flag} {part} does not divide the number of ranks: {ranks} / {part} leaves {ranks % part}; "
            f"leave {flag} out for the grid {'x'.join(map(str, squarest(ranks)))}, "
            f"or start {part * (ranks // part + 1)} ranks"
        )
    return ranks // part

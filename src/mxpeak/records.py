"""What goes in (the Config of each benchmark) and what comes out (Result), and both as JSON.

A config's fields carry their own flag, help and unit: the command line is built from them, and so are the
`MXPEAK_*` variables and the keys of a TOML file.  A value's origin (flag, variable, file, default) travels with it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from mxpeak.errors import UsageError

SCHEMA_RESULT = "mxpeak.result/1"
SCHEMA_RESULTS = "mxpeak.results/1"

BCASTS = ("1ring", "1ringM", "2ring", "2ringM", "long", "longM", "lib", "ilib")
FACTS = ("left", "crout", "right")
SWAPS = ("bin", "long", "mix")
ORDERS = ("row", "column")

#: Largest N, NB and thread count worth parsing: beyond them 8 N^2 exceeds any machine, so it is a slip of the finger.
LARGEST_N = 100_000_000


# --- how one flag's text becomes a value ------------------------------------------------------------------------


def integer(least: int, most: int = LARGEST_N) -> Callable[[str], int]:
    """A parser of whole numbers in [least, most]; it says which bound was broken."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise UsageError(f"{text!r} is not a whole number") from None
        if not least <= value <= most:
            raise UsageError(f"{value} is out of range: the least is {least}, the most {most}")
        return value

    return parse


def real(least: float = -math.inf, most: float = math.inf) -> Callable[[str], float]:
    """A parser of finite numbers in [least, most]."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise UsageError(f"{text!r} is not a number") from None
        if not math.isfinite(value):
            raise UsageError(f"{text!r} is not a finite number")
        if not least <= value <= most:
            raise UsageError(f"{value:g} is out of range: the least is {least:g}, the most {most:g}")
        return value

    return parse


def one_of(*choices: str, digits: bool = False) -> Callable[[str], str]:
    """A parser of one word out of `choices`; with `digits`, HPL's number for it (0, 1, …) is taken too."""

    def parse(text: str) -> str:
        if digits and text.isdecimal() and int(text) < len(choices):
            return choices[int(text)]
        if text not in choices:
            raise UsageError(f"{text!r} is unknown; choose one of {', '.join(choices)}")
        return text

    return parse


def boolean(text: str) -> bool:
    """A parser of yes and no as variables and files write them."""
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise UsageError(f"{text!r} is neither yes nor no")


def device(text: str) -> str:
    """A parser of devices: auto, cpu, cuda, or one of several as cuda:0."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", text):
        raise UsageError(f"{text!r} is no device; choose auto, cpu, cuda or cuda:0")
    return text


def grid_shape(text: str) -> tuple[int, int]:
    """A parser of grids written PxQ."""
    match = re.fullmatch(r"(\d+)[xX×](\d+)", text)
    if not match or int(match[1]) < 1 or int(match[2]) < 1:
        raise UsageError(f"{text!r} is not a grid; write it PxQ with P, Q >= 1, for example 2x4")
    return int(match[1]), int(match[2])


def listed(parse: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """A parser of comma-separated lists whose items `parse` takes."""

    def parse_list(text: str) -> tuple[Any, ...]:
        items = [item for item in re.split(r"[,\s]+", text.strip()) if item]
        if not items:
            raise UsageError("an empty list; give at least one value")
        return tuple(parse(item) for item in items)

    return parse_list


def memory_budget(text: str) -> str:
    """Check a memory budget, a share (80%) or a size with its unit (64GiB); it is kept as text until used."""
    memory_bytes(text, total=2**40)
    return text


def memory_bytes(text: str, total: int) -> int:
    """The budget `text` in bytes, of `total` bytes present: 80% is a share, 64GiB or 64GB a size."""
    units = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%|[KMGT]iB|[kMGT]B)", text.strip())
    if not match or float(match[1]) <= 0 or (match[2] == "%" and float(match[1]) > 100):
        raise UsageError(f"{text!r} is not a memory budget; write a share such as 80% or a size such as 64GiB")
    value = float(match[1])
    return int(total * value / 100) if match[2] == "%" else int(value * units[match[2]])


# --- fields that carry their flag -------------------------------------------------------------------------------


def option(default: Any, *flags: str, help: str, parse: Callable[[str], Any], group: str, metavar: str = "") -> Any:
    """A dataclass field that is also a flag: its names, help, parser, and the group of `--help` it stands in."""
    metadata = {"flags": flags, "help": help, "parse": parse, "group": group, "metavar": metavar}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Option:
    """One field of a config, as the command line, the environment and a TOML file see it."""

    name: str
    flags: tuple[str, ...]
    help: str
    parse: Callable[[str], Any]
    group: str
    metavar: str
    default: Any

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return "MXPEAK_" + self.name.upper()


def options(config: type) -> list[Option]:
    """The options of a config class, in the order of its fields."""
    return [
        Option(f.name, default=f.default, **f.metadata) for f in dataclasses.fields(config) if "flags" in f.metadata
    ]


#: Where a value can come from, the weakest source first.
ORIGINS = ("default", "HPL.dat", "file", "variable", "flag")


@dataclass(frozen=True, slots=True)
class Setting:
    """A resolved value and where it came from: one of ORIGINS."""

    value: Any
    origin: str

    @property
    def strength(self) -> int:
        """The place of its origin in the order of precedence."""
        return ORIGINS.index(self.origin)


def resolve(
    config: type,
    flags: Mapping[str, str],
    environ: Mapping[str, str],
    file: Mapping[str, Any],
    dat: Mapping[str, Any] | None = None,
) -> dict[str, Setting]:
    """Every field's value by precedence: flag > variable > --config file > HPL.dat > default.

    `flags` holds the raw texts that were typed; `dat` values are parsed already.  A bad value names its source.
    Fields without a flag are those that only HPL.dat can say.
    """
    known = {o.name for o in options(config)}
    for name in file:
        if name not in known:
            raise UsageError(f"--config: unknown key {name!r}; the keys are {', '.join(sorted(known))}")
    settings: dict[str, Setting] = {}
    for o in options(config):
        if o.name in flags:
            settings[o.name] = Setting(_parsed(o, flags[o.name], "/".join(o.flags)), "flag")
        elif environ.get(o.variable):
            settings[o.name] = Setting(_parsed(o, environ[o.variable], o.variable), "variable")
        elif o.name in file:
            settings[o.name] = Setting(_parsed(o, as_text(file[o.name]), f"--config key {o.name}"), "file")
        elif dat is not None and o.name in dat:
            settings[o.name] = Setting(dat[o.name], "HPL.dat")
        else:
            settings[o.name] = Setting(o.default, "default")
    for f in dataclasses.fields(config):
        if "flags" not in f.metadata:
            settings[f.name] = _setting_without_flag(f, dat or {})
    return settings


def _setting_without_flag(f: dataclasses.Field[Any], dat: Mapping[str, Any]) -> Setting:
    return Setting(dat[f.name], "HPL.dat") if f.name in dat else Setting(f.default, "default")


def _parsed(o: Option, text: str, source: str) -> Any:
    try:
        return o.parse(text)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None


def as_text(value: Any) -> str:
    """A value as its flag would be typed: yes and no, commas between the items of a list."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(as_text(item) for item in value)
    return str(value)


# --- what every run has -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Where a benchmark runs, what is measured, and where its results go: the same in every benchmark."""

    device: str = option(
        "auto", "--device", help="where it computes", metavar="{auto,cpu,cuda,cuda:0,...}", parse=device,
        group="where",
    )  # fmt: skip
    kernels: str = option(
        "auto", "--kernels", help="which kernels compute: the fast host ones, or the reference oracle",
        metavar="{auto,reference,host}", parse=one_of("auto", "reference", "host"), group="where",
    )  # fmt: skip
    comm: str = option(
        "auto", "--comm", help="how ranks talk", metavar="{auto,solo,mpi}", parse=one_of("auto", "solo", "mpi"),
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
        None, "--format", help="what goes to stdout (default: text; hpl with --dat)", metavar="{text,hpl}",
        parse=one_of("text", "hpl"), group="output",
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
class HplConfig(RunConfig):
    """All that `mxpeak run hpl` can be told; lists run every combination, in HPL's order."""

    n: tuple[int, ...] | None = option(
        None, "-N", "--n", help="order of the matrix (default: what --mem allows, or --quick)", metavar="N,...",
        parse=listed(integer(0)), group="problem",
    )  # fmt: skip
    nb: tuple[int, ...] = option(
        (192,), "--nb", help="block size", metavar="NB,...", parse=listed(integer(1)), group="problem"
    )
    seed: int = option(
        100, "--seed", help="seed of the matrix", metavar="S", parse=integer(0, 2**31 - 1), group="problem"
    )
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
    bcast: tuple[str, ...] = option(
        ("1ringM",), "--bcast", help="panel broadcast: " + ", ".join(BCASTS), metavar="NAME,...",
        parse=listed(one_of(*BCASTS, digits=True)), group="grid",
    )  # fmt: skip
    depth: tuple[int, ...] = option(
        (1,), "--depth", help="look-ahead, 0 or 1 (deeper runs as 1)", metavar="D,...", parse=listed(integer(0, 99)),
        group="grid",
    )  # fmt: skip
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


# --- numbers for people -----------------------------------------------------------------------------------------


def three_digits(value: float | None) -> str:
    """A number as people read it: three significant digits, no exponent between a thousandth and a million."""
    if value is None or not math.isfinite(value):
        return "none"
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e}"
    rounded = float(f"{value:.3g}")
    digits = max(0, 2 - math.floor(math.log10(abs(rounded)))) if rounded else 0
    return f"{rounded:.{digits}f}"


def rate_text(rate_flops: float | None) -> str:
    """A rate in GFLOP/s, or in the larger SI unit that fits it."""
    if rate_flops is None:
        return "no rate"
    for unit, size in (("EFLOP/s", 1e18), ("PFLOP/s", 1e15), ("TFLOP/s", 1e12)):
        if rate_flops >= 0.9995 * size:
            return f"{three_digits(rate_flops / size)} {unit}"
    return f"{three_digits(rate_flops / 1e9)} GFLOP/s"


# --- what comes out ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Caution:
    """Something a reader of the result should know, and what would mend it."""

    code: str
    text: str
    hint: str = ""


def mark(status: str) -> str:
    """The word for a status."""
    return {"valid": "PASSED", "invalid": "FAILED"}.get(status, "ABORTED")


@dataclass(slots=True, kw_only=True)
class Result:
    """What one run of one case gave, in the sections of the result file."""

    benchmark: str
    status: str  # valid | invalid | aborted
    run: dict[str, Any] = field(default_factory=dict)
    problem: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    validation: dict[str, Any] = field(default_factory=dict)
    samples_s: list[float] = field(default_factory=list)
    phases: dict[str, dict[str, Any]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    software: dict[str, Any] = field(default_factory=dict)
    launch: dict[str, Any] = field(default_factory=dict)
    telemetry: dict[str, Any] = field(default_factory=dict)
    warnings: list[Caution] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether the validation passed."""
        return self.status == "valid"

    @property
    def mark(self) -> str:
        """The status as people read it."""
        return mark(self.status)

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Result:
        """The result that `as_dict` wrote; keys of a later schema are left out."""
        known = {f.name for f in dataclasses.fields(cls)} & set(body)
        warnings = [Caution(w["code"], w["text"], w.get("hint", "")) for w in body.get("warnings", [])]
        return cls(**{**{name: body[name] for name in known}, "warnings": warnings})

    def as_dict(self) -> dict[str, Any]:
        """The result as plain data, ready for JSON: no NaN, no infinity; each one found becomes null and a warning."""
        lost: list[str] = []
        body = {"schema": SCHEMA_RESULT, **_finite(dataclasses.asdict(self), "", lost)}
        for path in lost:
            text = f"{path} is not a finite number; written as null"
            body["warnings"].append({"code": "not-finite", "text": text, "hint": ""})
        return body


def _finite(value: Any, path: str, lost: list[str]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        lost.append(path)
        return None
    if isinstance(value, dict):
        return {key: _finite(item, f"{path}.{key}".lstrip("."), lost) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item, f"{path}[{k}]", lost) for k, item in enumerate(value)]
    return value


def document(results: Sequence[Result], *, several: bool = False) -> dict[str, Any]:
    """The content of a result file: the one result, or the list of several (with `several`, also of one)."""
    if len(results) == 1 and not several:
        return results[0].as_dict()
    return {"schema": SCHEMA_RESULTS, "results": [r.as_dict() for r in results]}


def to_json(body: Mapping[str, Any]) -> str:
    """JSON with all digits and no NaN."""
    return json.dumps(body, indent=2, allow_nan=False, ensure_ascii=False) + "\n"

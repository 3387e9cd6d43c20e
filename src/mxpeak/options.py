"""Options: how a flag, a variable or a key of a file becomes a value, and which of them wins.

A config's fields carry their own flag, help and unit: the command line is built from them, and so are the
`MXPEAK_*` variables and the keys of a TOML file.  A value's origin (flag, variable, file, default) travels with it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from difflib import get_close_matches
from typing import Any

from mxpeak.errors import UsageError

#: More digits than any number here has; Python refuses to read some thousands of them.
DIGITS = 600
#: Largest N, NB and thread count worth parsing: beyond them 8 N^2 exceeds any machine, so it is a slip of the finger.
LARGEST_N = 100_000_000


# --- how one flag's text becomes a value ------------------------------------------------------------------------


def shown(text: str) -> str:
    """A text as errors quote it: whole, if it is not too long."""
    return repr(text if len(text) <= 60 else text[:60] + "…")


def near(word: str, known: Iterable[str]) -> str | None:
    """Return the known word with the most similar spelling, without regard to case, - and _; None if none is close."""

    def plain(text: str) -> str:
        return text.lower().replace("_", "-")

    words = {plain(one): one for one in known}
    close = [plain(word)] if plain(word) in words else get_close_matches(plain(word), words, n=1, cutoff=0.6)
    return words[close[0]] if close else None


def or_similar(word: str, known: Iterable[str], all_of_them: str) -> str:
    """Return the end of an error about an unknown name: the most similar known name, and where to find all of them."""
    meant = near(word, known)
    return f"see {all_of_them}" if meant is None else f"did you mean {meant}? See {all_of_them}"


def integer(least: int, most: int = LARGEST_N) -> Callable[[str], int]:
    """A parser of whole numbers in [least, most]; it says which bound was broken."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            digits = ", or has too many digits" * (len(text) > DIGITS)
            raise UsageError(
                f"{shown(text)} is not an integer{digits}; use an integer from {least} to {most}"
            ) from None
        if not least <= value <= most:
            raise UsageError(f"{shown(str(value))[1:-1]} is out of range; use an integer from {least} to {most}")
        return value

    return parse


def count(least: int, most: int = LARGEST_N) -> Callable[[str], int]:
    """A parser of sizes in [least, most], as people write them: 20000, 20_000, 20k, 2e4."""
    whole = integer(least, most)

    def parse(text: str) -> int:
        match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)(?:[eE](\d{1,2})|([kM]))", text)
        if match is None:
            return whole(text)
        value = Decimal(match[1]).scaleb(int(match[2] or {"k": 3, "M": 6}[match[3]]))
        return whole(str(int(value)) if value == int(value) else text)

    return parse


#: Seconds of a unit of time.
TIME_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """A parser of times: 90, 90s, 30m, 1.5h; a number alone is one of seconds."""
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)([a-z]+)", text.strip())
    if match is None and not text.strip()[-1:].islower():
        return real(0.0)(text)
    if match is None or match[2] not in TIME_UNITS:
        raise UsageError(f"{shown(text)} is not a time; use seconds, or a number with s, m or h, for example 30m")
    return float(match[1]) * TIME_UNITS[match[2]]


def real(least: float = -math.inf, most: float = math.inf) -> Callable[[str], float]:
    """A parser of finite numbers in [least, most]."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise UsageError(f"{shown(text)} is not a number; use a number") from None
        if not math.isfinite(value):
            raise UsageError(f"{shown(text)} is not a finite number; use a finite number")
        if not least <= value <= most:
            limits = f"of at least {least:g}" if math.isinf(most) else f"from {least:g} to {most:g}"
            raise UsageError(f"{value:g} is out of range; use a number {limits}")
        return value

    return parse


def share(text: str) -> float:
    """A parser of shares below the whole: 5% or 0.05."""
    value = real()(text[:-1]) / 100.0 if text.endswith("%") else real()(text)
    if not 0.0 <= value < 1.0:
        raise UsageError(
            f"{shown(text)} is out of range; use a share of at least 0% and below 100%, such as 80% or 0.8"
        )
    return value


def positive(text: str) -> float:
    """A parser of finite numbers above 0."""
    value = real()(text)
    if value <= 0.0:
        raise UsageError(
            f"{value:g} would disable the check; use a number above 0, such as 16, the threshold of the rules"
        )
    return value


def one_of(*choices: str, digits: bool = False) -> Callable[[str], str]:
    """A parser of one word out of `choices`; with `digits`, also of HPL's number for it (0, 1, …)."""
    return known(choices, digits=digits)


def known(choices: Sequence[str], *, digits: bool = False) -> Callable[[str], str]:
    """`one_of` a list that may still grow: it is looked at when a text is parsed."""

    def parse(text: str) -> str:
        if digits and text.isdecimal() and len(text) <= DIGITS and int(text) < len(choices):
            return choices[int(text)]
        if text not in choices:
            raise UsageError(f"{shown(text)} is unknown; use one of {', '.join(choices)}")
        return text

    return parse


def boolean(text: str) -> bool:
    """A parser of yes and no as variables and files write them."""
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise UsageError(f"{shown(text)} is neither yes nor no; use yes or no")


def device(text: str) -> str:
    """A parser of devices: auto, cpu, cuda, or one of several as cuda:0."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,9})?", text):
        raise UsageError(f"{shown(text)} is not a device; use auto, cpu, cuda or cuda:0")
    return text


def grid_shape(text: str) -> tuple[int, int]:
    """A parser of grids written PxQ."""
    match = re.fullmatch(r"(\d{1,9})[xX×](\d{1,9})", text)
    if not match or int(match[1]) < 1 or int(match[2]) < 1:
        raise UsageError(f"{shown(text)} is not a grid; use PxQ with P, Q >= 1, for example 2x4")
    return int(match[1]), int(match[2])


def listed(parse: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """A parser of comma-separated lists whose items `parse` takes."""

    def parse_list(text: str) -> tuple[Any, ...]:
        items = [item for item in re.split(r"[,\s]+", text.strip()) if item]
        if not items:
            raise UsageError("the list is empty; use at least one value")
        return tuple(parse(item) for item in items)

    return parse_list


def memory_budget(text: str) -> str:
    """Check a memory budget, a share (80%) or a size with its unit (64GiB); it is kept as text until used."""
    memory_bytes(text, total=2**40)
    return text


def memory_bytes(text: str, total: int) -> int:
    """The budget `text` in bytes, of `total` bytes present: 80% is a share, 64GiB or 64GB a size."""
    units = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*(%|[KMGT]iB|[kMGT]B)", text.strip())
    if not match or float(match[1]) <= 0 or (match[2] == "%" and float(match[1]) > 100):
        raise UsageError(f"{shown(text)} is not a memory budget; use a share such as 80% or a size such as 64GiB")
    value = float(match[1])
    return int(total * value / 100) if match[2] == "%" else int(value * units[match[2]])


def duration(text: str) -> str:
    """Check a time above zero; it is kept as text until used."""
    if seconds(text) <= 0:
        raise UsageError(f"{shown(text)} is not a time above zero; use, for example, 90s, 10m or 1h")
    return text


def stall_limits(text: str) -> tuple[float, float] | None:
    """How long is too long: so many times the longest step, and at least so many seconds; None for `off`."""
    if text == "off":
        return None
    match = re.fullmatch(r"(\d{1,18}(?:\.\d+)?)(?:,(\d{1,18}(?:\.\d+)?))?", text.strip())
    if not match or float(match[1]) <= 1 or float(match[2] or 60) <= 0:
        raise UsageError(
            f"{shown(text)} is not a limit; use a factor above 1 such as 10, a factor and seconds such as 10,60, or off"
        )
    return float(match[1]), float(match[2] or 60)


def stall_limit(text: str) -> str:
    """Check a limit on stalls; it is kept as text until used."""
    stall_limits(text)
    return text


# --- fields that carry their flag -------------------------------------------------------------------------------


def option(
    default: Any,
    *flags: str,
    aliases: tuple[str, ...] = (),
    help: str,
    parse: Callable[[str], Any],
    group: str,
    metavar: str = "",
    users_path: bool = False,
) -> Any:
    """Return a dataclass field that is also a flag: its names, help, parser, and its group in `--help`.

    `aliases` are former names of the flag; `--help` does not list them.

    `users_path`: it names a file or folder that a run writes, or compares with.  Only the user sets it, by a flag, a
    variable or a TOML file; recorded runs and checkpoints, which may come from other people, cannot.
    """
    metadata = {
        "flags": flags,
        "aliases": aliases,
        "help": help,
        "parse": parse,
        "group": group,
        "metavar": metavar,
        "users_path": users_path,
    }
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
    users_path: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return "MXPEAK_" + self.name.upper()


def options(config: type) -> list[Option]:
    """The options of a config class, in the order of its fields."""
    return [
        Option(f.name, default=f.default, **f.metadata) for f in dataclasses.fields(config) if "flags" in f.metadata
    ]


def recordable(config: type) -> set[str]:
    """Return the names of the options that a recorded run may set: all except the paths of the user."""
    return {o.name for o in options(config) if not o.users_path}


#: Where a value can come from, the weakest source first.
ORIGINS = ("default", "tuned", "HPL.dat", "file", "variable", "flag")


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
    silent = {f.name: f for f in dataclasses.fields(config) if "flags" not in f.metadata}
    known = {o.name for o in options(config)}
    for name in file:
        if name not in known and name not in silent:
            raise UsageError(
                f"--config contains the unknown key {name!r}; {or_similar(name, known, 'mxpeak help settings')}"
            )
    settings: dict[str, Setting] = {}
    for o in options(config):
        if o.name in flags:
            settings[o.name] = Setting(parsed(o, flags[o.name], "/".join(o.flags)), "flag")
        elif environ.get(o.variable):
            settings[o.name] = Setting(parsed(o, environ[o.variable], o.variable), "variable")
        elif o.name in file:
            settings[o.name] = Setting(parsed(o, as_text(file[o.name]), f"--config key {o.name}"), "file")
        elif dat is not None and o.name in dat:
            settings[o.name] = Setting(dat[o.name], "HPL.dat")
        else:
            settings[o.name] = Setting(o.default, "default")
    for f in silent.values():
        settings[f.name] = _setting_without_flag(f, file, dat or {})
    return settings


def _setting_without_flag(f: dataclasses.Field[Any], file: Mapping[str, Any], dat: Mapping[str, Any]) -> Setting:
    """Return a setting that only an input file, or the result of a run with one, can hold."""
    if f.name in dat:
        return Setting(dat[f.name], "HPL.dat")
    if f.name not in file:
        return Setting(f.default, "default")
    value = file[f.name]
    if type(value) is not type(f.default):
        raise UsageError(
            f"--config key {f.name}: {shown(str(value))} is not of the type {type(f.default).__name__}; use a "
            "value of this type"
        )
    return Setting(value, "file")


def parsed(o: Option, text: str, source: str) -> Any:
    """Return the value of a text; an error names its source."""
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

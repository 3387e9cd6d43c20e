"""Options: parse the text of a flag, a variable or a file key, and select the source with the highest precedence.

The fields of a config class have a parser, a help text and a group. The flags, the `MXPEAK_*` variables and the keys
of a TOML file are derived from these fields. Each value has an origin: flag, variable, file or default.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, Generic, Self, TypeVar

from mxpeak.errors import UsageError

T = TypeVar("T")
AnyConfig = TypeVar("AnyConfig")
AnyRun = TypeVar("AnyRun", bound="Run[Any]")

#: Maximum number of digits of a number, because Python refuses to parse numbers with thousands of digits.
DIGITS = 600
#: Largest value of N, NB and the number of threads. A larger N needs 8 N^2 bytes, more than the memory of any machine.
LARGEST_N = 100_000_000
#: Placeholder in the help for more items of a list.
LIST = ",..."


@dataclass(frozen=True, slots=True)
class ValueParser(Generic[T]):
    """A parser of the text of an option's value.

    metavar      placeholder of the value in the help; after a leading comma, it follows the name of the option
    users_path   whether the value is the path of a file or folder that a run writes or compares with
    item         parser of a list item; None if the value is not a list
    """

    parse: Callable[[str], T]
    metavar: str = ""
    users_path: bool = False
    item: Callable[[str], Any] | None = None

    def __call__(self, text: str) -> T:
        """Parse the text of a value; raise a UsageError if it is invalid."""
        return self.parse(text)


def path_name(text: str) -> str:
    """Return the text of a path; raise a UsageError if it is empty, as from an unset variable of a shell."""
    if not text:
        raise UsageError("empty path; use the path of a file or folder")
    return text


#: Files and folders that a run writes or compares with. Only the user may set these paths, by a flag, a variable or a
#: TOML file. Recorded runs and checkpoints may come from other people, so they may not set these paths.
users_file = ValueParser(path_name, "FILE", users_path=True)
users_folder = ValueParser(path_name, "DIR", users_path=True)


def count_text(number: int, noun: str) -> str:
    """Return a number and a noun, which is in the plural unless the number is one."""
    return f"{number} {noun}{'s' * (number != 1)}"


def alternatives(names: Sequence[str]) -> str:
    """Return names as a text such as "a, b or c"."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def quoted(text: str) -> str:
    """Return a text in quotes for an error message; a long text is cut after 60 characters."""
    return repr(text if len(text) <= 60 else text[:60] + "…")


def closest(word: str, names: Iterable[str]) -> str | None:
    """Return the name with the most similar spelling, or None if no name is similar.

    Upper and lower case are equal, and so are - and _. The prefix of flags (--) or of variables (MXPEAK_) is ignored.
    """

    def plain(text: str) -> str:
        return text.lower().replace("_", "-").lstrip("-").removeprefix("mxpeak-")

    words = {plain(name): name for name in names}
    close = [plain(word)] if plain(word) in words else get_close_matches(plain(word), words, n=1, cutoff=0.6)
    return words[close[0]] if close else None


def suggestion(word: str, names: Iterable[str], listing: str) -> str:
    """Return the end of an error message about an unknown name: the closest name, and the command for a list."""
    name = closest(word, names)
    return f"see {listing}" if name is None else f"did you mean {name}? See {listing}"


def integer(least: int, largest: int = LARGEST_N) -> ValueParser[int]:
    """Return a parser of integers in [least, largest]."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            digits = ", or has too many digits" * (len(text) > DIGITS)
            raise UsageError(
                f"{quoted(text)} is not an integer{digits}; use an integer from {least} to {largest}"
            ) from None
        if not least <= value <= largest:
            raise UsageError(f"{quoted(str(value))[1:-1]} is out of range; use an integer from {least} to {largest}")
        return value

    return ValueParser(parse)


def count(least: int, largest: int = LARGEST_N) -> ValueParser[int]:
    """Return a parser of integers in [least, largest] in the notations 20000, 20_000, 20k and 2e4."""
    whole = integer(least, largest)

    def parse(text: str) -> int:
        match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)(?:[eE](\d{1,2})|([kM]))", text)
        if match is None:
            return whole(text)
        value = Decimal(match[1]).scaleb(int(match[2] or {"k": 3, "M": 6}[match[3]]))
        return whole(str(int(value)) if value == int(value) else text)

    return ValueParser(parse)


#: Seconds per unit of time.
TIME_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """Parse a time such as 90, 90s, 30m or 1.5h, and return it in seconds."""
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)([a-z]+)", text.strip())
    if match is None and not text.strip()[-1:].islower():
        return real(0.0)(text)
    if match is None or match[2] not in TIME_UNITS:
        raise UsageError(f"{quoted(text)} is not a time; use seconds, or a number with s, m or h, for example 30m")
    return float(match[1]) * TIME_UNITS[match[2]]


def real(least: float = -math.inf, largest: float = math.inf) -> ValueParser[float]:
    """Return a parser of finite numbers in [least, largest]."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise UsageError(f"{quoted(text)} is not a number; use a number") from None
        if not math.isfinite(value):
            raise UsageError(f"{quoted(text)} is not a finite number; use a finite number")
        if not least <= value <= largest:
            limits = f"of at least {least:g}" if math.isinf(largest) else f"from {least:g} to {largest:g}"
            raise UsageError(f"{value:g} is out of range; use a number {limits}")
        return value

    return ValueParser(parse, "X")


def share(text: str) -> float:
    """Parse a share of at least 0 and below 1, such as 5% or 0.05."""
    try:
        value = real()(text[:-1]) / 100.0 if text.endswith("%") else real()(text)
    except UsageError:
        raise UsageError(f"{quoted(text)} is not a share; use a share such as 5% or 0.05") from None
    if not 0.0 <= value < 1.0:
        raise UsageError(
            f"{quoted(text)} is out of range; use a share of at least 0% and below 100%, such as 5% or 0.05"
        )
    return value


def byte_rate(text: str) -> float:
    """Parse a rate such as 20GB/s or 800MB/s, and return it in bytes per second."""
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*([kMGT])B/s", text.strip())
    if not match or float(match[1]) <= 0:
        raise UsageError(f"{quoted(text)} is not a rate; use a number with a unit, such as 20GB/s or 800MB/s")
    return float(match[1]) * {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[match[2]]


def positive(text: str) -> float:
    """Parse a finite number above 0."""
    value = real()(text)
    if value <= 0.0:
        raise UsageError(
            f"{value:g} would disable the check; use a number above 0, such as 16, the threshold of the rules"
        )
    return value


def one_of(*choices: str, digits: bool = False) -> ValueParser[str]:
    """Return a parser of one of several words; with `digits`, it also accepts the word's number, as in HPL.dat."""
    return ValueParser(name_in(choices, digits=digits).parse, f"{{{','.join(choices)}}}")


def name_in(choices: Collection[str], *, digits: bool = False) -> ValueParser[str]:
    """Return a parser of a name in `choices`, which extensions may extend. The placeholder in the help is NAME."""

    def parse(text: str) -> str:
        if digits and text.isdecimal() and len(text) <= DIGITS and int(text) < len(choices):
            return list(choices)[int(text)]
        if text not in choices:
            raise UsageError(f"{quoted(text)} is unknown; use one of {', '.join(choices)}")
        return text

    return ValueParser(parse, "NAME")


def boolean(text: str) -> bool:
    """Parse yes or no; true, on and 1, and false, off and 0 are also accepted."""
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise UsageError(f"{quoted(text)} is neither yes nor no; use yes or no")


def device(text: str) -> str:
    """Check that the text is a device (auto, cpu, cuda, or a numbered device such as cuda:0), and return the text."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,9})?", text):
        raise UsageError(f"{quoted(text)} is not a device; use auto, cpu, cuda or cuda:0")
    return text


def grid_shape(text: str) -> tuple[int, int]:
    """Parse a process grid such as 2x4, and return (P, Q)."""
    match = re.fullmatch(r"(\d{1,9})[xX×](\d{1,9})", text)
    if not match or int(match[1]) < 1 or int(match[2]) < 1:
        raise UsageError(f"{quoted(text)} is not a grid; use PxQ with P, Q >= 1, for example 2x4")
    return int(match[1]), int(match[2])


def listed(parse: Callable[[str], T]) -> ValueParser[tuple[T, ...]]:
    """Return a parser of comma-separated lists; `parse` parses each item."""

    def parse_list(text: str) -> tuple[T, ...]:
        items = [item for item in re.split(r"[,\s]+", text.strip()) if item]
        if not items:
            raise UsageError("the list is empty; use at least one value")
        return tuple(parse(item) for item in items)

    metavar = _metavar(parse)
    return ValueParser(parse_list, ("NAME" if metavar.startswith("{") else metavar) + LIST, item=parse)


def _metavar(parse: Callable[[str], Any]) -> str:
    """Return the placeholder of a parser, or an empty string if the parser is a plain function."""
    return parse.metavar if isinstance(parse, ValueParser) else ""


def memory_bytes(text: str, total: int) -> int:
    """Parse a memory budget such as 80% or 64GiB, and return it in bytes; a share refers to `total` bytes."""
    units = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*(%|[KMGT]iB|[kMGT]B)", text.strip())
    if not match or float(match[1]) <= 0 or (match[2] == "%" and float(match[1]) > 100):
        raise UsageError(f"{quoted(text)} is not a memory budget; use a share such as 80% or a size such as 64GiB")
    value = float(match[1])
    return int(total * value / 100) if match[2] == "%" else int(value * units[match[2]])


def duration(text: str) -> str:
    """Check that the text is a time above zero, and return the text."""
    if seconds(text) <= 0:
        raise UsageError(f"{quoted(text)} is not a time above zero; use, for example, 90s, 10m or 1h")
    return text


def stall_limits(text: str) -> tuple[float, float] | None:
    """Parse the limits for stalled ranks: a multiple of the longest step, and a time in seconds (default: 60).

    Return None for the text "off".
    """
    if text == "off":
        return None
    match = re.fullmatch(r"(\d{1,18}(?:\.\d+)?)(?:,(\d{1,18}(?:\.\d+)?))?", text.strip())
    if not match or float(match[1]) <= 1 or float(match[2] or 60) <= 0:
        raise UsageError(
            f"{quoted(text)} is not a limit; use a factor above 1 such as 10, a factor and seconds such as 10,60, or "
            "off"
        )
    return float(match[1]), float(match[2] or 60)


def checked(parse: Callable[[str], object]) -> Callable[[str], str]:
    """Return a parser that checks a text with `parse` and returns the text unchanged."""

    def check(text: str) -> str:
        parse(text)
        return text

    return check


#: Texts that are checked but not converted: the limits for stalled ranks, and a memory budget such as 80% or 64GiB.
stall_limit = checked(stall_limits)
memory_budget = checked(lambda text: memory_bytes(text, total=2**40))


def option(
    default: Any,
    parse: Callable[[str], Any],
    help: str,
    group: str,
    metavar: str = "",
    *,
    flags: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
) -> Any:
    """Return a dataclass field that is also a flag, a variable and a file key with the name of the field.

    `flags` replaces the name of the flag. The placeholder in the help is `metavar` or, if it is empty, that of the
    parser or the name of the field. `aliases` are former flags, which the help omits.
    """
    details = {"parse": parse, "help": help, "group": group, "metavar": metavar, "flags": flags, "aliases": aliases}
    return field(default=default, metadata={"option": details})


@dataclass(frozen=True, slots=True)
class Option:
    """A field of a config class, as the command line, the environment variables and TOML files use it."""

    name: str
    flags: tuple[str, ...]
    help: str
    parse: Callable[[str], Any]
    group: str
    metavar: str
    default: Any
    aliases: tuple[str, ...] = ()

    @classmethod
    def of(cls, f: dataclasses.Field[Any]) -> Self:
        """Return the option of a dataclass field. Its flag and placeholder follow from the name and the parser."""
        details = f.metadata["option"]
        flags = details["flags"] or ("--" + f.name.replace("_", "-"),)
        metavar = details["metavar"] or _metavar(details["parse"])
        if not metavar or metavar.startswith(","):
            metavar = f.name.upper() + metavar
        return cls(f.name, default=f.default, **{**details, "flags": flags, "metavar": metavar})

    @property
    def variable(self) -> str:
        """Return the name of the environment variable that sets the option."""
        return "MXPEAK_" + self.name.upper()

    @property
    def single(self) -> Option:
        """Return the option with the parser of a list item; if its value is not a list, return the option itself."""
        item = self.parse.item if isinstance(self.parse, ValueParser) else None
        return self if item is None else replace(self, parse=item, metavar=self.metavar.removesuffix(LIST))

    @property
    def users_path(self) -> bool:
        """Return whether the value is a path that only the user may set."""
        return isinstance(self.parse, ValueParser) and self.parse.users_path


def options(config: type) -> list[Option]:
    """Return the options of a config class, in the order of its fields."""
    return [Option.of(f) for f in dataclasses.fields(config) if "option" in f.metadata]


def fields_without_flag(config: type) -> list[dataclasses.Field[Any]]:
    """Return the fields of a config class without a flag. Only an input file or a recorded run can set them."""
    return [f for f in dataclasses.fields(config) if "option" not in f.metadata]


def internal(default: Any) -> Any:
    """Return a dataclass field without a flag that mxpeak derives from the command line and does not show."""
    return field(default=default, metadata={"internal": True})


def internal_names(config: type) -> set[str]:
    """Return the names of the fields of a config class that mxpeak does not show."""
    return {f.name for f in dataclasses.fields(config) if f.metadata.get("internal")}


def recordable(config: type) -> set[str]:
    """Return the names of the options that a recorded run may set: all options except paths of the user."""
    return {o.name for o in options(config) if not o.users_path}


#: The sources of a value, in ascending order of precedence.
ORIGINS = ("default", "profile", "tuned", "HPL.dat", "file", "variable", "flag")


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and its origin, which is one of ORIGINS."""

    value: Any
    origin: str

    @property
    def strength(self) -> int:
        """Return the precedence of the origin; a higher number overrides a lower number."""
        return ORIGINS.index(self.origin)


@dataclass(frozen=True)
class Run(Generic[AnyConfig]):
    """The configuration of a run, with the origin of each value."""

    config: AnyConfig
    origins: Mapping[str, str] = field(default_factory=dict)

    def is_default(self, name: str) -> bool:
        """Return whether the value has the origin `default`."""
        return self.origins.get(name, "default") == "default"

    def with_values(self, values: Mapping[str, Any], origin: str) -> Self:
        """Return the run with these values replaced; the new values have the given origin."""
        config: Any = self.config
        return replace(
            self, config=replace(config, **values), origins={**self.origins, **dict.fromkeys(values, origin)}
        )

    def with_choices(self, values: Mapping[str, Any]) -> Self:
        """Return the run with values that mxpeak selected. Values that change get the origin `auto`."""
        return self.with_values({k: v for k, v in values.items() if getattr(self.config, k) != v}, "auto")

    def section(self) -> dict[str, dict[str, Any]]:
        """Return the section `config` of a result: the value and the origin of each setting."""
        return {name: {"value": getattr(self.config, name), "origin": o} for name, o in self.origins.items()}


def run_of(config: type[AnyConfig], settings: Mapping[str, Setting]) -> Run[AnyConfig]:
    """Return the run of a config class with the values and origins of these settings."""
    values = {name: setting.value for name, setting in settings.items()}
    return Run(config(**values), {name: setting.origin for name, setting in settings.items()})


def resolve(
    config: type,
    flags: Mapping[str, str],
    environ: Mapping[str, str],
    file: Mapping[str, Any],
    dat: Mapping[str, Any] | None = None,
) -> dict[str, Setting]:
    """Return the setting of every field by precedence: flag > variable > --config file > HPL.dat > default.

    `flags` contains the texts from the command line, and `dat` contains parsed values. An error names the source of
    the invalid value. Only HPL.dat or a recorded run can set fields without a flag.
    """
    silent = {f.name: f for f in fields_without_flag(config)}
    names = {o.name for o in options(config)}
    for name in file:
        if name not in names and name not in silent:
            raise UsageError(
                f"--config contains the unknown key {name!r}; {suggestion(name, names, 'mxpeak help settings')}"
            )
    settings: dict[str, Setting] = {}
    for o in options(config):
        if o.name in flags:
            settings[o.name] = Setting(parsed_by(o.parse, flags[o.name], "/".join(o.flags)), "flag")
        elif environ.get(o.variable):
            settings[o.name] = Setting(parsed_by(o.parse, environ[o.variable], o.variable), "variable")
        elif o.name in file:
            settings[o.name] = Setting(parsed_by(o.parse, as_text(file[o.name]), f"--config key {o.name}"), "file")
        elif dat is not None and o.name in dat:
            settings[o.name] = Setting(dat[o.name], "HPL.dat")
        else:
            settings[o.name] = Setting(o.default, "default")
    for f in silent.values():
        settings[f.name] = _setting_without_flag(f, file, dat or {})
    return settings


def _setting_without_flag(f: dataclasses.Field[Any], file: Mapping[str, Any], dat: Mapping[str, Any]) -> Setting:
    """Return the setting of a field without a flag from an input file, a recorded run or the default."""
    if f.name in dat:
        return Setting(dat[f.name], "HPL.dat")
    if f.name not in file:
        return Setting(f.default, "default")
    value = file[f.name]
    if type(value) is not type(f.default):
        raise UsageError(
            f"--config key {f.name}: {quoted(str(value))} is not of the type {type(f.default).__name__}; use a "
            "value of this type"
        )
    return Setting(value, "file")


def parsed_by(parse: Callable[[str], Any], text: str | None, source: str) -> Any:
    """Parse a text, or return None if the text is None; errors start with `source`."""
    try:
        return None if text is None else parse(text)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None


def as_text(value: Any) -> str:
    """Format a value as the text of its flag: yes and no for booleans, and commas between list items."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(as_text(item) for item in value)
    return str(value)

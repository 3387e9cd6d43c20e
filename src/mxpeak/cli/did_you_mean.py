"""Suggestions for an unknown verb, benchmark or flag."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from mxpeak.options import closest

#: Flags of other codes, with the equivalent flags of mxpeak; -p and -q of rocHPL set the grid within a node.
SPELLINGS = {
    **dict.fromkeys(("-p", "-q"), "-P and -Q (rocHPL's -p and -q are --node-grid PxQ)"),
    "-n": "-N",
    "-f": "--split",
    "-i": "--dat",
    "--it": "--repeat",
    "-np": "--ranks",
    "--np": "--ranks",
}


def of_choice(value: str, names: Sequence[str], benchmarks: Sequence[str]) -> str:
    """Return the error text for an unknown verb or benchmark, with the most similar name."""
    if len(names) == 1:
        return f"{value!r} is unknown; use {names[0]}"
    if value not in names and value in benchmarks and "run" in names:
        return f"{value!r} is a benchmark; did you mean: mxpeak run {value}?"
    meant = closest(value, names)
    if meant is None and "run" in names and (benchmark := closest(value, benchmarks)):
        meant = f"run {benchmark}"
    return f"{value!r} is unknown; use one of {', '.join(names)}" + (
        "" if meant is None else f"; did you mean {meant}?"
    )


def of_flags(
    unknown: Sequence[str], names: Iterable[str], elsewhere: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> str:
    """Return the end of the error text for unknown flags: suggestions, and the benchmarks that have these flags.

    The text is empty without suggestions. `elsewhere` maps flags to the benchmarks that have them.
    """
    flags, suggestions, foreign = list(names), [], []
    for word in unknown:
        name = word.split("=")[0]
        if name in elsewhere and name not in flags:
            foreign.append(f"; {name} is for {', '.join(elsewhere[name])}")
            continue
        if name.startswith("-") and not name.lstrip("-").replace(".", "", 1).isdigit():
            meant = SPELLINGS.get(name) or closest(name, [flag for flag in flags if flag.startswith("--")])
        else:
            meant = f"--dat {word}" if word.endswith(".dat") and "--dat" in flags else None
        if meant is not None:
            suggestions.append(meant)
    return "".join(foreign) + (f"; did you mean {', '.join(dict.fromkeys(suggestions))}?" if suggestions else "")


def flags_elsewhere(top: argparse.ArgumentParser, words: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of the benchmarks that have a flag, for each flag of the verb in `words`."""
    owners: dict[str, list[str]] = {}
    (verbs,) = _choices(top)
    names = [name for choices in _choices(verbs[words[0]]) for name in choices] if len(words) > 1 else []
    for name in names:
        for flag in flags_after(top, [words[0], name]) if name != "all" else ():
            owners.setdefault(flag, []).append(name)
    return owners


def _choices(parser: argparse.ArgumentParser) -> list[dict[str, argparse.ArgumentParser]]:
    """Return the subparsers of a parser by name, one dictionary per group of subcommands."""
    return [dict(a.choices) for a in parser._actions if isinstance(a, argparse._SubParsersAction)]


def flags_after(top: argparse.ArgumentParser, words: Iterable[str]) -> list[str]:
    """Return the flags of the subcommand that these words select."""
    parser = top
    for word in words:
        inner = [choices[word] for choices in _choices(parser) if word in choices]
        parser = inner[0] if inner else parser
    return list(parser._option_string_actions)

"""Suggestions for an unknown verb, benchmark or flag."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from mxpeak.options import closest

#: Flags of other codes, with those of mxpeak; rocHPL's -p and -q are a node's part of the grid.
SPELLINGS = {
    "-p": "-P and -Q (rocHPL's -p and -q are --node-grid PxQ)",
    "-q": "-P and -Q (rocHPL's -p and -q are --node-grid PxQ)",
    "-n": "-N",
    "-f": "--split",
    "-i": "--dat",
    "--it": "--repeat",
    "-np": "--ranks",
    "--np": "--ranks",
}


def of_choice(value: str, names: Sequence[str], benchmarks: Sequence[str]) -> str:
    """Return the error text for a verb or a benchmark that is not known."""
    if len(names) == 1:
        return f"{value!r} is unknown; use {names[0]}"
    choices = f"(choose from {', '.join(names)})"
    if value not in names and value in benchmarks and "run" in names:
        return f"{value!r} is a benchmark; did you mean: mxpeak run {value}?"
    meant = closest(value, names)
    if meant is None and "run" in names and (benchmark := closest(value, benchmarks)):
        meant = f"run {benchmark}"
    return f"{value!r} is unknown {choices}" + ("" if meant is None else f"; did you mean {meant}?")


def of_flags(
    unknown: Sequence[str], names: Iterable[str], elsewhere: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> str:
    """Return suggestions for words that no flag accepts; empty if there are none.

    `elsewhere` contains the benchmarks that have a flag.
    """
    flags, suggestions, foreign = list(names), [], []
    for word in unknown:
        name = word.split("=")[0]
        if name in elsewhere and name not in flags:
            foreign.append(f"; {name} is for {', '.join(elsewhere[name])}")
            continue
        if name.startswith("-") and not _is_number(name):
            meant = SPELLINGS.get(name) or closest(name, [one for one in flags if one.startswith("--")])
        else:
            meant = f"--dat {word}" if word.endswith(".dat") and "--dat" in flags else None
        if meant is not None:
            suggestions.append(meant)
    return "".join(foreign) + (f"; did you mean {', '.join(dict.fromkeys(suggestions))}?" if suggestions else "")


def flags_elsewhere(top: argparse.ArgumentParser, words: Sequence[str]) -> dict[str, list[str]]:
    """Return the flags of the benchmarks of a verb, each with the benchmarks that have it."""
    owners: dict[str, list[str]] = {}
    for name in benchmarks_of(top, words[0]) if len(words) > 1 else ():
        if name == "all":
            continue
        for flag in flags_after(top, [words[0], name]):
            owners.setdefault(flag, []).append(name)
    return owners


def benchmarks_of(top: argparse.ArgumentParser, verb: str) -> list[str]:
    """Return the names that may follow a verb."""
    (verbs,) = _choices(top)
    return [name for choices in _choices(verbs[verb]) for name in choices]


def _choices(parser: argparse.ArgumentParser) -> list[dict[str, argparse.ArgumentParser]]:
    """Return the subcommands of a parser."""
    return [dict(a.choices) for a in parser._actions if isinstance(a, argparse._SubParsersAction)]


def flags_after(top: argparse.ArgumentParser, words: Iterable[str]) -> list[str]:
    """Return the flags of the innermost parser that these words select."""
    parser = top
    for word in words:
        inner = [choices[word] for choices in _choices(parser) if word in choices]
        parser = inner[0] if inner else parser
    return list(parser._option_string_actions)


def _is_number(word: str) -> bool:
    """Return whether a word is a number."""
    return word.lstrip("-").replace(".", "", 1).isdigit()

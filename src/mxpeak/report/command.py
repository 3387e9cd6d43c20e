"""Build the command that repeats a result, or one case of a sweep."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from mxpeak.foreign import one_line
from mxpeak.records import Result
from mxpeak.report.markup import part

#: Settings that may differ between the cases of a sweep, with their flags.
OPTIONS = {
    "m": "-m", "n": "-N", "nb": "--nb", "grid": "--grid", "precision": "--precision", "generator": "--generator",
    "diagonal_scale": "--diagonal-scale", "bcast": "--bcast", "depth": "--depth", "pfact": "--pfact",
    "rfact": "--rfact", "nbmin": "--nbmin", "ndiv": "--ndiv", "kind": "--kind", "structure": "--structure",
    "uplo": "--uplo", "diag": "--diag", "kl": "--kl", "ku": "--ku", "dtype": "--dtype", "layout": "--layout",
    "scope": "--scope", "trans": "--trans", "tiles": "--tiles",
    "seed": "--seed",
}  # fmt: skip
#: Flags of output files, which must not exist when the command runs again.
FILES = ("--out", "--json", "--events", "--trace", "--submit")
#: All flags that set the process grid.
GRID = ("--grid", "-P", "-Q")
#: Alternative spellings of the flags above.
ALIASES = {"-N": ("--n",), "--grid": ("-P", "-Q")}


def launched(result: Mapping[str, Any]) -> list[str]:
    """Return the words of the command before the verb: `mxpeak`, after the launcher if a launcher started the ranks."""
    launch, argv = part(result, "launch"), part(result, "run").get("argv") or []
    name, ranks = launch.get("launcher"), str(launch.get("ranks", 1))
    if name in (None, "shell") or any(str(word).partition("=")[0] == "--ranks" for word in argv):
        return ["mxpeak"]
    if name == "torchrun":
        return ["torchrun", "--nproc-per-node", ranks, "-m", "mxpeak"]
    return ["srun" if name == "srun" else "mpiexec", "-n", ranks, "mxpeak"]


def repeat(result: Result, names: Iterable[str]) -> str:
    """Return the command that runs only one case of a sweep, given the `names` of the swept settings.

    The command sets the number of ranks and, for several ranks, the grid.
    """
    values = values_of(result)
    swept = {name: OPTIONS[name] for name in names}
    gone = {*swept.values(), *(alias for flag in swept.values() for alias in ALIASES.get(flag, ())), *FILES}
    kept, words = [], iter(str(word) for word in result.run.get("argv") or ["run", result.benchmark])
    for word in words:
        if word in gone:
            next(words, None)
        elif not _is_of(word, gone):
            kept.append(word)
    flags = dict(swept)
    if (result.launch.get("ranks") or 1) > 1 and not any(_is_of(word, GRID) for word in kept):
        flags.setdefault("grid", "--grid")  # the default grid may differ, and HPL.dat may contain several grids
    for name, flag in flags.items():
        kept += [flag, flag_value(values[name])] if values.get(name) is not None else []
    return one_line(shlex.join([*launched({"launch": result.launch, "run": result.run}), *kept]))


def _is_of(word: str, flags: Collection[str]) -> bool:
    """Return whether a word of a command line is one of these flags, with or without a value: --nb, --nb=64, -N1000."""
    return word.partition("=")[0] in flags or (not word.startswith("--") and word[:2] in flags)


def values_of(result: Result) -> dict[str, Any]:
    """Return the problem settings of a result, with P and Q also as `grid`."""
    problem = dict(result.problem)
    if {"P", "Q"} <= set(problem):
        problem["grid"] = f"{problem['P']}x{problem['Q']}"
    return problem


def flag_value(value: Any) -> str:
    """Return a value as the argument of a flag, or `-` for None."""
    if isinstance(value, list | tuple):
        return "+".join(map(str, value))  # the sizes of tiles
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

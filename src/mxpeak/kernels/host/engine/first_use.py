"""Entry points that a first use compiles, as far as they are known before it: several processes compile them at once.

To compile takes one core a process.  What a use takes is known for those of `first_use.txt`, made by
tools/first_use.py: entry points with the types that they are called with, the longest first.  It is a help and no more:
the use itself, which comes after, compiles what is missing here, and what a process that was killed has left.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from mxpeak.kernels.host.engine.cache import cache_directory

#: What all benchmarks on the host load: modules whose entry points are compiled when imported, the longest first.
LOADED = (
    "lu.panel",
    "lu.triangle",
    "dense.generated",
    "lu.row_sums",
    "lu.row_moves",
    "lu.block",
    "lu.cast",
    "engine.team",
)
#: And what is compiled besides where the processor multiplies 16-bit operands itself.
WITH_UNITS = {
    "lu.operands": ("round_right", "subtract_product", "round_left"),
    "lu.solves": ("solve_right_rounded", "solve_left_rounded", "invert_blocks", "solve_left", "solve_right"),
}
#: What factors the panels that a device leaves to its host.
PANELS_LOADED = ("lu.panel", "engine.team")
#: The names of these uses.
LOADING, LOADING_PANELS = "loading", "loading panels"
PACKAGE = "mxpeak.kernels.host"
FILE = Path(__file__).with_suffix(".txt")


class Entry(NamedTuple):
    """An entry point with the types of its arguments, or with types of its own; without a name all of a module."""

    module: str
    name: str = ""
    types: str = ""

    def compile(self) -> None:
        """Compile it into the cache."""
        module = import_module(f"{PACKAGE}.{self.module}")
        if self.types:
            getattr(module, self.name).compile(_types(self.types))
        elif self.name:
            getattr(module, self.name).made()

    def is_cold(self) -> bool:
        """Whether it is not in the cache."""
        if not self.types:
            loaded = not self.name and f"{PACKAGE}.{self.module}" in sys.modules
            stem = self.module.rpartition(".")[2]
            file = f"*/{stem}.{self.name}-*.nbi" if self.name else f"*/{stem}.*.nbi"
            return not loaded and not any(cache_directory().glob(file))
        entry = getattr(import_module(f"{PACKAGE}.{self.module}"), self.name)
        return not entry._cache.holds(_types(self.types), entry.targetctx.codegen())


def _types(text):
    from numba.core.sigutils import normalize_signature

    arguments, _ = normalize_signature(text)
    return tuple(arguments)


def entries(use: str) -> list[Entry]:
    """What a use takes; nothing where that is not known.  As many as a byte can number."""
    if use == LOADING_PANELS:
        return [*map(Entry, PANELS_LOADED)]
    if use != LOADING:
        return _listed().get(use, [])
    from mxpeak.kernels.host.engine.matrix_engines import chosen

    besides = [Entry(module, name) for module, names in WITH_UNITS.items() for name in names] if chosen() else []
    return [*map(Entry, LOADED), *besides]


@cache
def _listed() -> dict[str, list[Entry]]:
    """The entry points of each use in the file: a letter and its use a line, then letters and an entry point a line."""
    head, _, body = FILE.read_text().partition("\n\n")
    uses = dict(line.split(" ", 1) for line in head.splitlines())
    found: dict[str, list[Entry]] = {use: [] for use in uses.values()}
    for line in body.splitlines():
        letters, call = line.split(" ", 1)
        name, types = call.split("(", 1)
        module, function = name.rsplit(".", 1)
        for letter in letters:
            found[uses[letter]].append(Entry(module, function, f"({types}"))
    return found


def compile_from(queue: int, use: str) -> None:
    """Compile entry points whose numbers are read from a pipe, one after the other, until it is empty.

    What fails here is left to the use itself.
    """
    known = entries(use)
    while (number := _next(queue)) is not None:
        with suppress(Exception):
            known[number].compile()


def _next(queue: int) -> int | None:
    try:
        read = os.read(queue, 1)
    except BlockingIOError:  # empty, though some process still could write
        return None
    return read[0] if read else None

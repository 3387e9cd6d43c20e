"""List the entry points that a benchmark compiles at its first use, so that processes can share the work.

A compilation runs on one core. Some modules have entry points that are compiled at their first call. These modules
also declare the argument types of each use. The list is only a hint: a process that compiles may be killed, and the
first use compiles every entry point that is then missing from the cache.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

from mxpeak.kernels.host.engine.cache import cache_directory

#: Modules that all benchmarks on the host load; their entry points are compiled at import. The slowest come first.
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
#: Entry points that are also compiled on processors with instructions for products of 16-bit operands.
WITH_ENGINES = {
    "lu.operands": ("round_right", "subtract_product", "round_left"),
    "lu.solves": ("solve_right_rounded", "solve_left_rounded", "invert_blocks", "solve_by_products"),
}
#: Modules that a rank loads if it factors panels on the host of a device.
PANELS_LOADED = ("lu.panel", "engine.team")
#: The names of two uses: load the modules in LOADED and WITH_ENGINES, or only those in PANELS_LOADED.
LOADING, LOADING_PANELS = "loading", "loading panels"
#: The functions that declare the entry points of a use, with their modules. The key is the first word of the use's
#: name.
DECLARED_IN = {
    "norms": ("norms.norms", "first_use"),
    "hpcg": ("sparse.first_use", "hpcg"),
    "hpg-mxp": ("sparse.first_use", "hpg_mxp"),
    "gmres": ("sparse.first_use", "gmres"),
}
PACKAGE = "mxpeak.kernels.host"
#: The largest number of entry points of one use, because their indices are sent as single bytes.
LIMIT = 256


class Entry(NamedTuple):
    """A compiled function of the host kernels and its argument types.

    If `types` is empty, the entry point is compiled for the types in its own declaration. If `name` is empty, all
    entry points of the module are compiled.
    """

    module: str
    name: str = ""
    types: tuple[Any, ...] = ()

    def compile(self) -> None:
        """Compile the entry point and store its machine code in the cache."""
        module = import_module(f"{PACKAGE}.{self.module}")
        if self.types:
            getattr(module, self.name).compile(self.types)
        elif self.name:
            getattr(module, self.name).compiled()

    def is_cold(self) -> bool:
        """Return whether the entry point is not in the cache."""
        if not self.types:
            loaded = not self.name and f"{PACKAGE}.{self.module}" in sys.modules
            stem = self.module.rpartition(".")[2]
            file = f"*/{stem}.{self.name}-*.nbi" if self.name else f"*/{stem}.*.nbi"
            return not loaded and not any(cache_directory().glob(file))
        entry = getattr(import_module(f"{PACKAGE}.{self.module}"), self.name)
        return not entry._cache.holds(self.types, entry.targetctx.codegen())


def entries(use: str) -> list[Entry]:
    """Return the entry points that a use compiles, at most LIMIT, or an empty list if no module declares this use."""
    if use == LOADING_PANELS:
        return [*map(Entry, PANELS_LOADED)]
    if use == LOADING:
        from mxpeak.kernels.host.engine.matrix_engines import chosen

        by_engines = [Entry(module, name) for module, names in WITH_ENGINES.items() for name in names]
        return [*map(Entry, LOADED), *(by_engines if chosen() else ())]
    subject, _, details = use.partition(", ")
    if subject not in DECLARED_IN:
        return []
    module, name = DECLARED_IN[subject]
    declare: Callable[[str], list[Entry]] = getattr(import_module(f"{PACKAGE}.{module}"), name)
    return declare(details)[:LIMIT]


def compile_from(queue: int, use: str) -> None:
    """Read indices of entry points from a pipe and compile these entry points, until the pipe is empty.

    Failures are ignored, because the use itself compiles missing entry points.
    """
    listed = entries(use)
    while (number := _next(queue)) is not None:
        with suppress(Exception):
            listed[number].compile()


def _next(queue: int) -> int | None:
    """Read the next index from the pipe and return it, or None if the pipe is empty."""
    try:
        read = os.read(queue, 1)
    except BlockingIOError:  # empty, but another process still has the pipe open for writing
        return None
    return read[0] if read else None

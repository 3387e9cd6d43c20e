"""List the entry points that a benchmark compiles at its first use, so that processes can share the work.

A compilation runs on one core. Some modules have entry points that are compiled at their first call. These modules
also declare the argument types of each use. The list is only a hint: a process that compiles may be killed, and the
first use compiles every entry point that is then missing from the cache.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

from mxpeak.kernels.host.engine.cache import cache_directory

#: Entry points that all benchmarks on the host load. Those of `engine.team` are compiled at import.
LOADED = {
    "lu.panel": ("factor_panel",),
    "lu.row_moves": ("copy_block", "permute_rows", "gather_rows", "scatter_rows"),
    "dense.generated": ("generated",),
    "lu.triangle": (
        *("add_matvec", "abs_sums", "add_triangle_matvec", "max_abs_upper", "combine_rows", "combine_columns"),
        *("solve_upper", "solve_lower", "row_max", "column_max", "scale_rows_columns"),
    ),
    "lu.row_sums": ("add_two_matvecs",),
    "lu.block": ("factor_block",),
    "lu.cast": ("round_block", "copy_rows"),
    "engine.team": ("",),
}
#: Entry points that are also compiled on processors with instructions for products of 16-bit operands.
WITH_ENGINES = {
    "lu.solves": ("invert_blocks", "solve_right_rounded", "solve_left_rounded"),
    "lu.operands": ("subtract_product", "round_right", "round_left"),
}
#: Entry points that are also compiled on processors with AVX-512.
WITH_AVX512 = {"lu.substitution": ("pack", "substitute")}
#: Entry points that a rank loads if it factors panels on the host of a device.
PANELS_LOADED = {"lu.panel": ("factor_panel",), "engine.team": ("",)}
#: The names of two uses: load the entry points in LOADED and WITH_ENGINES, or only those in PANELS_LOADED.
LOADING, LOADING_PANELS = "loading", "loading panels"
#: The functions that declare the entry points of a use, with their modules. The key is the first word of the use's
#: name.
DECLARED_IN = {
    "norms": ("norms.norms", "first_use"),
    "hpcg": ("sparse.first_use", "hpcg_entries"),
    "hpg-mxp": ("sparse.first_use", "hpg_mxp_entries"),
    "gmres": ("sparse.first_use", "gmres_entries"),
}
#: Modules whose entry points call the same inner functions. One process compiles all of them, because these functions
#: are slow to compile.
TOGETHER = ("sparse.natural.slot_format", "sparse.natural.coarse_residual")
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
        return declared(PANELS_LOADED)
    if use == LOADING:
        from mxpeak.kernels.host.engine.matrix_engines import chosen
        from mxpeak.kernels.host.engine.vector_ir import HAS_AVX512

        names = (WITH_ENGINES if chosen() else {}) | (WITH_AVX512 if HAS_AVX512 else {}) | LOADED  # the slowest first
        return declared(names)
    subject, _, details = use.partition(", ")
    if subject not in DECLARED_IN:
        return []
    module, name = DECLARED_IN[subject]
    declare: Callable[[str], list[Entry]] = getattr(import_module(f"{PACKAGE}.{module}"), name)
    return declare(details)[:LIMIT]


def declared(names: Mapping[str, Sequence[str]]) -> list[Entry]:
    """Return the entry points with these names, compiled for the types in their declarations."""
    return [Entry(module, name) for module, of_module in names.items() for name in of_module]


def shares(use: str) -> list[list[Entry]]:
    """Return the entry points of a use, in the shares that a process compiles one after another."""
    groups: dict[str | int, list[Entry]] = {}
    for number, entry in enumerate(entries(use)):
        groups.setdefault(entry.module if entry.module in TOGETHER else number, []).append(entry)
    return list(groups.values())


def compile_from(queue: int, use: str) -> None:
    """Read indices of shares from a pipe and compile their entry points, until the pipe is empty.

    Failures are ignored, because the use itself compiles missing entry points.
    """
    listed = shares(use)
    while (number := _next(queue)) is not None:
        for entry in listed[number]:
            with suppress(Exception):
                entry.compile()


def _next(queue: int) -> int | None:
    """Read the next index from the pipe and return it, or None if the pipe is empty."""
    try:
        read = os.read(queue, 1)
    except BlockingIOError:  # empty, but another process still has the pipe open for writing
        return None
    return read[0] if read else None

"""Store tuned settings next to the compiled kernels, in three kinds of files per machine fingerprint.

<fingerprint>.json         the fastest settings, replaced as a whole
<fingerprint>.jsonl        all measurements, appended
<fingerprint>-RxT.toml     this machine with R ranks of T threads, for `mxpeak simulate`
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import isqrt
from pathlib import Path
from typing import Any

from mxpeak.configs.run import RunConfig
from mxpeak.errors import UsageError, cannot_write
from mxpeak.kernels.choose import resolve, select_blas
from mxpeak.kernels.host.engine.cache import cache_directory
from mxpeak.options import AnyRun, Run, memory_bytes, options
from mxpeak.perf.fingerprint import digest, machine_facts
from mxpeak.perf.host import one_core_each, total_memory_bytes
from mxpeak.perf.tuned import InvalidWinnersError, RunNeeds, Winner, Winners, read_journal, read_winners, winner_for

#: What to do if a file cannot be written.
ELSEWHERE = "set MXPEAK_CACHE_DIR to another folder"


def store_folder() -> Path:
    """Return the folder of tuned settings, which is independent of the version of the kernels."""
    return cache_directory().parent / "tuned"


@dataclass(frozen=True)
class Store:
    """The tuned settings of machines with one fingerprint. The folder may not exist yet."""

    folder: Path
    facts: Mapping[str, Any]

    @cached_property
    def name(self) -> str:
        """Return the fingerprint of the machine."""
        return digest(self.facts)

    @property
    def book_file(self) -> Path:
        """Return the path of the file with the fastest settings."""
        return self.folder / f"{self.name}.json"

    @property
    def journal_file(self) -> Path:
        """Return the path of the file with the measurements."""
        return self.folder / f"{self.name}.jsonl"

    def table_file(self, ranks: int, threads: int) -> Path:
        """Return the path of the machine file for this number of ranks and threads."""
        return self.folder / f"{self.name}-{ranks}x{threads}.toml"

    def tables(self) -> dict[tuple[int, int], Path]:
        """Return the paths of the machine files, keyed by ranks and threads."""
        tables = {}
        for path in sorted(self.folder.glob(f"{self.name}-*x*.toml")):
            ranks, _, threads = path.stem.rpartition("-")[2].partition("x")
            if ranks.isdecimal() and threads.isdecimal():
                tables[int(ranks), int(threads)] = path
        return tables

    def book(self) -> tuple[Winners, str]:
        """Return the fastest settings, and a description of any error in their file.

        An unreadable file counts as empty.
        """
        try:
            return read_winners(self.book_file.read_text(encoding="utf-8"), self.facts), ""
        except FileNotFoundError:
            return Winners(self.facts), ""
        except (OSError, UnicodeDecodeError, InvalidWinnersError) as error:
            return Winners(self.facts), f"{self.book_file} is ignored: {error}; mxpeak tune --fresh writes a new one"

    def journal(self) -> tuple[list[dict[str, Any]], str]:
        """Return all measurements, and a description of any error in their file."""
        try:
            records, bad = read_journal(self.journal_file.read_text(encoding="utf-8", errors="replace"))
        except FileNotFoundError:
            return [], ""
        except OSError as error:
            return [], f"{self.journal_file} is ignored: {error.strerror}"
        return records, f"{bad} lines of {self.journal_file} are not measurements and are ignored" if bad else ""

    def clear(self) -> None:
        """Delete all files about machines with this fingerprint."""
        for path in (self.book_file, self.journal_file, *self.tables().values()):
            with suppress(FileNotFoundError):
                path.unlink()

    def write_book(self, book: Winners) -> None:
        """Replace the file with the fastest settings."""
        self.write(self.book_file, book.text())

    def write(self, path: Path, text: str) -> None:
        """Replace a file atomically."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f"{path.name}.{os.getpid()}")
            try:
                temporary.write_text(text, encoding="utf-8")
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise cannot_write(path, error, ELSEWHERE) from None

    def note(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append records of measurements to the journal file."""
        append(self.journal_file, records)


def append(journal: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Append records of measurements to a journal, one per line.

    If an earlier writer has left an incomplete line, the line is ended first.
    """
    try:
        journal.parent.mkdir(parents=True, exist_ok=True)
        with journal.open("a+b") as file:
            half = file.tell() > 0 and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"
            lines = "".join(json.dumps(one, allow_nan=False) + "\n" for one in records)
            file.write((b"\n" if half else b"") + lines.encode())
    except OSError as error:
        raise cannot_write(journal, error, ELSEWHERE) from None


def this_store() -> Store:
    """Return the store for this machine and its software."""
    return Store(store_folder(), machine_facts())


def is_empty() -> bool:
    """Return whether this user has no tuned settings, without inspecting the machine."""
    try:
        return not any(store_folder().glob("*.json"))
    except OSError:
        return True


def with_tuned(
    benchmark: str, run: AnyRun, *, alone: bool = True, fixed: Collection[str] = ()
) -> tuple[AnyRun, list[str]]:
    """Return the run with the stored winner's values instead of defaults, and notes about values that are not used.

    If `alone`, this is the only benchmark of the command, so its ranks and threads may also be tuned values if both
    are unset. The settings in `fixed` keep their values.
    """
    if is_empty():
        return run, []
    store = this_store()
    book, trouble = store.book()
    if trouble:
        return run, [trouble]
    if not any(one.benchmark == benchmark for one in book.winners.values()):
        return run, []
    config: RunConfig = run.config
    if config.fp64_products != "native":
        wanted = f"--fp64 {config.fp64_products}"
        return run, [f"stored settings are not used: they were measured with native fp64 products, not with {wanted}"]
    open_n = alone and _n_is_open(run)
    needs = _wanted(benchmark, config, alone=alone, open_n=open_n, open_blas=run.is_default("blas"))
    winner, reason = winner_for(book.winners.values(), needs)
    if winner is None:
        return run, [f"stored settings are not used: {reason}; see mxpeak tune {benchmark}"] * bool(reason)
    if reason := _changed_library(winner.library):
        again = f"mxpeak tune {benchmark} --blas {winner.settings['blas']}"
        return run, [f"stored settings are not used: {reason}; measure again with {again}"]
    try:
        values = _winner_values(winner, type(config), open_layout=(config.ranks, config.threads) == (None, None))
    except UsageError as error:
        return run, [f"{store.book_file} is ignored: {error}; mxpeak tune --fresh writes a new one"]
    used = _open_values(run, values, [*fixed, *([] if open_n else ["n"])])
    return run.with_values(used, "tuned"), [partial_note(winner)] if used and winner.runs_left else []


def partial_note(winner: Winner) -> str:
    """Return the note about settings from a search that was cut short, with the command that continues the search."""
    runs = "1 run was" if winner.runs_left == 1 else f"{winner.runs_left} runs were"
    return f"stored settings are from a search in which {runs} missing; repeat its mxpeak tune command to continue it"


def _n_is_open(run: Run[Any]) -> bool:
    """Return whether no source determines the order N of a run: neither N itself, nor a file or the memory to fill."""
    config = run.config
    given = [name for name in ("n", "mem", "study") if hasattr(config, name) and not run.is_default(name)]
    return not given and not config.quick and getattr(config, "matrix", None) is None


def _open_values(run: Run[Any], values: Mapping[str, Any], fixed: Collection[str]) -> dict[str, Any]:
    """Return the winner's values for settings that no source has set. Grids and boxes are used only as a whole."""
    barred = set(fixed)
    for whole in (("grid", "P", "Q", "node_grid"), ("nx", "ny", "nz"), ("process_grid", "npx", "npy", "npz")):
        if not all(map(run.is_default, whole)):
            barred.update(whole)
    if run.config.quick or getattr(run.config, "matrix", None) is not None:  # either of them defines the box
        barred.update(("nx", "ny", "nz"))
    return {name: value for name, value in values.items() if name not in barred and run.is_default(name)}


def _winner_values(winner: Winner, config: type[RunConfig], *, open_layout: bool) -> dict[str, Any]:
    """Return the winner's settings as parsed values, including ranks and threads if these were tuned and are unset."""
    by_name = {o.name: o for o in options(config) if not o.users_path}
    texts = dict(winner.settings)
    if winner.library:  # exactly the measured file, because the loader may find another library with this name
        texts["blas"] = winner.library["file"]
    if winner.any_layout and winner.ranks > 1 and open_layout:
        texts |= {"ranks": str(winner.ranks), "threads": str(winner.threads)}
    for name in texts:
        if name not in by_name:
            raise UsageError(f"{winner.benchmark} has no setting {name!r}")
    return {name: by_name[name].parse(text) for name, text in texts.items()}


def blas_file(name: str) -> dict[str, Any]:
    """Return the file of a BLAS library with its size and modification time, or {} if the library is no file on disk.

    Open the library and compare its products with exact results; raise a ResourceError if they differ. SciPy's BLAS
    is selected on return.
    """
    from mxpeak.kernels.host.engine.blas import blas_facts

    try:
        select_blas("host", name)
        file = os.path.realpath(blas_facts()["path"])
    finally:
        select_blas("host", "scipy")
    return _properties(file) if os.path.isfile(file) else {}


def _properties(file: str) -> dict[str, Any]:
    """Return the path of a file, its number of bytes and the time of its last modification."""
    status = os.stat(file)
    return {"file": file, "bytes": status.st_size, "modified_ns": status.st_mtime_ns}


def _changed_library(library: Mapping[str, Any]) -> str:
    """Return the reason why the file of a measured BLAS library cannot be used; empty if it is unchanged."""
    if not library:
        return ""
    file = library["file"]
    if not os.path.isfile(file):
        return f"they were measured with {file}, which is no longer installed"
    if _properties(file) != library:
        return f"they were measured with {file}, which has changed since the measurement"
    return ""


def _wanted(
    benchmark: str, config: RunConfig, *, alone: bool, open_n: bool = False, open_blas: bool = False
) -> RunNeeds:
    """Return the properties of a run by which tuned settings are selected.

    Under a launcher, the ranks are fixed, and the threads follow from them.
    """
    from mxpeak.runtime.launcher import launched, launcher

    launched_by = launcher() if launched() else None
    cores = max(1, len(one_core_each()))
    ranks, threads = config.ranks or 1, config.threads
    if launched_by is not None:
        ranks = launched_by[2]
    elif threads is None:
        threads = max(1, cores // ranks)
    is_open = launched_by is None and alone and (config.ranks, config.threads) == (None, None) and config.comm != "solo"
    kernels, device = resolve(config.kernels, config.device)
    device = device.partition(":")[0]
    return RunNeeds(
        benchmark=benchmark,
        mode=getattr(config, "mode", "official"),
        device=device,
        ranks=ranks,
        threads=threads,
        open_layout=is_open,
        n=_orders(config, device),
        open_n=open_n,
        shape=getattr(config, "shape", None),
        precision=getattr(config, "precision", None) if benchmark == "hpl-mxp" else None,
        blas=None if open_blas and kernels == "host" else config.blas,
    )


def device_of(kernels: str, device: str) -> str:
    """Return the kind of device that computes: cpu or cuda."""
    return resolve(kernels, device)[1].partition(":")[0]


def _orders(config: RunConfig, device: str) -> tuple[int, ...] | None:
    """Return the orders N of a run, or an estimate of N if the run fills the memory.

    Returns None if the size depends on a measurement or if the benchmark has no order.
    """
    if not hasattr(config, "n"):
        return None
    orders: tuple[int, ...] | None = config.n
    total = total_memory_bytes()
    if orders is None and not config.quick and device == "cpu" and total is not None:
        entry_bytes = 4 if hasattr(config, "refine") else 8
        orders = (isqrt(memory_bytes(config.mem, total) // entry_bytes),)
    return orders

"""Checkpoints of a distributed matrix: a file a rank, written in the background, whole or not there at all.

    DIR/run.json            what is computed, for whoever goes on with it
    DIR/{a,b}/0-1           the part of process row 0 and column 1; the two slots take turns

A part is a line of JSON, then the numbers, row by row.  It is written under another name, brought to the disk, and
renamed; a slot is written only once the other is complete, so one whole checkpoint is there at any moment.  A part
knows which checkpoint it belongs to and the sums of its bits: what is torn is recognised, and the other slot is taken.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.records import read_json

Array = np.ndarray[Any, np.dtype[Any]]

SCHEMA = "mxpeak.checkpoint/1"
RUN, SLOTS = "run.json", ("a", "b")
#: Bytes of the first line, and of the numbers that are written, summed and read at a time.
HEAD, SUMMED, AT_ONCE = 1 << 20, 1 << 12, 1 << 24
#: What is written past the cache begins and ends on a page, in memory and in the file.
PAGE = mmap.PAGESIZE


@dataclass(frozen=True, slots=True)
class Part:
    """What the first line of a part says.

    run          which run it is of
    number       which of its checkpoints
    steps        how many steps of the factorization are done
    elapsed_s    seconds of the clock until then, over all processes that have computed
    unix         when that was
    notes        numbers by name, which the factorization takes up again
    digest       of the numbers that follow
    """

    run: str
    number: int
    steps: int
    m: int
    n: int
    nb: int
    P: int
    Q: int
    p: int
    q: int
    dtype: str
    elapsed_s: float
    unix: float
    notes: Mapping[str, list[float]]
    digest: str = ""

    @property
    def rows(self) -> BlockCyclic:
        """Which rows it holds."""
        return BlockCyclic(self.m, self.nb, self.p, self.P)

    @property
    def columns(self) -> BlockCyclic:
        """Which columns it holds."""
        return BlockCyclic(self.n, self.nb, self.q, self.Q)

    @property
    def shape(self) -> tuple[int, int]:
        """Of its numbers."""
        return self.rows.local_size, self.columns.local_size

    @property
    def name(self) -> str:
        """Its file's name."""
        return f"{self.p}-{self.q}"


def digest(numbers: Array) -> str:
    """What tells these bits from others: a hash of the sums of every few thousand bytes, as fast as memory is read."""
    found, flat = hashlib.blake2b(digest_size=16), numbers.reshape(-1).view(np.uint8)
    for i in range(0, len(flat), AT_ONCE):
        piece = flat[i : i + AT_ONCE]
        whole = len(piece) // SUMMED * SUMMED
        found.update(piece[:whole].view(np.uint64).reshape(-1, SUMMED // 8).sum(axis=1, dtype=np.uint64).tobytes())
        found.update(piece[whole:].tobytes())
    return found.hexdigest()


# --- writing


class Writer:
    """Writes this rank's parts, one at a time, while the rank computes.  The copy that it writes from is its own."""

    def __init__(self, folder: Path, like: Array):
        self._folder = folder
        self._copy = pages(like.shape, like.dtype)
        self._copy.fill(0)  # so that the system hands them out now
        self._thread: threading.Thread | None = None
        self.error: Exception | None = None

    @property
    def busy(self) -> bool:
        """Whether a part is being written."""
        return self._thread is not None and self._thread.is_alive()

    def write(self, part: Part, fill: Callable[[Array], None]) -> None:
        """Have `fill` copy the numbers, and write them as this part; nothing is under way."""
        self.wait()
        fill(self._copy)
        self._thread = threading.Thread(target=self._run, args=(part,), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is under way."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, part: Part) -> None:
        try:
            write_part(self._folder / SLOTS[part.number % 2], part, self._copy)
        except Exception as error:  # whatever it is, the run must hear that nothing was kept
            self.error = error


def write_part(slot: Path, part: Part, numbers: Array) -> None:
    """Write a part, which is there whole once its name is."""
    slot.mkdir(exist_ok=True)
    beside = slot / f".{part.name}.part"
    head = json.dumps({"schema": SCHEMA, **asdict(part), "digest": digest(numbers)}).encode()
    if len(head) >= HEAD:
        raise ValueError(f"its head takes {len(head)} bytes of {HEAD}")
    try:
        with beside.open("wb", buffering=0) as file:
            _write(file.fileno(), np.frombuffer(head.ljust(HEAD - 1) + b"\n", np.uint8))
            flat = numbers.reshape(-1).view(np.uint8)
            whole = len(flat) // PAGE * PAGE
            for i in range(0, whole, AT_ONCE):
                _write(file.fileno(), flat[i : min(i + AT_ONCE, whole)])
            _write(file.fileno(), flat[whole:])
            os.fsync(file.fileno())
        beside.rename(slot / part.name)
        folder = os.open(slot, os.O_RDONLY)
        try:
            os.fsync(folder)  # the name too is on the disk before the other slot is written to
        finally:
            os.close(folder)
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def pages(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Zeros that begin on a page of memory."""
    memory = mmap.mmap(-1, max(1, math.prod(shape) * dtype.itemsize))
    return np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)


def _write(file: int, piece: Array) -> None:
    """Write bytes past the system's cache, if they are whole pages and the disk can.

    Through the cache they would take ten times as long of a processor that computes, and memory that a run has filled.
    """
    direct = piece.ctypes.data % PAGE == 0 == piece.size % PAGE and _set_direct(file, True)
    while piece.size:
        try:
            piece = piece[os.write(file, piece.data) :]
        except OSError as error:
            if error.errno != errno.EINVAL or not direct:
                raise
            direct = _set_direct(file, False)  # a disk with larger pages, or what a signal left of this one
    if direct:
        _set_direct(file, False)


def _set_direct(file: int, on: bool) -> bool:
    """Let what is written to a file bypass the cache, or not; whether it does.  In memory, and on a Mac, none does."""
    bypass = getattr(os, "O_DIRECT", 0)
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags | bypass if on else flags & ~bypass)
    except OSError:
        return False
    return on and bypass != 0


# --- reading


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The parts of one checkpoint, and where they are."""

    parts: list[tuple[Path, Part]]

    @property
    def about(self) -> Part:
        """What all parts have in common."""
        return self.parts[0][1]


def checkpoints(folder: Path, run: str) -> tuple[list[Checkpoint], list[str]]:
    """The checkpoints of a run that have all their parts, the latest first; and what is wrong with others."""
    found, wrong = [], []
    for slot in SLOTS:
        try:
            parts = [(path, _head(path)) for path in sorted((folder / slot).glob("[0-9]*-[0-9]*"))]
            if parts:  # a run that went on on another grid leaves parts behind that nobody writes again
                newest = max((one for _, one in parts), key=lambda one: (one.run == run, one.number, one.unix))
                parts = [(path, one) for path, one in parts if one.p < newest.P and one.q < newest.Q]
            _check_together(parts, run)
        except (OSError, ValueError, TypeError, KeyError) as error:
            wrong.append(f"{folder / slot}: {error}")
            continue
        found.append(Checkpoint(parts))
    return sorted(found, key=lambda one: -one.about.number), wrong


def _head(path: Path) -> Part:
    with path.open("rb") as file:
        line = file.read(HEAD)
    try:
        said = read_json(line)
    except ValueError:
        raise ValueError(f"part {path.name} does not begin as a part does") from None
    if not isinstance(said, dict) or said.pop("schema", None) != SCHEMA:
        raise ValueError(f"part {path.name} is not one of {SCHEMA}")
    part = Part(**said)
    wanted = HEAD + part.shape[0] * part.shape[1] * np.dtype(part.dtype).itemsize
    if path.stat().st_size != wanted:
        raise ValueError(f"part {path.name} has {path.stat().st_size} bytes instead of {wanted}")
    return part


def _check_together(parts: list[tuple[Path, Part]], run: str) -> None:
    if not parts:
        raise ValueError("nothing has been kept here")
    first = parts[0][1]
    same = {(one.run, one.number, one.steps, one.m, one.n, one.nb, one.P, one.Q, one.dtype) for _, one in parts}
    if first.run != run:
        raise ValueError("its parts belong to another run")
    if len(same) > 1:
        raise ValueError(f"its parts are of {len(same)} checkpoints")
    if {(one.p, one.q) for _, one in parts} != {(p, q) for p in range(first.P) for q in range(first.Q)}:
        raise ValueError(f"{len(parts)} of {first.P * first.Q} parts are there")


def trouble(path: Path, part: Part) -> str | None:
    """What is wrong with a part's numbers; None: nothing."""
    try:
        return None if digest(_numbers(path, part)) == part.digest else f"{path}: its bits are not those that were kept"
    except (OSError, ValueError) as error:
        return f"{path}: {error}"


def _numbers(path: Path, part: Part) -> Array:
    if 0 in part.shape:
        return np.empty(part.shape, part.dtype)
    return np.memmap(path, part.dtype, "r", HEAD, part.shape)


def load(checkpoint: Checkpoint, rows: BlockCyclic, columns: BlockCyclic, local: Array) -> None:
    """This rank's part of the matrix, whatever grid it was kept on, with the same blocks."""
    for path, part in checkpoint.parts:
        (to_i, from_i), (to_j, from_j) = _shared(rows, part.rows), _shared(columns, part.columns)
        if not (len(to_i) and len(to_j)):
            continue
        numbers = _numbers(path, part)
        for to, source in _pieces(to_i, from_i):
            local[np.ix_(to, to_j)] = numbers[source][:, from_j]


def _shared(mine: BlockCyclic, theirs: BlockCyclic) -> tuple[Array, Array]:
    """The local indices, here and there, of what both hold."""
    here = np.arange(mine.local_size)
    blocks, within = here // mine.nb * mine.P + mine.p, here % mine.nb
    both = blocks % theirs.P == theirs.p
    return here[both], blocks[both] // theirs.P * theirs.nb + within[both]


def _pieces(to: Array, source: Array) -> Iterator[tuple[Array, Array]]:
    return ((to[i : i + 256], source[i : i + 256]) for i in range(0, len(to), 256))

r"""Write each rank's part of a distributed matrix in the background, and rename the file when it is complete.

    DIR/run.json            the run: benchmark, version and settings
    DIR/lock                locked by the run that uses the folder
    DIR/finished            exists if the run has a result
    DIR/{a,b}/0-1           the part of process row 0 and column 1; the two slots alternate

A part consists of a header, the entries by rows, and a digest of both:

    mxpeak.checkpoint/2 <bytes of the header> <digest of the header>\n
    <JSON, filled up with spaces to whole pages>\n
    <entries>
    <digest of the header and the entries>

A part is written under another name, flushed to the disk and renamed. A slot is written only when all parts of the
other slot are complete, so one complete checkpoint exists at any time. Any changed, missing or exchanged byte of a
part changes one of its digests, and `mxpeak resume` then uses the other slot.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import mmap
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

import numpy as np

from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.records import read_json

Array = np.ndarray[Any, np.dtype[Any]]

SCHEMA = "mxpeak.checkpoint/2"
RUN, SLOTS = "run.json", ("a", "b")
#: Number of hexadecimal digits of a digest, of bytes in the first line, and of bytes that are written and added to the
#: digest at a time.
DIGEST, FIRST_LINE, AT_ONCE = 64, len(SCHEMA) + 10 + 64 + 3, 1 << 24
#: The largest size of a header and of a run.json in bytes, so that a damaged or foreign file cannot fill the memory.
MAX_HEADER_BYTES = 1 << 29
MAX_RUN_FILE_BYTES = 1 << 20
#: Writes that bypass the cache begin and end on a page, in memory and in the file.
PAGE = mmap.PAGESIZE
#: The largest number of rows that are read at a time.
MAX_ROWS = 256
#: The types of the entries of a matrix in host memory.
DTYPES = ("float64", "float32", "float16")
#: The integers of a header, each with its smallest and its largest allowed value.
INTEGERS = {
    "number": (1, 1 << 53),
    "steps": (1, 1 << 40),
    "m": (1, 1 << 40),
    "n": (1, 1 << 40),
    "nb": (1, 1 << 40),
    "P": (1, 1 << 24),
    "Q": (1, 1 << 24),
    "p": (0, 1 << 24),
    "q": (0, 1 << 24),
}
#: The times of a header, each with its largest allowed value: ten thousand years.
TIMES = {"elapsed_s": 3e11, "unix": 3e11}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPart:
    """The header of a part.

    about        the run: name, benchmark, version and settings
    generation   an identifier shared by the processes of one start; a resumed run has a different one
    number       the number of this checkpoint in the run
    steps        the number of completed steps of the factorization
    elapsed_s    timed seconds until the copy, over all processes that have computed
    unix         the time of the copy
    notes        lists of numbers by name, from which the factorization continues
    """

    about: Mapping[str, Any]
    generation: str
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

    @property
    def rows(self) -> BlockCyclic:
        """Return the block-cyclic layout of the rows."""
        return BlockCyclic(self.m, self.nb, self.p, self.P)

    @property
    def columns(self) -> BlockCyclic:
        """Return the block-cyclic layout of the columns."""
        return BlockCyclic(self.n, self.nb, self.q, self.Q)

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape of the array of entries that the part stores."""
        return self.rows.local_size, self.columns.local_size

    @property
    def bytes(self) -> int:
        """Return the size of the stored entries in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def name(self) -> str:
        """Return the name of the part's file."""
        return part_name(self.p, self.q)

    @property
    def shared(self) -> dict[str, Any]:
        """Return the values that all parts of a checkpoint have in common."""
        own = ("p", "q", "elapsed_s", "unix", "notes")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in own}


def part_name(p: int, q: int) -> str:
    """Return the name of the file with the part of process row p and column q."""
    return f"{p}-{q}"


class Digest:
    """Computes a digest of a part: the BLAKE2b hash of the header and of a CRC-32 per 16 MiB of entries.

    CRC-32 reads four times as many bytes per second as BLAKE2b (2.4 and 0.6 GB/s on a 2.5 GHz Xeon). It finds every
    error of one or two bits, and every burst of up to 32 bits, within the 16 MiB.
    """

    def __init__(self, head: bytes):
        self._hash = blake2b(head, digest_size=DIGEST // 2)

    def add(self, piece: Any) -> None:
        """Add a piece of up to AT_ONCE bytes to the digest. All pieces except the last one must have this size."""
        self._hash.update(crc32(piece).to_bytes(4, "little"))

    def add_all(self, flat: Array) -> None:
        """Add all bytes of an array to the digest."""
        for piece in _cut(flat):
            self.add(piece.data)

    def text(self) -> bytes:
        """Return the digest as hexadecimal digits."""
        return self._hash.hexdigest().encode()


def head_of(part: CheckpointPart) -> bytes:
    """Return the header of a part as bytes, padded to whole pages."""
    values = {f.name: getattr(part, f.name) for f in fields(part)}
    values["notes"] = {name: np.asarray(note, "<f8").tobytes().hex() for name, note in part.notes.items()}
    body = json.dumps(values, allow_nan=False).encode()
    size = -(-(FIRST_LINE + len(body) + 1) // PAGE) * PAGE
    if size > MAX_HEADER_BYTES:
        raise ValueError(f"its header has {size} bytes, but the limit is {MAX_HEADER_BYTES} bytes")
    begin = f"{SCHEMA} {size:010} ".encode()
    body = body.ljust(size - FIRST_LINE - 1) + b"\n"
    return begin + _head_digest(begin, body) + b"\n" + body


def _head_digest(begin: bytes, body: bytes) -> bytes:
    return blake2b(begin + body, digest_size=DIGEST // 2).hexdigest().encode()


class Writer:
    """Writes the parts of this rank in the background, one at a time, from a copy of the matrix.

    `fill` copies the entries of the matrix to an array like `like`.
    """

    def __init__(self, folder: Path, like: Array, fill: Callable[[Array], None]):
        self._folder, self._fill = folder, fill
        self._copy = pages(like.shape, like.dtype)
        self._copy.fill(0)  # so that the system provides the memory now
        self._thread: threading.Thread | None = None
        self.error: Exception | None = None

    @property
    def busy(self) -> bool:
        """Return whether a part is being written."""
        return self._thread is not None and self._thread.is_alive()

    def write(self, part: CheckpointPart) -> None:
        """Copy the entries, and start to write the copy as this part in the background."""
        self.wait()
        self._fill(self._copy)
        self._thread = threading.Thread(target=self._run, args=(part,), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until no part is being written."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, part: CheckpointPart) -> None:
        try:
            write_part(self._folder / SLOTS[part.number % 2], part, self._copy)
        except Exception as error:  # the run must report every failure as a missing checkpoint
            self.error = error


class DirectWriter:
    """Writes the parts of this rank while the run waits, from a matrix that is not in host memory.

    `rows_of(i0, i1)` returns rows i0:i1 of the matrix as an array. The matrix of a device may be larger than the memory
    of the host, so only two pieces of AT_ONCE bytes are in host memory at the same time.
    """

    busy = False

    def __init__(self, folder: Path, rows_of: Callable[[int, int], Array]):
        self._folder, self._rows_of = folder, rows_of
        self.error: Exception | None = None

    def write(self, part: CheckpointPart) -> None:
        """Write the entries as this part."""
        try:
            write_pieces(self._folder / SLOTS[part.number % 2], part, pieces_of(part, self._rows_of))
        except Exception as error:  # the run must report every failure as a missing checkpoint
            self.error = error

    def wait(self) -> None:
        """Do nothing, because each part is complete when `write` returns."""


def pieces_of(part: CheckpointPart, rows_of: Callable[[int, int], Array]) -> Iterator[Array]:
    """Yield the entries of a part as bytes, in pieces of AT_ONCE bytes; each piece replaces the previous one."""
    m, n = part.shape
    line = n * np.dtype(part.dtype).itemsize
    height = max(1, AT_ONCE // max(1, line))
    piece, filled = pages((AT_ONCE,), np.dtype(np.uint8)), 0
    for i0 in range(0, m if line else 0, height):
        rows = np.ascontiguousarray(rows_of(i0, min(i0 + height, m))).reshape(-1).view(np.uint8)
        while rows.size:
            count = min(rows.size, AT_ONCE - filled)
            piece[filled : filled + count] = rows[:count]
            rows, filled = rows[count:], filled + count
            if filled == AT_ONCE:
                yield piece
                filled = 0
    if filled:
        yield piece[:filled]


def write_pieces(slot: Path, part: CheckpointPart, pieces: Iterable[Array]) -> None:
    """Write a part whose entries arrive as pieces of AT_ONCE bytes, of which only the last one may be smaller."""
    head = head_of(part)
    digest = Digest(head)
    with _part_file(slot, part) as file:
        _write(file, np.frombuffer(head, np.uint8))
        for piece in pieces:
            digest.add(piece.data)
            _write_piece(file, piece)
        _write(file, np.frombuffer(digest.text(), np.uint8))


def write_part(slot: Path, part: CheckpointPart, numbers: Array) -> None:
    """Write a part from an array of its entries; the digest is computed at the same time."""
    head = head_of(part)
    flat = numbers.reshape(-1).view(np.uint8)
    digest = Digest(head)
    summing = threading.Thread(target=digest.add_all, args=(flat,), name="digest")
    with _part_file(slot, part) as file:
        summing.start()  # while the disk writes
        try:
            _write(file, np.frombuffer(head, np.uint8))
            for piece in _cut(flat):
                _write_piece(file, piece)
        finally:
            summing.join()
        _write(file, np.frombuffer(digest.text(), np.uint8))


@contextmanager
def _part_file(slot: Path, part: CheckpointPart) -> Iterator[int]:
    """Open the file of a part under a temporary name, and rename it when it is complete."""
    with suppress(FileExistsError):
        slot.mkdir()
        _flush_folder(slot.parent)
    if slot.is_symlink():
        raise OSError(errno.ELOOP, f"{slot} is a symbolic link; use a folder instead")
    with new_file(slot / f".{part.name}.part", slot / part.name) as file:
        yield file


def _write_piece(file: int, piece: Array) -> None:
    """Write whole pages and the rest of a piece separately, because only whole pages can bypass the cache."""
    whole = len(piece) // PAGE * PAGE
    _write(file, piece[:whole])
    _write(file, piece[whole:])


def _cut(flat: Array) -> Iterator[Array]:
    return (flat[i : i + AT_ONCE] for i in range(0, len(flat), AT_ONCE))


@contextmanager
def new_file(temporary: Path, path: Path) -> Iterator[int]:
    """Open a new file under a temporary name, and rename it to `path` when it is completely on the disk.

    The temporary name may be a link to another file of the user. The function removes such a link and never follows
    it.
    """
    temporary.unlink(missing_ok=True)
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    try:
        try:
            yield file
            os.fsync(file)
        finally:
            os.close(file)
        temporary.rename(path)
        _flush_folder(path.parent)  # the new name must be on the disk before the other slot is written
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _flush_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def pages(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an array of zeros that begins at a page boundary of memory."""
    memory = mmap.mmap(-1, max(1, math.prod(shape) * dtype.itemsize))
    return np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)


def _write(file: int, piece: Array) -> None:
    """Write the bytes of `piece` to a file, and bypass the cache of the system if possible.

    The bypass requires whole pages and a disk that supports it. Writes through the cache need ten times as much
    processor time, and they need memory, which the run has filled.
    """
    direct = piece.ctypes.data % PAGE == 0 == piece.size % PAGE and _set_direct(file, True)
    while piece.size:
        try:
            piece = piece[os.write(file, piece.data) :]
        except OSError as error:
            if error.errno != errno.EINVAL or not direct:
                raise
            direct = _set_direct(file, False)  # a disk with larger pages, or the rest after a signal
    if direct:
        _set_direct(file, False)


def _set_direct(file: int, on: bool) -> bool:
    """Turn the bypass of the cache on or off, and return whether writes bypass the cache.

    File systems in memory and macOS do not support the bypass.
    """
    bypass = getattr(os, "O_DIRECT", 0)
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags | bypass if on else flags & ~bypass)
    except OSError:
        return False
    return on and bypass != 0


@contextmanager
def regular_file(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading, and raise a ValueError for pipes and devices, whose reads may never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        yield file


def read_part(slot: Path, p: int, q: int, *, whole: bool) -> tuple[CheckpointPart, int]:
    """Read the header of a part, and return it with its size in bytes.

    If `whole`, the digest of the entries is also checked. Raises a ValueError that describes the defect, or an
    OSError.
    """
    with regular_file(slot / part_name(p, q)) as file:
        head, part = read_head(file)
        if (part.p, part.q) != (p, q):
            raise ValueError(f"it contains the part of process {part.p},{part.q}")
        size, wanted = os.fstat(file.fileno()).st_size, len(head) + part.bytes + DIGEST
        if size != wanted:
            raise ValueError(f"it has {size} bytes instead of {wanted}")
        if whole:
            check_numbers(file, head, part)
    return part, len(head)


def read_head(file: BinaryIO) -> tuple[bytes, CheckpointPart]:
    """Read the header of a part, check its digest and its values, and return its bytes and the part."""
    line = file.read(FIRST_LINE)
    match = re.fullmatch(re.escape(SCHEMA.encode()) + rb" (\d{10}) ([0-9a-f]{%d})\n" % DIGEST, line)
    if match is None:
        raise ValueError(f"it does not begin with a header of {SCHEMA}")
    size = int(match[1])
    if not FIRST_LINE < size <= MAX_HEADER_BYTES:
        raise ValueError(f"its header has an invalid size of {size} bytes")
    body = file.read(size - FIRST_LINE)
    if _head_digest(line[: match.start(2)], body) != match[2]:
        raise ValueError("its header is damaged: the digest differs")
    return line + body, _part_of(read_json(body))


def _part_of(values: Any) -> CheckpointPart:
    """Return the part that the JSON of a header describes; raise a ValueError if a value is invalid."""
    names = {f.name for f in fields(CheckpointPart)}
    if not isinstance(values, dict) or set(values) != names:
        raise ValueError(f"its header does not have exactly the keys {', '.join(sorted(names))}")
    for name, (least, largest) in INTEGERS.items():
        if type(values[name]) is not int or not least <= values[name] <= largest:
            raise ValueError(f"its {name} is {values[name]!r:.40}, which is not an integer from {least} to {largest}")
    for name, latest in TIMES.items():
        if type(values[name]) not in (int, float) or not 0 <= values[name] <= latest:
            raise ValueError(f"its {name} is {values[name]!r:.40}, which is not a time in seconds")
    if (
        values["dtype"] not in DTYPES
        or not isinstance(values["generation"], str)
        or not isinstance(values["about"], dict)
    ):
        raise ValueError("its dtype, its generation or its run has an invalid value")
    part = CheckpointPart(**{**values, "notes": _numbers_by_name(values["notes"])})
    if not (part.p < part.P and part.q < part.Q):
        raise ValueError(f"process {part.p},{part.q} is not in a grid of {part.P}x{part.Q}")
    if part.steps >= -(-part.m // part.nb):
        raise ValueError(f"its {part.steps} steps are not fewer than the {-(-part.m // part.nb)} steps of the run")
    return part


def _numbers_by_name(values: Any) -> dict[str, list[float]]:
    if not isinstance(values, dict) or not all(
        isinstance(text, str) and len(text) % 16 == 0 for text in values.values()
    ):
        raise ValueError("its data is not a set of named lists of numbers")
    return {name: np.frombuffer(bytes.fromhex(text), "<f8").tolist() for name, text in values.items()}


def check_numbers(file: BinaryIO, head: bytes, part: CheckpointPart) -> None:
    """Check the entries after a header against the digest that follows them; raise a ValueError if it differs."""
    digest, remaining = Digest(head), part.bytes
    piece = memoryview(bytearray(min(remaining, AT_ONCE)))
    while remaining:
        wanted = piece[: min(remaining, AT_ONCE)]
        _fill(file, wanted)
        digest.add(wanted)
        remaining -= len(wanted)
    if file.read(DIGEST + 1) != digest.text():
        raise ValueError("its numbers are damaged: the digest differs")


def _fill(file: BinaryIO, piece: memoryview) -> None:
    while piece:
        count = file.readinto(piece)  # type: ignore[attr-defined]
        if not count:
            raise ValueError("it is too short")
        piece = piece[count:]


def load(
    slot: Path, first: CheckpointPart, rows: BlockCyclic, columns: BlockCyclic, put: Callable[[Array, Array], None]
) -> None:
    """Read the entries of this rank from the parts of a checkpoint, which may have another process grid.

    `put(i, lines)` receives the entries of local rows i, with at most AT_ONCE bytes unless one row is longer. `first`
    is one of the parts. All parts must have been read and checked before. Raises a ValueError or an OSError.
    """
    line = columns.local_size * np.dtype(first.dtype).itemsize
    max_rows = max(1, min(MAX_ROWS, AT_ONCE // max(1, line)))
    for p in range(first.P):
        to_i, from_i = _common(rows, BlockCyclic(first.m, first.nb, p, first.P))
        with ExitStack() as files:
            sources = []
            for q in range(first.Q) if len(to_i) else ():
                to_j, from_j = _common(columns, BlockCyclic(first.n, first.nb, q, first.Q))
                if len(to_j):
                    sources.append((*_open_part(slot, first, (p, q), files), to_j, from_j))
            for to, source in _runs(to_i, from_i, max_rows) if sources else ():
                lines = np.empty((len(to), columns.local_size), first.dtype)
                for file, begin, width, to_j, from_j in sources:
                    piece = np.empty((len(source), width), first.dtype)
                    file.seek(begin + int(source[0]) * width * piece.itemsize)
                    _fill(file, piece.data.cast("B"))
                    lines[:, to_j] = piece[:, from_j]
                put(to, lines)


def _open_part(
    slot: Path, first: CheckpointPart, process: tuple[int, int], files: ExitStack
) -> tuple[BinaryIO, int, int]:
    """Open a part of a checkpoint, and return its file, the position of its entries and its number of columns."""
    part, begin = read_part(slot, *process, whole=False)
    if part.shared != first.shared:
        raise ValueError("it belongs to another checkpoint")
    return files.enter_context(regular_file(slot / part.name)), begin, part.shape[1]


def _common(local: BlockCyclic, theirs: BlockCyclic) -> tuple[Array, Array]:
    """Find the global indices that both layouts contain, and return their local indices in each layout."""
    here = np.arange(local.local_size)
    blocks, within = here // local.nb * local.P + local.p, here % local.nb
    both = blocks % theirs.P == theirs.p
    return here[both], blocks[both] // theirs.P * theirs.nb + within[both]


def _runs(to: Array, source: Array, max_rows: int) -> Iterator[tuple[Array, Array]]:
    """Divide rows into runs of at most `max_rows` that are consecutive in `source`; yield the indices of each run."""
    cuts = np.flatnonzero(np.diff(source) != 1) + 1
    for here, there in zip(np.split(to, cuts), np.split(source, cuts)):
        for i in range(0, len(there), max_rows):
            yield here[i : i + max_rows], there[i : i + max_rows]

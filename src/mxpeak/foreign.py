"""Read files and print texts from outside mxpeak without blocking, filling the memory or controlling the terminal."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

#: Maximum number of bytes of a file. A result of 75,000 ranks has 14 MB, and a file may contain several results.
MAX_BYTES = 256 * 2**20
#: Maximum seconds to wait until a program opens a pipe for writing.
WRITER_S = 1.0
#: Characters that act on a terminal or cannot be encoded: control characters except tab and newline, line and
#: paragraph separators, characters that change the direction of text, and unpaired surrogates.
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class UnreadableError(OSError):
    """Raised for a file that cannot be read as text; `strerror` is the reason."""

    def __init__(self, reason: str):
        super().__init__(0, reason)


def read_text(path: str | Path, *, errors: str = "strict") -> str:
    """Return the text of a file, without a byte order mark.

    Raise an OSError for a path that is not a regular file or pipe, or that has more than MAX_BYTES. Raise an
    UnreadableError for bytes that are not UTF-8, unless `errors` replaces these bytes.
    """
    data = read_bytes(path)
    try:
        return data.decode("utf-8-sig", errors)
    except UnicodeDecodeError as error:
        reason = f"byte {error.start} is 0x{data[error.start]:02x}, which is not UTF-8"
        raise UnreadableError(reason) from None


def read_bytes(path: str | Path) -> bytes:
    """Return the bytes of a regular file or of a pipe, at most MAX_BYTES.

    Raise an OSError for a pipe to which no program writes, instead of waiting for a writer.
    """
    with _opened(path) as (file, mode):
        if stat.S_ISFIFO(mode):
            return _limited(chain([_first(file)], _chunks(file)))
        size = os.fstat(file).st_size
        if size > MAX_BYTES:
            raise UnreadableError(f"it has {size} bytes, but mxpeak reads at most {MAX_BYTES}")
        return _limited(_chunks(file))


def check_readable(path: str | Path) -> None:
    """Raise an OSError if the path is not a regular file. Opening a pipe or a device could block."""
    with _opened(path) as (_, mode):
        if not stat.S_ISREG(mode):
            raise UnreadableError("it is not a regular file")


def irregular(path: str | Path) -> str | None:
    """Return the kind of a path that is not a regular file, such as "a folder"; None for a regular or missing file."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return None
    kinds = {stat.S_IFREG: None, stat.S_IFDIR: "a folder", stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a pipe"}
    return kinds.get(stat.S_IFMT(mode), "a device or a socket")


@contextmanager
def _opened(path: str | Path) -> Iterator[tuple[int, int]]:
    """Open a file or a pipe without waiting for a writer, yield its descriptor and mode, and close the file."""
    if "\0" in str(path):
        raise UnreadableError("its name contains a null character")
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(file).st_mode
        if stat.S_ISDIR(mode):
            raise UnreadableError("Is a directory")
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise UnreadableError("it is neither a file nor a pipe")
        yield file, mode
    finally:
        os.close(file)


def _first(file: int) -> bytes:
    """Wait up to WRITER_S for the writer of a pipe; return the first byte, or b"" if the writer has not written yet."""
    until = time.monotonic() + WRITER_S
    while True:
        try:
            if byte := os.read(file, 1):
                break
        except BlockingIOError:  # the pipe has a writer
            byte = b""
            break
        if time.monotonic() > until:
            raise UnreadableError("it is a pipe that no program writes to")
        time.sleep(0.01)
    os.set_blocking(file, True)
    return byte


def _chunks(file: int) -> Iterator[bytes]:
    while chunk := os.read(file, 2**20):
        yield chunk


def _limited(chunks: Iterable[bytes]) -> bytes:
    """Join the chunks of a file; raise an UnreadableError after MAX_BYTES.

    The limit is checked here, because files in /proc are longer than their recorded size.
    """
    whole = bytearray()
    for chunk in chunks:
        whole += chunk
        if len(whole) > MAX_BYTES:
            raise UnreadableError(f"it has more than {MAX_BYTES} bytes, the most that mxpeak reads")
    return bytes(whole)


def printable(text: str) -> str:
    r"""Escape control characters and other characters that could act on a terminal, for example as \x1b.

    A byte of a file name that Python could not decode is escaped as this byte, so that a shell accepts it in $'...'.
    """
    return UNSAFE.sub(lambda match: _escaped(match[0]), text)


def _escaped(character: str) -> str:
    r"""Return the code of a character, or of the byte that a surrogate from \udc80 to \udcff represents."""
    if "\udc80" <= character <= "\udcff":
        return rf"\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


def one_line(text: str) -> str:
    r"""Return a text as one line of printable characters, with newlines and tabs escaped as \n and \t."""
    return printable(text).replace("\n", r"\n").replace("\t", r"\t")


def printable_values(value: Any) -> Any:
    """Return a copy of JSON data in which all strings, including the keys of objects, are printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): printable_values(item) for key, item in value.items()}
    if isinstance(value, list):
        return [printable_values(item) for item in value]
    return value

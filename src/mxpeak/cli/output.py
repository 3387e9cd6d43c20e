"""Write the files of a run so that each file is complete or absent, and wrap output streams to store errors."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Any, TextIO

from mxpeak.errors import ExitCode, MxpeakError, ResourceError, UsageError, cannot_write
from mxpeak.foreign import irregular, printable
from mxpeak.records import to_json
from mxpeak.runtime.folder_lock import LOCK, FolderLock, check_unlocked

#: The file by which a run locks the folder of --out until it ends.
OUT_LOCK = ".mxpeak-lock"


def new_folder(out: str | None, benchmark: str, names: Sequence[str], instead: str = "use another --out DIR") -> Folder:
    """Return the folder `out`, or a new one in mxpeak-out/, in which files with these names can be created.

    Two runs must not mix their files in one folder. Therefore, the folder `out` is locked until `Folder.close`. If the
    new folder is not writable, the error ends with `instead`.
    """
    if out is None:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        return _writable_folder(f"mxpeak-out/{stamp}-{benchmark}-{secrets.token_hex(3)}", instead)
    paths = [Path(out) / name for name in names]
    refuse_existing(paths, "--out DIR")
    folder = _writable_folder(out, "use another --out DIR")
    try:
        lock = FolderLock(folder.path, OUT_LOCK, temporary=True, instead="another --out DIR")
    except OSError as error:
        folder.close()
        raise cannot_write(f"to the folder {out}", error, "use another --out DIR") from None
    folder = replace(folder, lock=lock)
    try:
        refuse_existing(paths, "--out DIR")  # again, because another run may have ended before the lock
    except MxpeakError:
        folder.close()
        raise
    return folder


def results_folder(out: str | None, benchmark: str, names: Sequence[str], json: str | None) -> Folder:
    """Return the folder of the results; if it is not writable but --json is given, return a folder without storage."""
    try:
        return new_folder(out, benchmark, names)
    except MxpeakError as error:
        if out is not None or json is None:
            raise
        return Folder(Path(), (), missing=str(error).partition(";")[0])


def empty_folder(name: str, flag: str, not_in: Path, allowed: str = "") -> Folder:
    """Return the folder that a flag names.

    The folder must be new or empty, except for a file named `allowed`, and must not be the results folder. Otherwise,
    raise a UsageError.
    """
    path = Path(name)
    if path.absolute() == not_in.absolute():
        raise UsageError(f"{flag} {name} is also the folder of the result files; use another {flag} DIR")
    folder = _writable_folder(name, f"use another {flag} DIR")
    if any(entry != allowed for entry in _entries(name, flag)):
        folder.close()
        raise UsageError(f"{flag} {name} is not empty, and mxpeak never overwrites files; use another {flag} DIR")
    return folder


def checkpoint_folder(name: str, not_in: Path) -> Folder:
    """Return the folder of --checkpoint. It must be new, or empty except for a lock that no run holds."""
    path = Path(name)
    if os.path.isdir(name):
        check_unlocked(path)
        if any(entry != LOCK for entry in _entries(name, "--checkpoint")):
            raise UsageError(
                f"--checkpoint {name} is not empty; run mxpeak resume {name} to continue its run, or use another folder"
            )
    return empty_folder(name, "--checkpoint", not_in, allowed=LOCK)


def _entries(name: str, flag: str) -> list[str]:
    """Return the names of the files in a folder; raise a UsageError if the folder cannot be read."""
    try:
        return os.listdir(name)
    except OSError as error:
        raise UsageError(f"mxpeak cannot read the folder {name}: {error.strerror}; use another {flag} DIR") from None


def _writable_folder(name: str, instead: str) -> Folder:
    """Return a folder in which files can be written; create it if it does not exist."""
    path = Path(name)
    folder = Folder(path, tuple(p for p in (path, *path.parents) if not os.path.exists(p)))
    try:
        path.mkdir(parents=True, exist_ok=True)
        _try_to_write(path)
    except OSError as error:
        folder.close()
        raise cannot_write(f"to the folder {name}", error, instead) from None
    return folder


def refuse_existing(paths: Iterable[Path], instead: str) -> None:
    """Raise an error if one of the files exists, because mxpeak never overwrites results."""
    for path in paths:
        if os.path.lexists(path):
            raise UsageError(f"{path} already exists, and mxpeak never overwrites results; use another {instead}")


def check_file(path: Path, taken: Iterable[Path] = (), flag: str = "--json", *, replaced: bool = False) -> None:
    """Raise a UsageError if `path` cannot be created, exists, or is one of the files in `taken`.

    If `replaced`, a regular file may exist, because a rename replaces it. A rename would also replace a symbolic link,
    a pipe or a device, so these are refused.
    """
    if not replaced:
        refuse_existing([path], f"{flag} FILE")
    elif (kind := irregular(path)) is not None:
        raise UsageError(f"{flag} {path} is {kind}, but mxpeak replaces only regular files; use another {flag} FILE")
    if path.absolute() in [other.absolute() for other in taken]:
        raise UsageError(f"{flag} {path} is one of the run's own result files; remove {flag}, or use another file")
    try:
        _try_to_write(path.parent)
        with suppress(FileNotFoundError):
            path.lstat()  # raises an error if the name is too long
    except OSError as error:
        raise cannot_write(path, error, f"use another {flag} FILE") from None


def _try_to_write(folder: Path) -> None:
    probe = folder / f".mxpeak-{os.getpid()}-{secrets.token_hex(3)}"
    probe.touch(exist_ok=False)
    probe.unlink()


def write_json(body: Mapping[str, Any], target: str) -> None:
    """Print the body as JSON if the target is `-`; otherwise write it to a new file."""
    if target == "-":
        print(to_json(body), end="")
        return
    check_file(Path(target))
    write_new(Path(target), to_json(body))


def show(body: Mapping[str, Any], text: str, target: str | None, *, checked: bool = False) -> None:
    """Write the body as JSON to the target, then print the text unless the target is `-`.

    The file is written first, because printing may fail. If it cannot be written, the text is printed all the same.
    `checked` means that the path was free before a measurement. If another process has created the file meanwhile,
    the JSON is written under the next free name.
    """
    try:
        if target is not None and checked and target != "-":
            write_new(Path(target), to_json(body))
        elif target is not None:
            write_json(body, target)
    except OSError as error:
        if target == "-":
            raise
        print(printable(text), end="", flush=True)
        raise ResourceError(f"cannot write --json {target}: {error.strerror}; the result is on stdout only") from None
    if target != "-":
        print(printable(text), end="")


def write_new(path: Path, text: str) -> Path:
    """Write a new file completely or not at all, and return its path.

    If the file exists, use the next free name, such as result-2.json, and print a warning on stderr.
    """
    part = _part_of(path)
    try:
        _write_out(part, text)
        others = (path.with_name(f"{path.stem}-{k}{path.suffix}") for k in count(2))
        name = next(name for name in chain([path], others) if _taken(part, name))
        if name != path:
            with suppress(OSError):  # a broken stderr must not end a run
                text = f"warning: {path} was created during the run; the result is in {name}"
                print(printable(text), file=sys.stderr)
        return name
    except OSError as error:
        error.filename = str(path)  # instead of the temporary file, or of no file
        raise
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _part_of(path: Path) -> Path:
    """Return the path of a temporary file in the same folder. File systems limit the length of its name."""
    return path.with_name(f".mxpeak-{os.getpid()}-{secrets.token_hex(3)}.part")


def _write_out(part: Path, text: str) -> None:
    """Write a new file and flush it to the disk; bytes that are not UTF-8 are escaped by backslashes."""
    with part.open("x", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _taken(part: Path, name: Path) -> bool:
    """Rename `part` to `name` if `name` does not exist. Return False if it exists."""
    try:
        os.link(part, name)  # unlike a rename, a link replaces no file
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        if os.path.lexists(name):
            return False
        part.rename(name)
    return True


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of results, and the parent folders that were created for it.

    missing    the reason why the folder cannot be used, or empty; if it is not empty, no file is written
    lock       the lock of the folder, or None
    """

    path: Path
    created: tuple[Path, ...]
    missing: str = ""
    lock: FolderLock | None = None

    def write(self, name: str, text: str) -> None:
        """Write a new file in the folder, unless the folder cannot be used."""
        if not self.missing:
            write_new(self.path / name, text)

    def replace(self, name: str, text: str) -> None:
        """Write or replace a file atomically, so that readers always find a complete file."""
        if self.missing:
            return
        part = _part_of(self.path / name)
        try:
            _write_out(part, text)
            part.replace(self.path / name)
        finally:
            part.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        if not self.missing:
            (self.path / name).unlink(missing_ok=True)

    def location(self, json: str) -> str:
        """Return a message that names the folder of the results, or the target of --json if the folder is not used."""
        if not self.missing:
            return f"results in {self.path}/"
        return f"note: {self.missing}; the results are {'on stdout' if json == '-' else f'in {json}'} only"

    def write_error(self, error: OSError, stored: Sequence[str] = ()) -> str:
        """Return the message for an error from writing a file of the results.

        `stored` contains the files that contain the complete results.
        """
        where = f"in {' and '.join(stored)}" if stored else "on stdout only"
        return f"mxpeak: error: cannot write {error.filename or self.path}: {error.strerror}; the result is {where}"

    def close(self) -> None:
        """Release the lock, and remove the folder and the parent folders created for it, if they are empty."""
        if self.lock is not None:
            self.lock.release()
        for path in self.created:
            with suppress(OSError):
                path.rmdir()


class ResultWriter:
    """Writes each file of a run even if another file cannot be written, and stores the first error.

    stored   paths of the files that contain the complete results
    error    the first error, or None
    """

    def __init__(self, folder: Folder):
        self.folder = folder
        self.stored: list[str] = []
        self.error: OSError | None = None

    def result(self, path: Path, text: str) -> None:
        """Write the complete results to a file."""
        try:
            self.stored.append(str(write_new(path, text)))
        except OSError as error:
            self.error = self.error or error

    def file(self, name: str, text: str) -> None:
        """Write another file to the folder."""
        try:
            self.folder.write(name, text)
        except OSError as error:
            self.error = self.error or error

    def message(self) -> str | None:
        """Return the message for the first error, or None if all files have been written."""
        return None if self.error is None else self.folder.write_error(self.error, self.stored)


class FaultTolerantStream:
    """A stream that stores its first error instead of raising it, because the other ranks wait for this rank."""

    def __init__(self, stream: TextIO):
        self.error: OSError | None = None
        self._stream = stream

    def write(self, text: str) -> None:
        """Write a text, unless an earlier write failed."""
        if self.error is None:
            try:
                self._stream.write(text)
            except OSError as error:
                self._give_up(error)

    def flush(self) -> None:
        """Flush the stream, unless an earlier write failed."""
        if self.error is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._give_up(error)

    def say(self, text: str) -> None:
        """Write text to the stream and flush the stream."""
        self.write(text)
        self.flush()

    def exit_code(self, log: Callable[[str], None], stored: Sequence[str]) -> int:
        """Return the exit code for the first error, and log the error.

        `stored` contains the files with the complete results. If there is one, the reader of a pipe may close it, which
        is no error.
        """
        if self.error is None or (stored and isinstance(self.error, BrokenPipeError)):
            return ExitCode.VALID
        instead = f"; see {stored[0]}" if stored else ", and no file contains the result"
        log(f"mxpeak: error: cannot write to stdout: {self.error.strerror}{instead}")
        return ExitCode.RESOURCE

    def _give_up(self, error: OSError) -> None:
        self.error = error
        # The rest of the buffer would fail again when Python exits, so it is redirected to the null device.
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def prepared_folder(out: str | None, verb: str, names: Sequence[str], json: str | None) -> Folder:
    """Create the folder for the files `names` of a verb, and return it.

    Raise a UsageError if a file of this folder or the file `json` exists or cannot be created. If only the default
    folder is not writable and `json` is given, return a `Folder` that stores no files.
    """
    folder = results_folder(out, verb, names, json)
    try:
        if json not in (None, "-"):
            check_file(Path(json), taken=[] if folder.missing else [folder.path / name for name in names])
    except MxpeakError:
        folder.close()
        raise
    return folder


def write_result(
    files: Mapping[str, str], text: str, json: str | None, folder: Folder, log: Callable[[str], None]
) -> int:
    """Print the text, write the files to the folder, and return the exit code.

    The first file contains JSON, which is also written to `json`, or printed instead of the text if `json` is `-`.
    """
    (result, content), *others = files.items()
    stdout = FaultTolerantStream(sys.stdout)
    writer = ResultWriter(folder)
    if not folder.missing:
        writer.result(folder.path / result, content)  # first, because printing may fail
    stdout.say(content if json == "-" else text)
    if json not in (None, "-"):
        writer.result(Path(json or ""), content)
    for name, other in others:
        writer.file(name, other)
    if (message := writer.message()) is not None:
        log(message)
        return ExitCode.RESOURCE
    log(folder.location(json or ""))
    return stdout.exit_code(log, writer.stored)

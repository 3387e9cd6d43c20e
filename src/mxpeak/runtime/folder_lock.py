"""Lock a folder for one process. The system releases the lock when the process ends for any reason."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from mxpeak.errors import UsageError

#: The default file that is locked; it remains in the folder unless the lock is temporary.
LOCK = "lock"
#: Errors of a file system, or of a server, that does not lock files.
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)
#: Errors of a folder that this process is not allowed to write to.
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


class FolderLock:
    """Locks a folder for this process.

    Raises a UsageError if another process, or another object of this process, holds the lock. `missing` is the reason
    why the folder could not be locked, or empty if the lock is held. `name` is the name of the file, which is removed
    on release if it is `temporary`.
    """

    def __init__(self, folder: Path, name: str = LOCK, *, temporary: bool = False, instead: str = "another folder"):
        self.missing = ""
        self._path, self._temporary = folder / name, temporary
        self._file: int | None = None
        try:
            while self._file is None:
                self._file = _open(self._path)
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(self._file).st_nlink == 0:  # its last owner has removed the file
                    self._close()
        except OSError as error:
            holder = "" if self._file is None else _holder(self._file)
            if error.errno in UNSUPPORTED and self._file is not None:  # no run can lock this file
                self._remove_temporary()
            self._close()
            if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
                raise UsageError(
                    f"{folder} is in use by another run{holder}; wait until it has ended, or use {instead}"
                ) from None
            if error.errno not in (*UNSUPPORTED, *FORBIDDEN):
                raise
            self.missing = str(error.strerror)
        else:
            _write_holder(self._file)

    def release(self) -> None:
        """Release the lock, so that another run can use the folder, and remove a temporary file."""
        if self._file is not None:
            self._remove_temporary()
        self._close()

    def _remove_temporary(self) -> None:
        if self._temporary:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def check_unlocked(folder: Path) -> None:
    """Raise a UsageError if a running process has locked this folder."""
    if os.path.lexists(folder / LOCK):
        with suppress(OSError):  # no run can use a folder that cannot be written to
            FolderLock(folder).release()


def _open(path: Path) -> int:
    """Open the lock file and return its descriptor; raise an error if the file is a link."""
    how = os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        try:
            file = os.open(path, how | os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            if error.errno not in FORBIDDEN or not path.exists():
                raise
            file = os.open(path, how | os.O_RDONLY)  # the file belongs to another user, whose run may have locked it
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise UsageError(f"{path} is not a regular file; remove it, or use another folder") from None
        raise
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(file)
        raise UsageError(
            f"{path} is not a regular file, or it has several hard links; remove it, or use another folder"
        )
    return file


def _write_holder(file: int) -> None:
    """Write the host and the number of this process into the lock file, for the error messages of other runs."""
    with suppress(OSError):  # on a full disk the lock works without this text
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()} {os.uname().nodename}\n".encode(), 0)


def _holder(file: int) -> str:
    """Return a text that names the process that holds the lock, or an empty string if the process is unknown."""
    with suppress(OSError):
        if holder := re.fullmatch(rb"(\d{1,20}) ([\w.-]{1,255})\n", os.pread(file, 300, 0)):
            return f" (process {holder[1].decode()} on {holder[2].decode()})"
    return ""

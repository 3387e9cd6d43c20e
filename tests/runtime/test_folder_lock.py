"""Test that one run at a time locks a folder, and that no lock remains."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mxpeak.errors import UsageError
from mxpeak.runtime import folder_lock
from mxpeak.runtime.folder_lock import LOCK, FolderLock, check_unlocked

HOLDS = """
import sys, time
from pathlib import Path
from mxpeak.runtime.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("locked", flush=True)
time.sleep(60)
"""


def test_a_second_lock_is_refused_until_the_first_is_released(tmp_path: Path) -> None:
    check_unlocked(tmp_path)
    assert not (tmp_path / LOCK).exists()
    lock = FolderLock(tmp_path)
    assert lock.missing == ""
    for again in (FolderLock, check_unlocked):
        with pytest.raises(
            UsageError, match=rf"in use by another run \(process {os.getpid()} on {os.uname().nodename}"
        ):
            again(tmp_path)
    lock.release()
    check_unlocked(tmp_path)
    FolderLock(tmp_path).release()


def test_a_temporary_lock_is_removed_on_release_and_locks_again(tmp_path: Path) -> None:
    for _ in range(2):
        lock = FolderLock(tmp_path, "here", temporary=True)
        with pytest.raises(UsageError, match="wait until it has ended, or use another --out DIR"):
            FolderLock(tmp_path, "here", temporary=True, instead="another --out DIR")
        assert [path.name for path in tmp_path.iterdir()] == ["here"]
        lock.release()
        assert list(tmp_path.iterdir()) == []


def test_a_file_that_its_owner_removes_before_it_is_locked_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked, calls = folder_lock.fcntl.flock, []

    def flock(file: int, how: int) -> None:
        calls.append(file)
        if len(calls) == 1:
            (tmp_path / LOCK).unlink()  # the other process ends between the opening and the locking
        locked(file, how)

    monkeypatch.setattr(folder_lock.fcntl, "flock", flock)
    lock = FolderLock(tmp_path)
    assert len(calls) == 2
    with pytest.raises(UsageError, match="in use by another run"):
        FolderLock(tmp_path)
    lock.release()


def test_a_killed_run_leaves_no_lock(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "locked\n"
        with pytest.raises(UsageError, match=rf"process {run.pid} on"):
            FolderLock(tmp_path)
        run.send_signal(signal.SIGKILL)
        run.wait()
    lock = FolderLock(tmp_path)
    assert lock.missing == ""
    lock.release()


@pytest.mark.parametrize("number", folder_lock.UNSUPPORTED)
def test_a_file_system_without_locks_is_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def flock(file: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(folder_lock.fcntl, "flock", flock)
    lock = FolderLock(tmp_path)
    assert lock.missing == os.strerror(number)
    check_unlocked(tmp_path)
    lock.release()
    FolderLock(tmp_path, "temporary", temporary=True).release()
    assert not (tmp_path / "temporary").exists()


def test_a_folder_that_must_not_be_written_is_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(folder_lock.os, "open", refused)
    assert FolderLock(tmp_path).missing == os.strerror(errno.EROFS)


@pytest.mark.parametrize("kind", ["symbolic link", "hard link", "pipe", "folder"])
def test_a_lock_that_is_another_file_is_refused_and_that_file_stays_as_it_is(tmp_path: Path, kind: str) -> None:
    own, folder = tmp_path / "mine", tmp_path / "kept"
    own.write_text("my file")
    folder.mkdir()
    match kind:
        case "symbolic link":
            (folder / LOCK).symlink_to(own)
        case "hard link":
            (folder / LOCK).hardlink_to(own)
        case "pipe":
            os.mkfifo(folder / LOCK)
        case "folder":
            (folder / LOCK).mkdir()
    with pytest.raises(UsageError, match="is not a regular file"):
        FolderLock(folder)
    assert own.read_text() == "my file"

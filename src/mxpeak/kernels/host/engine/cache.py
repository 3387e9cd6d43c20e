"""Choose the folder in which the host kernels' machine code is cached.

Entry points are compiled for fixed types before a benchmark starts, so nothing is compiled inside a timed region. The
machine code is cached on disk, so each machine compiles it once.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import tempfile
import warnings
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

#: The environment variable that sets the cache folder, for example to a node-local folder to avoid load on a shared
#: file system.
VARIABLE = "MXPEAK_CACHE_DIR"


@cache
def cache_directory() -> Path:
    """Create and return the cache folder of this version of the kernels, inside the first usable directory.

    The candidates are $MXPEAK_CACHE_DIR if set, then $XDG_CACHE_HOME or ~/.cache, and then the temporary folder.
    Directories of another user and world-writable directories are rejected. The package's own folder is not a
    candidate, because an installation may be read-only or shared by users.
    """
    folder = _writable_place() / _version()
    folder.mkdir(exist_ok=True)
    return folder


def _version() -> str:
    """Return a hash of Numba's version and of all sources of the host kernels.

    Numba checks only the source file of a function, not the files of the functions that it calls.
    """
    digest = hashlib.sha256(metadata.version("numba").encode())
    for source in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


def _writable_place() -> Path:
    wanted = os.environ.get(VARIABLE)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    candidates = [Path(wanted)] if wanted else []
    if os.path.isabs(home):  # ~ remains for a user without HOME and without an entry in the password database
        candidates.append(Path(home) / "mxpeak")
    candidates.append(Path(tempfile.gettempdir()) / f"mxpeak-{os.getuid()}")
    for candidate in candidates:
        try:
            candidate.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError:
            continue
        if not os.access(candidate, os.W_OK | os.X_OK):
            continue
        if (problem := _distrusted(candidate)) is None:
            return candidate
        warnings.warn(f"mxpeak does not use {candidate} for compiled kernels: {problem}", RuntimeWarning, stacklevel=2)
    raise OSError(
        f"mxpeak cannot write compiled kernels to {' or '.join(map(str, candidates))}; set {VARIABLE} to a "
        "folder that it can write to"
    )


def _distrusted(folder: Path) -> str | None:
    """Return the reason why machine code in `folder` is not trusted, or None if no other user can write there."""
    status = folder.stat()
    if status.st_uid != os.geteuid():
        return f"it belongs to user {status.st_uid}, not to {os.geteuid()}"
    if status.st_mode & stat.S_IWOTH:
        return f"all users may write to it; run chmod o-w {folder}"
    return None


def token() -> str:
    """Return the random token stored in the cache folder, and create the token if the folder has none.

    Ranks that read the same token share the folder.
    """
    path = cache_directory() / "token"
    with suppress(FileExistsError), path.open("x") as file:
        file.write(secrets.token_hex(8))
    return path.read_text()


def is_cached() -> bool:
    """Return whether the cache contains the compiled panel kernel of an earlier run."""
    return any(cache_directory().glob("**/panel.factor_panel-*.nbi"))

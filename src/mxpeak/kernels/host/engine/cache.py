"""Compilation of the host kernels: with which types, and where the machine code is kept.

Entry points are compiled for fixed types when their module is imported, so nothing is ever compiled inside a timed
region; the machine code is cached on disk, so that happens once per machine.
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

#: Set by whoever wants the machine code elsewhere; a node-local folder spares a shared file system.
VARIABLE = "MXPEAK_CACHE_DIR"


@cache
def cache_directory() -> Path:
    """A folder for this version of the kernels, in the first directory that can be written to.

    $MXPEAK_CACHE_DIR, $XDG_CACHE_HOME, ~/.cache, the temporary folder; never one of another user's or that everybody
    may write to, and never the package's own folder: an installation may be read-only, or shared by users.
    """
    folder = _writable_place() / _version()
    folder.mkdir(exist_ok=True)
    return folder


def _version() -> str:
    """A fingerprint of all kernel sources: Numba looks at the file of a function only, not at what it calls."""
    digest = hashlib.sha256(metadata.version("numba").encode())
    for source in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


def _writable_place() -> Path:
    wanted = os.environ.get(VARIABLE)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    candidates = [Path(wanted)] if wanted else []
    candidates += [Path(home) / "mxpeak", Path(tempfile.gettempdir()) / f"mxpeak-{os.getuid()}"]
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
    """Why machine code from a folder is not run: somebody else may have put it there."""
    found = folder.stat()
    if found.st_uid != os.geteuid():
        return f"it belongs to user {found.st_uid}, not to {os.geteuid()}"
    if found.st_mode & stat.S_IWOTH:
        return f"all users may write to it; run chmod o-w {folder}"
    return None


def token() -> str:
    """A word that names the folder: two ranks that read the same one share it, on one node or over the network."""
    path = cache_directory() / "token"
    with suppress(FileExistsError), path.open("x") as file:
        file.write(secrets.token_hex(8))
    return path.read_text()


def is_cached() -> bool:
    """Whether some earlier run left these kernels compiled."""
    return any(cache_directory().glob("**/panel.factor_panel-*.nbi"))

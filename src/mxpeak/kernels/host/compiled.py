"""Compilation of the host kernels: with which types, and where the machine code is kept.

Entry points are compiled for fixed types when their module is imported, so nothing is ever compiled inside a timed
region; the machine code is cached on disk, so that happens once per machine.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

#: Set by whoever wants the machine code elsewhere; a node-local folder spares a shared file system.
VARIABLE = "MXPEAK_CACHE_DIR"


def cache_directory() -> Path:
    """The first of these that can be written to: $MXPEAK_CACHE_DIR, $XDG_CACHE_HOME, ~/.cache, the temporary folder.

    Never the package's own folder: an installation may be read-only, or shared by users.
    """
    wanted = os.environ.get(VARIABLE)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    candidates = [Path(wanted)] if wanted else []
    candidates += [Path(home) / "mxpeak", Path(tempfile.gettempdir()) / f"mxpeak-{os.getuid()}"]
    for candidate in candidates:
        try:
            candidate.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError:
            continue
        if os.access(candidate, os.W_OK | os.X_OK):
            return candidate
    raise OSError(f"no folder for compiled kernels can be written: tried {', '.join(map(str, candidates))}; "
                  f"set {VARIABLE}")  # fmt: skip


def is_cached() -> bool:
    """Whether some earlier run left compiled kernels (they are checked against the source when loaded)."""
    return any(cache_directory().glob("**/panel.factor_panel-*.nbi"))

"""The pip command that installs an extra of mxpeak."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlparse


def install_command(extra: str) -> str:
    """Return the pip command that installs `extra` from the source of this installation.

    The source is a folder, a repository, or the package index.
    """
    return f"pip install '{_requirement(extra)}'"


def _requirement(extra: str) -> str:
    """Return the requirement of the pip command, based on pip's record of the installation source (PEP 610)."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        record = json.loads(distribution("mxpeak").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        record = {}
    url = str(record.get("url", ""))
    if vcs := record.get("vcs_info"):
        return f"mxpeak[{extra}] @ {vcs.get('vcs', 'git')}+{url}"
    folder = Path(unquote(urlparse(url).path)) if url.startswith("file:") else Path(__file__).parents[2]
    if (folder / "pyproject.toml").exists():
        return f"{folder}[{extra}]"
    return f"mxpeak[{extra}]"

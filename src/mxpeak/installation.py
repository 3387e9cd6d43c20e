"""The pip command that adds an extra to this installation of mxpeak."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlparse


def install_command(extra: str) -> str:
    """Return the pip command that adds `extra`: from the same folder, the same repository, or the package index."""
    return f"pip install '{_requirement(extra)}'"


def _requirement(extra: str) -> str:
    """Return the requirement that pip installs, derived from pip's record of the installation source (PEP 610)."""
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

"""Test that the command that adds an extra names the source of the installation."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

from mxpeak import installation
from mxpeak.installation import install_command


class Recorded:
    """A distribution with a given record of its source."""

    def __init__(self, record: dict[str, object] | None):
        self.record = record

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self.record is None else json.dumps(self.record)


def test_a_folder_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "a clone"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    monkeypatch.setattr(metadata, "distribution", lambda name: Recorded({"url": folder.as_uri(), "dir_info": {}}))
    assert install_command("mpich") == f"pip install '{folder}[mpich]'"


def test_a_repository_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    record = {"url": "https://example.org/mxpeak", "vcs_info": {"vcs": "git", "commit_id": "0"}}
    monkeypatch.setattr(metadata, "distribution", lambda name: Recorded(record))
    assert install_command("gpu") == "pip install 'mxpeak[gpu] @ git+https://example.org/mxpeak'"


def test_the_index_is_named_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda name: Recorded(None))
    monkeypatch.setattr(installation, "__file__", str(tmp_path / "lib" / "mxpeak" / "installation.py"))
    assert install_command("amg") == "pip install 'mxpeak[amg]'"


def test_a_source_tree_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> Recorded:
        raise metadata.PackageNotFoundError(name)

    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(metadata, "distribution", missing)
    monkeypatch.setattr(installation, "__file__", str(tmp_path / "src" / "mxpeak" / "installation.py"))
    assert install_command("dask") == f"pip install '{tmp_path}[dask]'"

"""Provide a command line whose benchmarks and launcher are fakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import Bench, Comm, use_fakes


@pytest.fixture
def comm() -> Comm:
    return Comm()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, comm: Comm) -> Bench:
    """Provide a command line in an empty folder whose HPL and launcher are fakes."""
    fake = Bench()
    use_fakes(monkeypatch, tmp_path, comm, fake)
    return fake


@pytest.fixture
def other_rank(bench: Bench, comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process rank 2 of 4, which receives from rank 0 the same values that it would compute."""
    comm.rank, comm.size = 2, 4
    monkeypatch.setattr("mxpeak.cli.session.Session.on_root", lambda self, action: action())

"""Test the names that `import mxpeak` defines, and the modules that it does not load."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import mxpeak as mx
from mxpeak.errors import MxpeakError, ResourceError, UsageError


def test_importing_the_package_loads_no_heavy_library() -> None:
    code = (
        "import sys, mxpeak; "
        "print([m for m in ('numpy', 'scipy', 'numba', 'mpi4py', 'rich', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


#: Kernels that load fastest.
QUICK: dict[str, Any] = {"threads": 1, "warmup": "none", "kernels": "reference"}


def test_run_hpl_on_ranks_returns_a_result() -> None:
    """On one rank, the example of its docstring is tested in tests/house/test_snippets.py."""
    pytest.importorskip("mpi4py", reason="MPI for Python is not installed")
    result = mx.run.hpl(n=150, nb=16, ranks=2, grid=(2, 1), **QUICK)
    assert result.passed
    assert result.problem["n"] == 150
    assert result.config["nb"] == {"value": [16], "origin": "flag"}
    assert (result.problem["P"], result.problem["Q"]) == (2, 1)


def test_run_hpl_with_lists_returns_a_list() -> None:
    results = mx.run.hpl(n=(50, 60), nb=(8, 16), **QUICK)
    assert [(r.problem["n"], r.problem["nb"]) for r in results] == [(50, 8), (50, 16), (60, 8), (60, 16)]


def test_a_request_that_cannot_be_met_raises_what_the_command_line_says() -> None:
    with pytest.raises(UsageError, match=r"^nb: 0 is out of range"):
        mx.run.hpl(n=10, nb=0, **QUICK)
    with pytest.raises(ResourceError, match="largest N that fits"):
        mx.run.hpl(n=9_000_000, **QUICK)


def test_a_setting_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="no setting 'blocksize'"):
        mx.run.hpl(blocksize=3)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        mx.walk  # noqa: B018


@pytest.mark.parametrize(
    ("code", "text"), [(-9, "signal 9 ended mxpeak"), (137, "mxpeak ended with exit code 137"), (5, "exit code 5")]
)
def test_a_run_that_ends_without_a_message_raises_an_error_with_its_cause(
    monkeypatch: pytest.MonkeyPatch, code: int, text: str
) -> None:
    from mxpeak.library import run

    monkeypatch.setattr(run, "_output", lambda command: ("", "", code))
    with pytest.raises(ResourceError if code == 5 else MxpeakError, match=text):
        run.hpl(n=10)

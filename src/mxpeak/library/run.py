"""Run the benchmarks as functions, such as `mxpeak.run.hpl(n=20000, ranks=4)`.

Each call starts new processes, as `mxpeak run` does. These processes bind their ranks to cores and set BLAS to one
thread. They do not change the calling process. The wheel contains a stub with the type of every setting
(tools/typed_settings.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mxpeak.bench.registry import BENCHMARKS
from mxpeak.errors import MxpeakError, ResourceError, UsageError
from mxpeak.options import Option, as_text, options, parsed_by, suggestion
from mxpeak.records import Result, results_of
from mxpeak.runtime.launcher import launched
from mxpeak.runtime.parent_watch import child_environment

#: Time limit in seconds for a run to end its ranks.
END_S = 15.0
#: The exception for each exit code of the command line.
ERRORS: dict[int, type[MxpeakError]] = {2: UsageError, 5: ResourceError}


def hpl(**settings: Any) -> Result | list[Result]:
    """Run HPL in new processes and return the result.

    Parameters
    ----------
    **settings
        Settings of `mxpeak run hpl` as keyword arguments, such as n, nb, grid=(2, 2), ranks and threads. If you pass
        lists, mxpeak runs every combination of their values.

    Returns
    -------
    Result or list of Result
        Result of the run, or a list of results if you pass lists or `study`. mxpeak also returns results that failed
        the validation; see `result.passed`.

    Raises
    ------
    UsageError
        A setting is invalid, or the configuration is impossible.
    ResourceError
        There is not enough memory, or the device does not exist.
    MxpeakError
        The run ended without a result for any other reason.

    Examples
    --------
    >>> import mxpeak as mx
    >>> mx.run.hpl(n=500).passed
    True
    """
    return _run("hpl", settings)


def hpl_mxp(**settings: Any) -> Result | list[Result]:
    """Run HPL-MxP in new processes and return the result.

    Parameters
    ----------
    **settings
        Settings of `mxpeak run hpl-mxp` as keyword arguments, such as n, nb, precision, ranks and threads. If you pass
        lists, mxpeak runs every combination of their values.

    Returns
    -------
    Result or list of Result
        Result of the run, or a list of results if you pass lists or `study`. mxpeak also returns results that failed
        the validation; see `result.passed`. The section `result.rules` states whether the result is admissible and
        which rules it violates.

    Raises
    ------
    UsageError
        A setting is invalid, or the configuration is impossible.
    ResourceError
        There is not enough memory, or the device does not exist.
    MxpeakError
        The run ended without a result for any other reason.

    Examples
    --------
    >>> import mxpeak as mx
    >>> mx.run.hpl_mxp(n=500).passed
    True
    """
    return _run("hpl-mxp", settings)


def hpg_mxp(**settings: Any) -> Result | list[Result]:
    """Run HPG-MxP in new processes and return the result.

    Parameters
    ----------
    **settings
        Settings of `mxpeak run hpg-mxp` as keyword arguments, such as nx, rt, precision, ranks and threads.

    Returns
    -------
    Result or list of Result
        Result of the run, or a list of results if you pass `study`. mxpeak also returns results that failed the
        validation; see `result.passed`. The value `result.result["speedup"]` is the penalized mixed-precision rate
        divided by the double-precision rate.

    Raises
    ------
    UsageError
        A setting is invalid, or the configuration is impossible.
    ResourceError
        There is not enough memory, or the device does not exist.
    MxpeakError
        The run ended without a result for any other reason.

    Examples
    --------
    >>> import mxpeak as mx
    >>> mx.run.hpg_mxp(nx=16, rt=0.1).passed
    True
    """
    return _run("hpg-mxp", settings)


def hpcg(**settings: Any) -> Result | list[Result]:
    """Run HPCG in new processes and return the result.

    Parameters
    ----------
    **settings
        Settings of `mxpeak run hpcg` as keyword arguments, such as nx, rt, storage, ranks and threads.

    Returns
    -------
    Result or list of Result
        Result of the run, or a list of results if you pass `study`. mxpeak also returns results that failed the
        validation; see `result.passed`.

    Raises
    ------
    UsageError
        A setting is invalid, or the configuration is impossible.
    ResourceError
        There is not enough memory, or the device does not exist.
    MxpeakError
        The run ended without a result for any other reason.

    Examples
    --------
    >>> import mxpeak as mx
    >>> mx.run.hpcg(nx=16, rt=0.1).passed
    True
    """
    return _run("hpcg", settings)


def norms(**settings: Any) -> Result | list[Result]:
    """Run the norms benchmark in new processes and return the result.

    Parameters
    ----------
    **settings
        Settings of `mxpeak run norms` as keyword arguments, such as n, m, kind, ranks and threads. If you pass lists,
        mxpeak runs every combination of their values. If you omit `kind`, mxpeak measures all kinds of norms.

    Returns
    -------
    Result or list of Result
        Result of the run, or a list of results if you pass lists or `study`, or if you omit `kind`. mxpeak also returns
        results that failed the validation; see `result.passed`. The section `result.result` contains the rate
        `rate_bytes` and the norm `value`.

    Raises
    ------
    UsageError
        A setting is invalid, or the configuration is impossible.
    ResourceError
        There is not enough memory, or the device does not exist.
    MxpeakError
        The run ended without a result for any other reason.

    Examples
    --------
    >>> import mxpeak as mx
    >>> mx.run.norms(n=1000, kind="one", dtype="float32").passed
    True
    """
    return _run("norms", settings)


def __dir__() -> list[str]:
    """Return the function names of the registered benchmarks, such as hpl_mxp."""
    return [name.replace("-", "_") for name in BENCHMARKS]


def __getattr__(name: str) -> Any:
    """Return a function that runs the benchmark with this name; raise an AttributeError for other names."""
    if (benchmark := name.replace("_", "-")) not in BENCHMARKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return lambda **settings: _run(benchmark, settings)


def _run(benchmark: str, settings: Mapping[str, Any]) -> Result | list[Result]:
    """Run a benchmark with these settings in new processes, and return its result or list of results."""
    by_name = {o.name: o for o in options(BENCHMARKS[benchmark].config)}
    for name in settings:
        if name not in by_name:
            where = f"mxpeak run {benchmark} --help"
            raise UsageError(f"{benchmark} has no setting {name!r}; {suggestion(name, by_name, where)}")
    if launched():
        command_line = f"mpiexec -n R mxpeak run {benchmark} ..."
        raise UsageError(f"mxpeak.run starts its own ranks, so it cannot run under a launcher; use {command_line}")
    flags = [
        part for name, value in settings.items() if value is not None for part in _flag(by_name[name], name, value)
    ]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "mxpeak", "run", benchmark, *flags, "--out", str(Path(folder) / "out")]
        out, err, code = _output([*command, "--quiet", "--json", "-"])
    if not out.strip():
        message = err.strip().removeprefix("mxpeak: error: ")
        ended = f"signal {-code} ended mxpeak" if code < 0 else f"mxpeak ended with exit code {code}"
        raise ERRORS.get(code, MxpeakError)(message or ended)
    body = json.loads(out)
    results = [Result.from_dict(result) for result in results_of(body)]
    return results[0] if "benchmark" in body else results


def _output(command: list[str]) -> tuple[str, str, int]:
    """Run a command, and return its standard output, standard error and exit code.

    If this process is interrupted, terminate the command.
    """
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # The command has its own process group, so that only this process receives Ctrl-C and forwards it once.
    with subprocess.Popen(command, start_new_session=True, env=child_environment(), **pipes) as process:
        try:
            out, err = process.communicate()
        except BaseException:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=END_S)
            process.kill()
            raise
    return out, err, process.returncode


def _flag(option: Option, name: str, value: Any) -> list[str]:
    """Return a setting as command-line flags; raise a UsageError if its value is invalid.

    A grid may be a pair (P, Q), or a list of pairs.
    """
    text = _grids(value) if name in ("grid", "node_grid") else as_text(value)
    parsed_by(option.parse, text, name)  # so that an error names the argument instead of the flag
    if option.default is False:
        return [option.flags[-1]] if text == "yes" else []
    return [option.flags[-1], text]


def _grids(value: Any) -> str:
    """Format process grids as a command-line argument such as 2x2,1x4."""
    if isinstance(value, str):
        return value
    pairs = [value] if all(isinstance(side, int) for side in value) else value
    return ",".join(f"{P}x{Q}" for P, Q in pairs)

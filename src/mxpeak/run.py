"""The benchmarks as functions: the command line's mirror, `mxpeak.run.hpl(n=20000, ranks=4)`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mxpeak.errors import MxpeakError, UsageError
from mxpeak.records import HplConfig, Result, Setting, as_text, options


def hpl(**settings: Any) -> Result | list[Result]:
    """Run HPL and return its result, or the list of results where lists or several cases were asked for.

    Settings are those of `mxpeak run hpl`, by the names of `records.HplConfig`: n, nb, grid=(2, 2), ranks, threads, …
    A result that fails its check is returned all the same (`result.passed`); a request that cannot be met raises.

    >>> import mxpeak as mx
    >>> mx.run.hpl(n=500).passed
    True
    """
    known = {o.name: o for o in options(HplConfig)}
    for name in settings:
        if name not in known:
            raise UsageError(f"hpl has no setting {name!r}; the settings are {', '.join(known)}")
    texts = {name: _text(name, value) for name, value in settings.items() if value is not None}
    values = {name: known[name].parse(text) for name, text in texts.items()}
    ranks = values.get("ranks") or 1
    results = _under_mpiexec(known, texts) if ranks > 1 else _here(values)
    return results[0] if len(results) == 1 else results


def _text(name: str, value: Any) -> str:
    """The value as its flag would be typed; a grid may be a pair (P, Q)."""
    if name in ("grid", "node_grid") and isinstance(value, tuple) and all(isinstance(side, int) for side in value):
        return "x".join(map(str, value))
    return as_text(value)


def _here(values: dict[str, Any]) -> list[Result]:
    """In this process, on one rank."""
    from mxpeak.bench import hpl as bench
    from mxpeak.comm.solo import Solo

    config = HplConfig(**values)
    settings = {
        o.name: Setting(getattr(config, o.name), "flag" if o.name in values else "default") for o in options(HplConfig)
    }
    return bench.run(config, Solo(), settings=settings)


def _under_mpiexec(known: dict[str, Any], texts: dict[str, str]) -> list[Result]:
    """In ranks of their own, which the command line starts."""
    flags = [part for name, text in texts.items() for part in _flag(known[name], text)]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "mxpeak", "run", "hpl", *flags, "--out", str(Path(folder) / "out"), "--quiet"]
        done = subprocess.run([*command, "--json", "-"], capture_output=True, text=True)
    if not done.stdout.strip():
        raise MxpeakError(f"mxpeak run hpl ended with exit code {done.returncode}:\n{done.stderr.strip()}")
    body = json.loads(done.stdout)
    return [Result.from_dict(one) for one in body.get("results", [body])]


def _flag(option: Any, text: str) -> list[str]:
    if option.default is False:
        return [option.flags[-1]] if text == "yes" else []
    return [option.flags[-1], text]

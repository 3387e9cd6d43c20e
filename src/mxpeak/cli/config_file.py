"""Read the file of --config: TOML settings, or the result of a run to repeat."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from mxpeak import foreign
from mxpeak.bench.registry import BENCHMARKS, Benchmark
from mxpeak.cli.run_history import NAMES, recorded, run_file
from mxpeak.configs.run import OutputConfig
from mxpeak.errors import UsageError
from mxpeak.options import ORIGINS, fields_without_flag, options, recordable

#: Settings of a recorded run that are ignored: they belong to a path, or name the file of a report. The result also
#: contains the --target that follows from --max-slowdown.
WITH_A_PATH = ("every", "output_file", "device_out", "max_slowdown")
#: Settings that define the size of a problem. A local grid that a run chooses has the same size in all directions.
SIZES = ("n", "nx")


def values_for(name: str, file: Mapping[str, Any]) -> dict[str, Any]:
    """Return the top-level keys of a TOML file, overridden by the keys of the table with this name."""
    alone = {key: value for key, value in file.items() if not isinstance(value, dict)}
    return {key.replace("-", "_"): value for key, value in {**alone, **file.get(name, {})}.items()}


def read_config(path: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the settings of the file or the recorded run that --config names, by benchmark.

    `path` is a TOML file, a result file, a results folder, or the name of a run such as `last`.
    """
    if path in NAMES or os.path.isdir(path):
        path = str(run_file(path))
    text = read_text(path, "--config")
    if not text.lstrip().startswith("{"):
        return read_toml(path, text)
    try:
        results = recorded(text)
    except ValueError as error:
        raise UsageError(
            f"--config {path} is neither a TOML file nor the result of a run: {error}; use a TOML file or a result.json"
        ) from None
    with_settings = [
        result
        for result in reversed(results)
        if {"benchmark", "config"} <= set(result) and result["benchmark"] != "scan"
    ]
    settings = {str(result["benchmark"]): _recorded_settings(result) for result in with_settings}
    if not settings:
        raise UsageError(
            f"--config {path} is neither a TOML file nor the result of a run, because it contains no settings; "
            "use a TOML file or a result.json"
        )
    if not set(names) & set(settings):
        raise UsageError(
            f"--config {path} contains settings of {', '.join(settings)}; use mxpeak run {next(iter(settings))}"
        )
    return settings


def _recorded_settings(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the user of a recorded run had set, and the problem size, without paths.

    The file may come from another person, so it must not decide which files this run writes.
    """
    settings = {name: setting for name, setting in result["config"].items() if {"value", "origin"} <= set(setting)}
    # the origin of a value may also be a checkpoint, or the name of an input file, such as hpcg.dat
    sources = [
        *ORIGINS[1:],
        "checkpoint",
        *(benchmark.input.name for benchmark in BENCHMARKS.values() if benchmark.input),
    ]
    values = {name: setting["value"] for name, setting in settings.items() if setting["origin"] in sources}
    benchmark = BENCHMARKS.get(result["benchmark"])
    # Values that only HPL.dat can set have no flag, and most files set these values to the defaults.
    if benchmark is not None:
        mute = {f.name: f.default for f in fields_without_flag(benchmark.config)}
        values = {name: value for name, value in values.items() if name not in mute or value != mute[name]}
    for name in ("grid", "node_grid"):
        if values.get(name) is not None:
            values[name] = _grids(values[name])
    barred = {o.name for o in options(OutputConfig)} | set(WITH_A_PATH)
    if benchmark is not None:
        barred |= {o.name for o in options(benchmark.config)} - recordable(benchmark.config)
    values = {name: value for name, value in values.items() if value is not None and name not in barred}
    return {**_size_of(result, values, benchmark), **values}


def _size_of(result: Mapping[str, Any], values: Mapping[str, Any], benchmark: Benchmark | None) -> dict[str, Any]:
    """Return the problem size of a recorded run, so that a repetition does not choose another size.

    The result is empty if the run was a scaling study or read its matrix from a file.
    """
    if benchmark is None or {"study", "matrix", *SIZES} & set(values):
        return {}
    names = {option.name for option in options(benchmark.config)}
    sizes = {name: (result.get("problem") or {}).get(name) for name in SIZES}
    return {name: value for name, value in sizes.items() if name in names and isinstance(value, int)}


def _grids(value: Any) -> Any:
    """Return a grid or a list of grids in the notation of the flag, such as "2x4"; return other values unchanged."""
    pairs = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    whole = all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
    return [f"{P}x{Q}" for P, Q in pairs] if whole else value


def read_toml(path: str, text: str | None = None) -> dict[str, Any]:
    """Parse a TOML file of settings; raise a UsageError for invalid TOML or for a table with an unknown name."""
    import tomllib

    text = read_text(path, "--config") if text is None else text
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOML errors, thousands of digits, or thousands of brackets
        raise UsageError(f"--config {path} is not valid TOML: {error}; correct the file") from None
    for name, value in content.items():
        if not isinstance(value, dict) and name in (*BENCHMARKS, "scan"):
            raise UsageError(f"--config {path} sets {name}, which must be one table; write the settings below [{name}]")
        if isinstance(value, dict) and name not in (*BENCHMARKS, "scan"):
            tables = ", ".join([*BENCHMARKS, "scan"])
            raise UsageError(f"--config {path} contains the unknown table [{name}]; use one of {tables}")
    return content


def read_text(path: str, flag: str, *, errors: str = "strict") -> str:
    """Return the text of a file; raise a UsageError with the name of the flag if the file cannot be read."""
    try:
        return foreign.read_text(path, errors=errors)
    except OSError as error:
        raise UsageError(f"mxpeak cannot read {flag} {path}: {error.strerror}; use another FILE") from None

"""Provide the forecast for a run, from the recorded run of --baseline or from a simulation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mxpeak.cli.request import RunRequest
from mxpeak.cli.run_history import past_results, recorded
from mxpeak.comm.base import Communicator
from mxpeak.configs.sparse import SparseConfig
from mxpeak.errors import UsageError
from mxpeak.foreign import read_text
from mxpeak.options import as_text
from mxpeak.records import PASSED
from mxpeak.runtime.placement import native_precisions, on_device, on_processor, threads_of
from mxpeak.watch.forecast import ProgressForecast

#: Settings that must agree if the forecast of a run comes from another run; the number of ranks must also agree.
SAME = ("n", "precision", "generator", "refine", "scaling", "pivoting")
#: Settings that older results do not contain, with their values in those runs.
ADDED = {"pivoting": "none"}


#: Options that must agree if the rate of a sparse run is compared with that of another run.
SAME_SPARSE = (
    *("precision", "mg_precision", "krylov_precision", "mg_vectors", "storage", "smoother"),
    *("restart", "nonsymmetric", "matrix", "run_type"),
)
#: Options that older results lack, with the settings of their runs.
ADDED_SPARSE = {"mg_vectors": {"value": None}}


def with_recorded_target(request: RunRequest, ranks: int) -> RunRequest:
    """Return a request whose --target is the rate of --baseline less --max-slowdown, if --max-slowdown is set."""
    config: Any = request.config
    slowdown = getattr(config, "max_slowdown", None)
    if slowdown is None:
        return request
    if config.baseline is None:
        raise UsageError("--max-slowdown refers to the rate of an earlier run; add --baseline FILE or --baseline last")
    target = (1.0 - slowdown) * _recorded_rate(request, ranks) / 1e9
    return request.with_values({"target": max(target, config.target or 0.0)}, "flag")


def _recorded_rate(request: RunRequest, ranks: int) -> float:
    """Return the rate in flop/s of the newest valid result in --baseline with the problem of this request."""
    path, valid = _valid_results(request.config.baseline, request.benchmark.name)  # type: ignore[attr-defined]
    valid = [result for result in valid if isinstance((result.get("result") or {}).get("rate_flops"), int | float)]
    if not valid:
        raise UsageError(f"--baseline {path} contains no result with a rate in flop/s; use another FILE")
    if isinstance(request.config, SparseConfig):
        others = [_sparse_differences(result, request, ranks) for result in valid]
    else:
        run = on_device(request)
        config: Any = on_processor(run, native_precisions(run.config)).config
        if config.n is None or len(cases := list(config.cases(ranks))) != 1:
            raise UsageError("--max-slowdown compares one case; add -N, and use one value for each option")
        others = [_differences(result, cases[0], ranks) for result in valid]
    for result, different in zip(reversed(valid), reversed(others)):
        if not different:
            return float(result["result"]["rate_flops"])
    raise _another_problem(path, others)


def _sparse_differences(result: Mapping[str, Any], request: RunRequest, ranks: int) -> list[str]:
    """Return a text per option that differs between a result of a sparse benchmark and a request."""
    config: Any = request.config
    if config.shape is None:
        raise UsageError("--max-slowdown compares one problem, but its size is not set; add --nx or --box")
    sections = (result.get(name) for name in ("config", "problem", "launch"))
    recorded, problem, launch = (section if isinstance(section, dict) else {} for section in sections)
    there = {name: problem.get(name) for name in ("nx", "ny", "nz")} | {"ranks": launch.get("ranks")}
    here = dict(zip(("nx", "ny", "nz"), config.shape)) | {"ranks": ranks}
    for name in SAME_SPARSE:
        entry = recorded.get(name, ADDED_SPARSE.get(name))
        if name in request.origins and isinstance(entry, Mapping):
            there[name], here[name] = as_text(entry.get("value")), as_text(getattr(config, name))
    return _texts(there, here)


def forecasts_of(request: RunRequest, ranks: int) -> dict[Any, ProgressForecast]:
    """Return the recorded forecast of each case of a request that has --baseline."""
    config: Any = request.config
    if config.n is None:
        raise UsageError("--baseline predicts the time of one problem, but -N is not set; add -N")
    run = on_device(request)
    config = on_processor(run, native_precisions(run.config)).config
    return forecasts(config.baseline, request.benchmark.name, config.cases(ranks), ranks)


def simulated(
    request: RunRequest, comm: Communicator, log: Callable[[str], None]
) -> Callable[[Any], ProgressForecast | None]:
    """Return a function that forecasts the progress of a case from the simulation of an LU factorization.

    The simulation uses the measurements of `mxpeak tune` for the same number of ranks and threads. Without these
    measurements, the function returns None. Rank 0 reads the measurements and reports errors in them. Collective.
    """
    from mxpeak.bench.expected import measured_layouts, progress_of
    from mxpeak.perf.simulation.machines import find_machine

    layouts = measured_layouts() if comm.rank == 0 else {}
    if not comm.bcast_object(bool(layouts)):
        return lambda case: None
    if (file := layouts.get((comm.size, request.config.threads or threads_of(comm)))) is None:
        return lambda case: None
    try:
        machine, name = find_machine(str(file)), request.benchmark.name
    except UsageError as error:
        log(f"note: no forecast: {error}; run mxpeak tune to measure this machine again")
        return lambda case: None

    def forecast(case: Any) -> ProgressForecast | None:
        progress = progress_of(name, case, machine)
        return None if progress is None else ProgressForecast(*progress, simulated=True)

    return forecast


def forecasts(text: str, benchmark: str, cases: Iterable[Any], ranks: int) -> dict[Any, ProgressForecast]:
    """Return a forecast per case from a result file, or from the newest valid run if `text` is `last`."""
    path, valid = _valid_results(text, benchmark)
    return {case: _forecast(path, valid, case, ranks) for case in cases}


def _valid_results(text: str, benchmark: str) -> tuple[Path, list[Mapping[str, Any]]]:
    """Return the valid results of --baseline, a file or a results folder, with their file; `last` is the newest run."""
    # isdir is False for invalid names, which then are errors of the reading
    path: Path | None = Path(text, "result.json") if os.path.isdir(text) else Path(text)
    if text == "last":
        path = next((file for file, result in past_results() if _is_valid(result, benchmark)), None)
    if path is None:
        raise UsageError(
            f"--baseline last: no folder in mxpeak-out/ contains a valid result of {benchmark}; use --baseline FILE"
        )
    valid = [result for result in _results(path) if _is_valid(result, benchmark)]
    if not valid:
        raise UsageError(f"--baseline {path} contains no valid result of {benchmark}; use another FILE")
    return path, valid


def _is_valid(result: Mapping[str, Any], benchmark: str) -> bool:
    return result.get("benchmark") == benchmark and result.get("status") in PASSED


def _results(path: Path) -> list[Mapping[str, Any]]:
    """Read and return the results in the file of --baseline; raise a UsageError if the file is not a result file."""
    try:
        return recorded(read_text(path))
    except OSError as error:
        raise UsageError(f"mxpeak cannot read --baseline {path}: {error.strerror}; use another FILE") from None
    except ValueError as error:
        raise UsageError(
            f"--baseline {path} is not the result of a run: {error}; use the result.json of a run"
        ) from None


def _forecast(path: Path, recorded: list[Mapping[str, Any]], case: Any, ranks: int) -> ProgressForecast:
    """Return the forecast of a case from the newest result of the same problem; raise a UsageError if there is none."""
    others = [_differences(result, case, ranks) for result in recorded]
    for result, different in zip(reversed(recorded), reversed(others)):
        if not different:
            try:
                forecast = ProgressForecast.of(result)
            except (TypeError, ValueError, AttributeError, KeyError) as error:
                raise UsageError(
                    f"--baseline {path} has telemetry.steps that are not a table: {error}; use another FILE"
                ) from None
            if forecast is None:
                raise UsageError(
                    f"--baseline {path} has no telemetry.steps, because an older version of mxpeak wrote it; "
                    "run that case again"
                )
            return forecast
    raise _another_problem(path, others)


def _another_problem(path: Path, others: Iterable[list[str]]) -> UsageError:
    """Return the error for a --baseline with another problem; it lists the differences from the most similar case."""
    nearest = min(others, key=len)
    return UsageError(
        f"--baseline {path} contains another problem: {', '.join(nearest)}; use another FILE, or use the same settings"
    )


def _differences(result: Mapping[str, Any], case: Any, ranks: int) -> list[str]:
    """Return a text per differing setting, such as "n is 1000 in the file and 2000 in this run"."""
    sections = (result.get(name) for name in ("problem", "launch"))
    problem, launch = (section if isinstance(section, dict) else {} for section in sections)
    here = {name: getattr(case, name, None) for name in SAME} | {"ranks": ranks}
    older = {name: value for name, value in ADDED.items() if here[name] is not None}
    there = {name: problem.get(name, older.get(name)) for name in SAME} | {"ranks": launch.get("ranks")}
    return _texts(there, here)


def _texts(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return a text per name whose values differ."""
    different = [name for name in here if there.get(name) != here[name]]
    return [f"{name} is {there.get(name)} in the file and {here[name]} in this run" for name in different]

"""Find and read past runs by name or path; those in mxpeak-out/ come newest first."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import dropwhile, islice
from pathlib import Path
from typing import Any

from mxpeak.bench.registry import BENCHMARKS
from mxpeak.cli.session import Session
from mxpeak.errors import UsageError
from mxpeak.foreign import UNSAFE, printable_values, read_bytes, read_text
from mxpeak.records import PASSED, read_json, results_of
from mxpeak.schema.check import mismatch

#: Names of the result file, and of the file with the results so far.
RESULT, PARTIAL = "result.json", "so-far.json"
#: Folder of the results without --out.
OUT = Path("mxpeak-out")
#: File of the run that `mxpeak baseline set` stores.
KEPT = OUT / "baseline.json"
#: File of the expected rates that `mxpeak baseline from` stores without --out.
KEPT_BASELINE = OUT / "scan-baseline.json"

#: Names that can replace the path of a run.
NAMES = ("last", "previous", "baseline")


def result_files() -> list[Path]:
    """Return the result files of past runs, newest first."""
    files = []
    for file in map(_in_folder, OUT.glob("*/")):
        with suppress(OSError):  # a dangling link, or a file that its run has just removed
            if stat.S_ISREG((status := file.stat()).st_mode):
                files.append((status.st_mtime, file))
    return [file for _, file in sorted(files, reverse=True)]


def check_readable() -> None:
    """Raise a UsageError if mxpeak-out/ exists but cannot be read, because it then seems to be empty."""
    try:
        os.scandir(OUT).close()
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"mxpeak cannot read {OUT}/: {error.strerror}; use another working folder") from None


def read_results(path: Path) -> list[Mapping[str, Any]]:
    """Return the results of a file in mxpeak-out/. If the file is invalid, print a warning and return an empty list."""
    try:
        return recorded(read_text(path))
    except FileNotFoundError:  # its run has just removed the file
        return []
    except (OSError, ValueError) as error:
        Session().log(f"warning: {path} is skipped: {error.strerror if isinstance(error, OSError) else error}")
        return []


def recorded(text: str) -> list[Mapping[str, Any]]:
    """Parse the text of a result file, check the results against the schema, and escape control characters in them.

    Keys may be absent, as in the files of older versions. Raise a ValueError with the first mismatch.
    """
    from mxpeak.report.scans import is_scan, result_of_scan

    body = read_json(text)
    results = checked([result_of_scan(body)] if is_scan(body) else results_of(body))
    return [printable_values(result) for result in results] if UNSAFE.search(text) or "\\u" in text else results


def checked(results: list[dict[str, Any]]) -> list[Mapping[str, Any]]:
    """Check results against the result schema and the schema of their benchmark, and their status.

    Raise a ValueError for a mismatch, and for a status that contradicts the validation.
    """
    from mxpeak.report.scans import stored_scan_mismatch

    for k, result in enumerate(results):
        benchmark = BENCHMARKS.get(str(result.get("benchmark")))
        wrong = mismatch(result, "result", complete=False)
        if benchmark is not None and benchmark.schema and not wrong:
            wrong = mismatch(result, benchmark.schema, complete=False)
        if result.get("benchmark") == "scan" and not wrong:
            wrong = stored_scan_mismatch(result)
        wrong = wrong or _contradiction(result)
        if wrong:
            raise ValueError(f"in result {k + 1} of {len(results)}, {wrong}" if len(results) > 1 else wrong)
    return list(results)


def _contradiction(result: Mapping[str, Any]) -> str:
    """Return the contradiction between the status and the validation of a result, or an empty string."""
    status, passed = result.get("status"), result.get("validation", {}).get("passed")
    if passed is None or (status in PASSED) == passed or status not in (*PASSED, "invalid"):
        return ""
    return f'status is "{status}", but validation.passed is {str(passed).lower()}'


def past_results() -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the file and the content of each result of past runs, newest file first."""
    for path in result_files():
        for result in read_results(path):
            yield path, result


def run_file(name: str) -> Path:
    """Return the result file of a run, given its path, its folder in mxpeak-out/, or a name such as `last`."""
    if name == "last":
        return _last()
    if name == "previous":
        return _previous(_last())
    if name == "baseline":
        if not KEPT.exists():
            raise UsageError("no baseline has been set; run mxpeak baseline set RESULT")
        return KEPT
    path = Path(name) if os.path.exists(name) or not os.path.exists(OUT / name) else OUT / name
    return _in_folder(path) if os.path.isdir(path) else path  # os.path returns False for names that are too long


def _in_folder(folder: Path) -> Path:
    """Return the result file in a folder, or the file of partial results if the run was interrupted."""
    whole, so_far = folder / RESULT, folder / PARTIAL
    return so_far if os.path.exists(so_far) and not os.path.exists(whole) else whole


def _last() -> Path:
    """Return the result file of the newest complete run, or of the newest interrupted run if no run is complete."""
    files = result_files()
    if not files:
        check_readable()
        raise UsageError(
            f"there is no last run, because {OUT}/ contains no results; run mxpeak first, or use a folder or file"
        )
    return next((file for file in files if file.name == RESULT), files[0])


def _previous(last: Path) -> Path:
    """Return the result file of the newest earlier run that has a case in common with the last run."""
    from mxpeak.report.compare import pairs

    own = read_results(last)
    earlier = dropwhile(lambda path: path != last, result_files())
    comparable = (path for path in islice(earlier, 1, None) if any(pairs(read_results(path), own)))
    if (path := next(comparable, None)) is None:
        named = ", ".join(dict.fromkeys(str(result.get("benchmark")) for result in own)) or "any benchmark"
        raise UsageError(
            f"no earlier run in {OUT}/ has a case in common with the last run ({named}); run "
            "mxpeak history, and use a folder from its list"
        )
    return path


def results_in(path: Path) -> list[Mapping[str, Any]]:
    """Return the results in a result file, or in an output file of another program such as HPL.

    Raise a UsageError if the file contains no result, as that of a run without a case that fits into memory.
    """
    from mxpeak.report.importers import results_of_log

    try:
        data = read_bytes(path)
    except OSError as error:
        raise UsageError(f"mxpeak cannot read {path}: {error.strerror}; use another file") from None
    text = data.decode("utf-8-sig", "replace")
    is_json = text.lstrip().startswith("{")
    try:
        results = recorded(data.decode("utf-8-sig")) if is_json else checked(results_of_log(text))
    except ValueError as error:
        raise UsageError(f"{path} is not the result of a run: {error}; use the result.json of a run") from None
    if results:
        return results
    if is_json:
        raise UsageError(f"{path} contains no result; use the result.json of a run that completed a case")
    raise UsageError(
        f"{path} is neither a result file nor a report of HPL, HPCG or HPG-MxP with a rating; use the folder of a run"
    )


def last_rate(
    benchmark: str, ranks: int, n: int = 0, *, precision: str | None = None, device: bool | None = None
) -> float | None:
    """Return the rate in flop/s of the newest valid result with the same number of ranks and an order of at least n/4.

    If given, the precision and the use of a GPU must also be the same. Results of empty matrices, whose rate is 0, do
    not count. Return None if there is no such result.
    """
    for _, result in past_results():
        if result.get("benchmark") != benchmark or result.get("status") not in PASSED:
            continue
        rate, problem = result.get("result", {}).get("rate_flops"), result.get("problem", {})
        if 4 * (problem.get("n") or 0) < n or precision not in (None, problem.get("precision", precision)):
            continue
        if device not in (None, bool(result.get("machine", {}).get("device_name"))):
            continue
        of_grid = int(problem.get("P", 0) * problem.get("Q", 0))
        if result.get("launch", {}).get("ranks", of_grid) == ranks and isinstance(rate, int | float) and rate > 0:
            return float(rate)
    return None

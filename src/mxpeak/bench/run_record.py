"""Record the identity and the settings of a run in its checkpoint folder, and read the record.

A resumed run takes its settings from this record. If run.json is unusable, the headers of the checkpoints describe the
run.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from operator import itemgetter
from pathlib import Path
from typing import Any

from mxpeak import __version__
from mxpeak.configs.lu import LuCase, LuConfig
from mxpeak.errors import UsageError
from mxpeak.options import as_text, options, recordable
from mxpeak.records import read_json
from mxpeak.runtime.checkpoint import (
    MAX_RUN_FILE_BYTES,
    RUN,
    SCHEMA,
    SLOTS,
    CheckpointPart,
    new_file,
    read_part,
    regular_file,
)

#: Settings that select the cases, their repetitions and their ranks; a run with checkpoints has only one case.
NOT_OF_A_CASE = ("P", "Q", "ranks", "ranks_list", "study", "quick", "repeat", "soak")
#: Settings that need the file of --baseline, which is not recorded. The run records the --target computed from them.
OF_THE_BASELINE = ("max_slowdown",)
#: The largest number of names or defects that a message lists.
MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The identity and the settings of the run that wrote the checkpoints, as stored in run.json and in each part.

    settings   the settings of the run as texts, without paths
    notes      notes for the user about the file that the record was read from
    """

    name: str
    benchmark: str
    version: str
    settings: Mapping[str, str]
    notes: tuple[str, ...] = field(default=(), compare=False)

    def about(self) -> dict[str, Any]:
        """Return the record as a dict for JSON."""
        return {"run": self.name, "benchmark": self.benchmark, "version": self.version, "settings": dict(self.settings)}

    def difference(self, part: CheckpointPart) -> str:
        """Return a text about the first difference between a checkpoint part and this run, or an empty text."""
        there = part.about.get("settings")
        if not isinstance(there, dict):
            return "a run without settings"
        here = self.about()
        pairs = [(name, part.about.get(name), here[name], "run") for name in ("benchmark", "version")]
        names = dict.fromkeys((*self.settings, *there))
        pairs += [(name, there.get(name), self.settings.get(name), "problem") for name in names]
        pairs.append(("run", part.about.get("run"), self.name, "run"))
        for name, of_part, of_run, what in pairs:
            if of_part != of_run:
                return f"another {what} ({name!r:.40} is {of_part!r:.40}, but {of_run!r:.40} in {RUN})"
        if (str(part.m), str(part.nb)) != (self.settings.get("n"), self.settings.get("nb")):
            return f"another matrix ({part.m} rows in blocks of {part.nb})"
        return ""


def _digest(about: Mapping[str, Any]) -> str:
    """Return a BLAKE2b digest of a run record, independent of the formatting of run.json."""
    return blake2b(json.dumps({"schema": SCHEMA, **about}, sort_keys=True).encode(), digest_size=32).hexdigest()


def write_run(folder: Path, record: RunRecord) -> None:
    """Write the run record and its digest to run.json in `folder`."""
    about = record.about()
    text = json.dumps({"schema": SCHEMA, **about, "digest": _digest(about)}, indent=2) + "\n"
    with new_file(folder / f".{RUN}.part", folder / RUN) as file:
        os.write(file, text.encode())


def read_run(folder: Path, configs: Mapping[str, type]) -> RunRecord:
    """Return the record of the run to which a folder of checkpoints belongs.

    `configs` are the configuration classes of the benchmarks by name. If run.json is missing or has no settings, the
    newest part with an intact header describes the run.
    """
    try:
        content = _json_in(folder / RUN)
        _check_format(folder, content)
        record = _record(content, configs)
    except (OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        record = _from_parts(folder, configs, error)
    else:
        if content.get("digest") != _digest(record.about()):
            raise _changed(folder, record)
    if record.version != __version__:
        raise UsageError(
            f"mxpeak {record.version!r:.40} wrote {folder}, but this is mxpeak {__version__}; use the same "
            "version to continue, or use another --checkpoint folder to start again"
        )
    return record


def _changed(folder: Path, record: RunRecord) -> UsageError:
    """Return the error for a run.json that was changed and may therefore describe another problem."""
    text, advice = "its digest differs", "use another --checkpoint folder to start again"
    for name, part in _intact_heads(folder):
        defect = record.difference(part)
        text = f"{name}/0-0 belongs to {defect}" if defect else text
        advice = f"remove {RUN} to continue with the settings in {name}/0-0"
        break
    return UsageError(f"{folder / RUN} has been changed or damaged: {text}; {advice}")


def _intact_heads(folder: Path) -> Iterator[tuple[str, CheckpointPart]]:
    """Yield the name of each slot whose first part has an intact header, together with that part."""
    for name in SLOTS:
        with suppress(OSError, ValueError):
            yield name, read_part(folder / name, 0, 0, whole=False)[0]


def _json_in(path: Path) -> Mapping[str, Any]:
    """Read a JSON object from a file; raise a ValueError if the file is too large or contains another JSON type."""
    with regular_file(path) as file:
        text = file.read(MAX_RUN_FILE_BYTES + 1)
    if len(text) > MAX_RUN_FILE_BYTES:
        raise ValueError(f"it has more than {MAX_RUN_FILE_BYTES} bytes")
    content = read_json(text)
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    return content


def _check_format(folder: Path, content: Mapping[str, Any]) -> None:
    """Raise an error if this version of mxpeak cannot read the format of the folder.

    The error is a UsageError for the format of another version, and otherwise a ValueError.
    """
    schema = content.get("schema")
    if isinstance(schema, str) and schema != SCHEMA and schema.startswith(SCHEMA.rpartition("/")[0] + "/"):
        raise UsageError(
            f"{folder} contains checkpoints in the format {schema!r:.40}, but this version of mxpeak reads "
            f"only {SCHEMA}; use the version that started the run, or use another --checkpoint folder to "
            "start again"
        )
    if schema != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")


def _record(content: Mapping[str, Any], configs: Mapping[str, type]) -> RunRecord:
    """Convert a JSON object to a run record; raise a ValueError if the object is not a valid record.

    Settings that only the command line may set are ignored and listed in the notes of the record.
    """
    name, benchmark, version, settings = (content.get(key) for key in ("run", "benchmark", "version", "settings"))
    if not (isinstance(name, str) and isinstance(benchmark, str) and isinstance(version, str)):
        raise ValueError("it does not contain the names of its run and benchmark and its version")
    if benchmark not in configs:
        raise ValueError(f"its benchmark is {benchmark!r:.40}, not {' or '.join(configs)}")
    if not isinstance(settings, dict) or not all(isinstance(text, str) for text in settings.values()):
        raise ValueError("its settings are not strings by name")
    names = recordable(configs[benchmark]) - set(NOT_OF_A_CASE)
    others = [repr(key)[:40] for key in settings if key not in names]
    notes = [f"{RUN} sets {', '.join(others[:MAX_NAMED])}, which only the command line may set; ignored"]
    kept = {key: text for key, text in settings.items() if key in names}
    return RunRecord(name, benchmark, version, kept, tuple(notes[: len(others)]))


def _from_parts(folder: Path, configs: Mapping[str, type], error: Exception) -> RunRecord:
    """Return the record in the header of the newest intact part, with a note that run.json cannot be used.

    `error` is the error of reading run.json. Raises a UsageError if no part contains a record.
    """
    records: list[tuple[int, RunRecord]] = []
    for _, part in _intact_heads(folder):
        with suppress(OSError, ValueError):
            records.append((part.number, _record(part.about, configs)))
    if not records and isinstance(error, FileNotFoundError):
        raise UsageError(
            f"{folder} contains no checkpoints, because it has no {RUN}; use the folder that --checkpoint named"
        ) from None
    if not records:
        raise UsageError(
            f"{folder / RUN} is not usable ({reason_of(error)}), and no part of a checkpoint describes the run; use "
            "another --checkpoint folder to start again"
        ) from None
    _, record = max(records, key=itemgetter(0))
    note = f"{folder / RUN} cannot be used: {reason_of(error)}; the settings come from a part of the checkpoint"
    return replace(record, notes=(*record.notes, note))


def record_of(config: LuConfig, case: LuCase, benchmark: str, chosen: Collection[str] = ()) -> RunRecord:
    """Return the record of a new run: every setting that differs from its default, and all settings of its case.

    Settings in `chosen` are not recorded. mxpeak chose their values for these nodes, and may resume the run on others.
    """
    names = recordable(type(config)) - {*NOT_OF_A_CASE, *OF_THE_BASELINE, "grid", "node_grid", *chosen}
    recorded = [o for o in options(type(config)) if o.name in names]
    content = {o.name: value for o in recorded if (value := getattr(config, o.name)) != o.default}
    content |= {o.name: getattr(case, o.name) for o in recorded if hasattr(case, o.name)}
    texts = {name: as_text(value) for name, value in content.items() if value is not None}
    texts["grid"] = f"{case.P}x{case.Q}"
    if case.node_grid is not None and "node_grid" not in chosen:
        texts["node_grid"] = "x".join(map(str, case.node_grid))
    return RunRecord(secrets.token_hex(8), benchmark, __version__, dict(sorted(texts.items())))


def reason_of(error: Exception) -> str:
    """Return the text of an error, without the number and the file of an OSError."""
    return getattr(error, "strerror", None) or str(error)

"""Decide when a checkpoint of an LU run is due, whether it belongs to a run, and from which checkpoint a run
continues.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from operator import itemgetter
from pathlib import Path
from typing import Any

from mxpeak import __version__
from mxpeak.bench.rules import Violation, break_rule
from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import run_on_root
from mxpeak.configs.lu import LuCase, LuConfig
from mxpeak.distributed.dense import DistMatrix
from mxpeak.errors import UsageError, cannot_write
from mxpeak.kernels.contract import Kernels
from mxpeak.options import as_text, options, recordable, seconds
from mxpeak.records import Caution, Result, read_json, three_digits
from mxpeak.runtime.checkpoint import (
    MAX_RUN_FILE_BYTES,
    RUN,
    SCHEMA,
    SLOTS,
    CheckpointPart,
    DirectWriter,
    Writer,
    load,
    new_file,
    read_part,
    regular_file,
)
from mxpeak.runtime.folder_lock import LOCK, FolderLock
from mxpeak.solvers.checkpointing import Notes
from mxpeak.solvers.growth_monitor import DiagonalBlocks
from mxpeak.spans import Spans

#: The number of times per run at which all ranks check whether a checkpoint is due.
LOOKS = 100
#: Settings that select the cases, their repetitions and their ranks; a run with checkpoints has only one case.
NOT_OF_A_CASE = ("P", "Q", "ranks", "ranks_list", "study", "quick", "repeat", "soak")
#: Settings that need the file of --baseline, which is not recorded. The run records the --target computed from them.
OF_THE_BASELINE = ("max_slowdown",)
#: Settings that mxpeak chooses for the nodes of a run if the user does not set them.
OF_THE_NODES = ("order", "node_grid")
#: Kernels whose matrices are NumPy arrays, and the type of the entries in a file by precision.
IN_HOST_MEMORY = ("host", "reference")
DTYPES = {"fp64": "float64", "fp32": "float32"}
#: The file of a finished run in its folder.
FINISHED = "finished"
#: The largest number of defects of a checkpoint that a message lists.
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
            f"{folder / RUN} is not usable ({_reason(error)}), and no part of a checkpoint describes the run; use "
            "another --checkpoint folder to start again"
        ) from None
    _, record = max(records, key=itemgetter(0))
    note = f"{folder / RUN} cannot be used: {_reason(error)}; the settings come from a part of the checkpoint"
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


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose parts are all intact.

    slot        the folder of the parts
    first       the part of process 0,0
    elapsed_s   time of the run until the checkpoint, of the slowest rank
    unix        time of the last copy
    notes       elementwise maximum of the notes of all ranks; NaN if any of them is NaN
    """

    slot: Path
    first: CheckpointPart
    elapsed_s: float
    unix: float
    notes: Notes


def first_parts(folder: Path, record: RunRecord) -> tuple[list[tuple[Path, CheckpointPart]], list[str]]:
    """Return the slots whose first header is intact and belongs to this run, newest first.

    The second return value lists the defects of the other slots.
    """
    slots, defects = [], []
    for name in SLOTS:
        slot = folder / name
        try:
            part, _ = read_part(slot, 0, 0, whole=False)
            if defect := record.difference(part):
                raise ValueError(f"it belongs to {defect}")
            if SLOTS[part.number % 2] != name:
                raise ValueError(f"checkpoint {part.number} is in the wrong slot")
            slots.append((slot, part))
        except FileNotFoundError:
            if slot.is_dir() and any(not file.name.startswith(".") for file in slot.iterdir()):
                defects.append(f"{slot}/0-0 is missing")
        except (OSError, ValueError) as error:
            defects.append(f"{slot}/0-0: {_reason(error)}")
    return sorted(slots, key=lambda slot: -slot[1].number), defects


def check_resumable(folder: Path, record: RunRecord) -> None:
    """Raise a UsageError before any rank starts if no slot can contain a checkpoint of this run."""
    slots, defects = first_parts(folder, record)
    if not slots:
        raise _none_intact(folder, defects)


def _none_intact(folder: Path, defects: Sequence[str]) -> UsageError:
    if not defects and _is_finished(folder):
        return UsageError(
            f"{folder} contains no checkpoint, because its run finished before the first one was due; use the result "
            "of this run, or use another --checkpoint folder to start again"
        )
    text = "; ".join(defects[:MAX_NAMED]) or "no checkpoint has been written yet"
    return UsageError(f"{folder} contains no intact checkpoint: {text}; use another --checkpoint folder to start again")


def _is_finished(folder: Path) -> bool:
    """Return whether the run of the folder has finished."""
    return (folder / FINISHED).is_file()


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def newest(folder: Path, record: RunRecord, comm: Communicator) -> tuple[Checkpoint, list[str]]:
    """Return the newest checkpoint whose parts are all intact, and the defects of newer checkpoints.

    Each rank reads its share of the parts completely. A defect that one rank finds excludes the slot on all ranks.
    Collective over comm.
    """
    slots, defects = run_on_root(comm, lambda: first_parts(folder, record))
    for slot, first in slots:
        defect, *share = _my_parts(slot, first, comm)
        shares = comm.gather_objects((defect, *share))
        answer = comm.bcast_object(None if shares is None else _combined(slot, first, shares))
        if isinstance(answer, Checkpoint):
            return answer, defects
        defects = [*defects, answer]
    raise _none_intact(folder, defects)


def _my_parts(slot: Path, first: CheckpointPart, comm: Communicator) -> tuple[str, float, float, Notes | None]:
    """Read and check this rank's share of the parts; return the first defect, and the largest times and notes."""
    elapsed_s, unix, notes = 0.0, 0.0, None
    for index in range(comm.rank, first.P * first.Q, comm.size):
        p, q = divmod(index, first.Q)
        try:
            part, _ = read_part(slot, p, q, whole=True)
            for name, value in first.shared.items():
                if part.shared[name] != value:
                    there = f"its {name} is {part.shared[name]!r:.40}, but {value!r:.40} in 0-0"
                    raise ValueError(f"it belongs to another checkpoint: {there}")
            _check_notes(part)
            notes = _largest(part.notes if notes is None else notes, part.notes)
        except (OSError, ValueError) as error:
            return f"{slot}/{p}-{q}: {_reason(error)}", elapsed_s, unix, None
        elapsed_s, unix = max(elapsed_s, part.elapsed_s), max(unix, part.unix)
    return "", elapsed_s, unix, notes


def _combined(
    slot: Path, first: CheckpointPart, shares: Sequence[tuple[str, float, float, Notes | None]]
) -> Checkpoint | str:
    """Combine the checks of all ranks into a checkpoint, or return the first defect that a rank found."""
    defects, elapsed_s, unix, notes = zip(*shares)
    if text := next(filter(None, defects), ""):
        return str(text)
    merged: Notes = first.notes
    for of_rank in filter(None, notes):
        if set(of_rank) != set(merged):
            return f"{slot}: its parts have different notes"
        merged = _largest(merged, of_rank)
    return Checkpoint(slot, first, max(elapsed_s), max(unix), merged)


def _check_notes(part: CheckpointPart) -> None:
    """Raise a ValueError if a factorization cannot continue from the notes of a part."""
    steps = -(-part.m // part.nb)
    lengths = {"blocks": steps, "zero_pivots": steps, "singular": 1, "order": part.m}
    for name, values in part.notes.items():
        if len(values) != lengths.get(name):
            raise ValueError(f"its data {name!r:.40} has an unexpected length of {len(values)}")
    if "blocks" not in part.notes:
        raise ValueError("the data of its diagonal blocks is missing")
    if any(value != value or abs(value) > part.m for value in part.notes.get("singular", ())):
        raise ValueError("the number of its first singular column is out of range")
    if sorted(part.notes.get("order", range(part.m))) != list(range(part.m)):
        raise ValueError("the order of its rows is not a permutation")


def _largest(first: Notes, second: Notes) -> Notes:
    """Return the elementwise maximum of two notes, with NaN if either element is NaN."""

    def order(value: float) -> float:
        return float("inf") if value != value else value

    return {name: [max(pair, key=order) for pair in zip(first[name], second[name])] for name in first}


@dataclass(slots=True)
class CheckpointedRun:
    """The folder with the checkpoints of one run, locked by rank 0, and the checkpoint from which the run continues."""

    folder: Path
    record: RunRecord
    generation: str
    every_s: float
    resumed_from: Checkpoint | None = None
    cautions: list[Caution] = field(default_factory=list)
    gap_s: float = 0.0
    lock: FolderLock | None = None
    writer: Writer | DirectWriter | None = None

    @property
    def before_s(self) -> float:
        """Return the timed seconds of this run before the checkpoint from which it resumed, or 0."""
        return 0.0 if self.resumed_from is None else self.resumed_from.elapsed_s

    def close(self) -> None:
        """Release the lock on the folder, unless a part is still being written."""
        if self.lock is not None and not (self.writer is not None and self.writer.busy):
            self.lock.release()

    def record_in(self, result: Result) -> None:
        """Record in a result that the run was resumed, with the times before, after and between the processes.

        A resumed result is not official.
        """
        if self.resumed_from is None:
            return
        after_s = result.result["time_s"] - self.before_s
        steps = self.resumed_from.first.steps
        result.result["resumed"] = {"before_s": self.before_s, "after_s": after_s, "gap_s": self.gap_s, "steps": steps}
        times = [three_digits(value) for value in (self.before_s, after_s, self.gap_s)]
        text = (
            f"resumed after step {steps}: {times[0]} s before, {times[1]} s after, gap {times[2]} s; "
            "the phases contain only the time after"
        )
        result.warnings.append(Caution("resumed", text, "for an official result, run it without interruption"))
        if result.rules:
            break_rule(result.rules, Violation("resumed", "a resumed run is not official"))

    def mark_finished(self) -> None:
        """Record in the folder that the run has a result, so that a later resume can report it."""
        with suppress(OSError), new_file(self.folder / f".{FINISHED}.part", self.folder / FINISHED):
            pass  # without the file, only the report is missing


def open_checkpoints(
    config: LuConfig, case: LuCase, comm: Communicator, benchmark: str, chosen: Collection[str] = ()
) -> CheckpointedRun | None:
    """Lock the --checkpoint folder, and start a new run or find the newest checkpoint. Collective over comm.

    A new run does not record the settings in `chosen`. Returns None without --checkpoint.
    """
    if config.checkpoint is None:
        return None
    folder = Path(config.checkpoint)
    locks: list[FolderLock] = []

    def begin() -> tuple[RunRecord, str, str]:
        if not config.resumed:
            with _writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
        try:
            locks.append(FolderLock(folder))
        except OSError as error:
            raise UsageError(
                f"cannot use the checkpoint folder {folder}: {error.strerror}; use another folder"
            ) from None
        if config.resumed:
            record = read_run(folder, {benchmark: type(config)})
        else:
            record = record_of(config, case, benchmark, chosen)
            with _writing(folder):
                _begin(folder, record)
        return record, secrets.token_hex(8), locks[0].missing

    try:
        record, generation, missing = run_on_root(comm, begin)
        run = CheckpointedRun(folder, record, generation, seconds(config.every), lock=next(iter(locks), None))
        if missing:
            text = f"{folder} could not be locked ({missing}), so a second run in it is not refused"
            run.cautions.append(Caution("checkpoint-lock", text, "run only one mxpeak resume of a folder at a time"))
        if config.resumed:
            _find_newest(run, comm)
    except BaseException:
        for lock in locks:
            lock.release()
        raise
    return run


def _find_newest(run: CheckpointedRun, comm: Communicator) -> None:
    """Find the checkpoint from which a resumed run continues, and record warnings about the folder. Collective."""
    run.cautions += [Caution("checkpoint-run", note) for note in run.record.notes]
    run.resumed_from, defects = newest(run.folder, run.record, comm)
    run.gap_s = comm.bcast_object(max(0.0, time.time() - run.resumed_from.unix))
    damaged = "a damaged checkpoint was not used: {}"
    run.cautions += [Caution("checkpoint-damaged", damaged.format(defect)) for defect in defects]
    if comm.bcast_object(_is_finished(run.folder)):
        steps = run.resumed_from.first.steps
        text = f"the run in {run.folder} has already finished; mxpeak repeats the steps after step {steps}"
        run.cautions.append(Caution("finished", text, "use the result of the finished run"))


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Raise an MxpeakError if the body of the `with` statement cannot write to the --checkpoint folder."""
    try:
        yield
    except OSError as error:
        raise cannot_write(f"to --checkpoint {folder}", error, "use another folder") from None


def _begin(folder: Path, record: RunRecord) -> None:
    """Write the record of a new run into its folder; raise a UsageError if the folder contains other files."""
    if any(file.name != LOCK and not file.name.startswith(".mxpeak-") for file in folder.iterdir()):
        raise UsageError(
            f"--checkpoint {folder} is not empty; run mxpeak resume {folder} to continue its run, or use another folder"
        )
    write_run(folder, record)


class FolderCheckpointer:
    """Writes and reads checkpoint files. All ranks of the grid create a checkpointer and call it at the same steps."""

    def __init__(
        self,
        run: CheckpointedRun,
        A: DistMatrix,
        kernels: Kernels,
        spans: Spans,
        ending: Callable[[], bool] = lambda: False,
    ):
        self._run, self._A, self._kernels, self._spans = run, A, kernels, spans
        self._in_host_memory = kernels.name in IN_HOST_MEMORY
        self._writer = run.writer = self._new_writer()
        self._ending, self._last = ending, False
        self._number, self._kept_s, self._seen = 0, 0.0, 0
        self.first_step = 0
        self.notes: Notes = {}
        if run.resumed_from is not None:
            first, slot = run.resumed_from.first, run.resumed_from.slot
            there, here = (first.m, first.n, first.nb, first.dtype), (A.rows.n, A.cols.n, A.nb, DTYPES[A.precision])
            if there != here:
                raise UsageError(
                    f"the checkpoint in {slot} belongs to the matrix {there}, but this run has {here}; use another "
                    "--checkpoint folder"
                )
            self._number, self.first_step, self.notes = first.number, first.steps, run.resumed_from.notes

    def _new_writer(self) -> Writer | DirectWriter:
        """Return a writer in the background for a matrix in host memory, otherwise one that writes pieces directly."""
        folder, A, kernels = self._run.folder, self._A.local, self._kernels
        if self._in_host_memory:
            return Writer(folder, A, lambda copy: kernels.copy(A, copy))
        return DirectWriter(folder, lambda i0, i1: kernels.host_array(A[i0:i1]))

    def _put(self, rows: Any, lines: Any) -> None:
        """Set these local rows of the matrix."""
        A, kernels = self._A.local, self._kernels
        if self._in_host_memory:
            A[rows] = lines
        else:
            kernels.scatter_rows(kernels.xp.asarray(lines), kernels.indices(rows.tolist()), A)

    def load(self, blocks: DiagonalBlocks) -> None:
        """Read the matrix and the notes of its diagonal blocks if the run is resumed. Collective over the grid."""
        checkpoint = self._run.resumed_from
        if checkpoint is None:
            return
        defect = ""
        try:
            load(checkpoint.slot, checkpoint.first, self._A.rows, self._A.cols, self._put)
        except (OSError, ValueError) as error:
            defect = f"{checkpoint.slot}: {_reason(error)}"
        ranks = self._A.grid.all
        defects = ranks.bcast_object(ranks.gather_objects(defect))
        if any(defects):  # `newest` found these parts intact
            text = next(filter(None, defects))
            raise UsageError(f"a checkpoint changed while mxpeak read it: {text}; run mxpeak resume again")
        blocks.restore(self.notes["blocks"])

    def is_due(self, step: int, count: int) -> bool:
        """Return whether all ranks write a checkpoint now.

        A checkpoint is due if the interval of --every has elapsed on rank 0 and every rank has written its last part.
        All ranks wait for a broadcast from rank 0. They synchronize with each other only if a checkpoint is due.
        """
        if (part := LOOKS * (step + 1) // count) == self._seen:
            return False
        self._seen = part
        ranks = self._A.grid.all
        late = self._spans.active_s - self._kept_s >= self._run.every_s
        answer = ranks.bcast_object((late, self._ending()) if ranks.rank == 0 else None)
        self._last = answer[1]
        if self._last:
            self._writer.wait()
        if not any(answer):
            return False
        able = ranks.agree(not self._writer.busy and self._writer.error is None)
        if self._last and not able:
            end()
        return able

    def save(self, done: int, notes: Notes) -> None:
        """Write this rank's part of the matrix, or start to write a copy. After the last checkpoint, end this rank."""
        with self._spans("keep"):
            A, grid, elapsed_s = self._A, self._A.grid, self._spans.active_s
            self._number, self._kept_s = self._number + 1, elapsed_s
            part = CheckpointPart(
                about=self._run.record.about(), generation=self._run.generation, number=self._number, steps=done,
                m=A.rows.n, n=A.cols.n, nb=A.nb, P=grid.P, Q=grid.Q, p=grid.p, q=grid.q, dtype=DTYPES[A.precision],
                elapsed_s=elapsed_s + self._run.before_s, unix=time.time(),
                notes={name: list(values) for name, values in notes.items()},
            )  # fmt: skip
            self._writer.write(part)
        if self._last:
            self._writer.wait()
            grid.all.barrier()
            end()

    def finish(self) -> list[Caution]:
        """Wait until the last part is written; return the warnings about checkpoints. Collective over the grid."""
        self._writer.wait()
        texts = self._A.grid.all.gather_objects(None if self._writer.error is None else str(self._writer.error))
        cautions = list(self._run.cautions)
        if texts and any(texts):
            text = f"a checkpoint could not be written: {next(filter(None, texts))}"
            cautions.append(Caution("checkpoint", text, "use a --checkpoint folder on a disk with more free space"))
        return cautions


def end() -> None:
    """End this rank by SIGTERM, sent twice because a rank postpones the first signal that it receives."""
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)

"""Write the checkpoints of an LU run, find the newest intact checkpoint, and continue from it.

`run_record.py` identifies the run to which a checkpoint belongs.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mxpeak.bench.rules import Violation, break_rule
from mxpeak.bench.run_record import MAX_NAMED, RunRecord, read_run, reason_of, record_of, write_run
from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import run_on_root
from mxpeak.configs.lu import LuCase, LuConfig
from mxpeak.distributed.dense import DistMatrix
from mxpeak.errors import UsageError, cannot_write
from mxpeak.kernels.contract import Kernels
from mxpeak.options import seconds
from mxpeak.records import Caution, Result, three_digits
from mxpeak.runtime.checkpoint import SLOTS, CheckpointPart, DirectWriter, Writer, load, new_file, read_part
from mxpeak.runtime.folder_lock import LOCK, FolderLock
from mxpeak.solvers.checkpointing import Notes
from mxpeak.solvers.growth_monitor import DiagonalBlocks
from mxpeak.spans import Spans

#: The number of times per run at which all ranks check whether a checkpoint is due.
LOOKS = 100
#: Settings that mxpeak chooses for the nodes of a run if the user does not set them.
OF_THE_NODES = ("order", "node_grid")
#: Kernels whose matrices are NumPy arrays, and the type of the entries in a file by precision.
IN_HOST_MEMORY = ("host", "reference")
DTYPES = {"fp64": "float64", "fp32": "float32"}
#: The file of a finished run in its folder.
FINISHED = "finished"


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
            defects.append(f"{slot}/0-0: {reason_of(error)}")
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
            return f"{slot}/{p}-{q}: {reason_of(error)}", elapsed_s, unix, None
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
            defect = f"{checkpoint.slot}: {reason_of(error)}"
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

"""Checkpoints of an LU run: when one is due, what belongs to it, and what a run knows that goes on from one."""

from __future__ import annotations

import json
import os
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxpeak import __version__
from mxpeak.bench.rules import Violation, break_rule
from mxpeak.comm.base import Communicator
from mxpeak.configs.lu import LuCase, LuConfig
from mxpeak.distributed.matrix import DistMatrix
from mxpeak.errors import UsageError
from mxpeak.kernels.contract import Kernels
from mxpeak.options import as_text, options, seconds
from mxpeak.records import Caution, Result, read_json, three_digits
from mxpeak.runtime.checkpoint import RUN, SCHEMA, Checkpoint, Part, Writer, checkpoints, load, trouble
from mxpeak.runtime.nodes import by_root
from mxpeak.solvers.blocks import DiagonalBlocks
from mxpeak.solvers.keeping import Notes
from mxpeak.spans import Spans

#: How often in a run all ranks ask whether a checkpoint is due.
LOOKS = 100


class Keeping:
    """A `solvers.keeping.Keeper` of files.  Made, and asked, by all ranks of the grid alike."""

    def __init__(
        self, run: Run, A: DistMatrix, kernels: Kernels, spans: Spans, ending: Callable[[], bool] = lambda: False
    ):
        self._run, self._A, self._kernels, self._spans = run, A, kernels, spans
        self._writer = Writer(run.folder, A.local)
        self._ending, self._last = ending, False
        self._number, self._kept_s, self._seen = 0, 0.0, 0
        self.first = 0
        self.notes: Notes = {}
        if run.found is not None:
            about = run.found.about
            self._number, self.first = about.number, about.steps
            self.notes = _largest([part.notes for _, part in run.found.parts])

    def load(self, blocks: DiagonalBlocks) -> None:
        """The matrix, and what was noted of its diagonal blocks, as they were kept, if they were."""
        if self._run.found is not None:
            load(self._run.found, self._A.rows, self._A.cols, self._A.local)
            blocks.recall(self.notes["blocks"])

    def due(self, step: int, count: int) -> bool:
        """Whether --every is over on rank 0, and nobody still writes, or has failed to.

        All wait for the word of rank 0, and only if it is yes for each other: ranks shall not march in step for this.
        """
        if (part := LOOKS * (step + 1) // count) == self._seen:
            return False
        self._seen = part
        everybody = self._A.grid.all
        late = self._spans.active_s - self._kept_s >= self._run.every_s
        said = everybody.bcast_object((late, self._ending()) if everybody.rank == 0 else None)
        self._last = said[1]
        if self._last:
            self._writer.wait()
        if not any(said):
            return False
        able = everybody.agree(not self._writer.busy and self._writer.error is None)
        if self._last and not able:
            end()
        return able

    def keep(self, done: int, notes: Notes) -> None:
        """Copy this rank's part, and have it written."""
        with self._spans("keep"):
            self._write(done, notes)
        if self._last:
            self._writer.wait()
            self._A.grid.all.barrier()
            end()

    def _write(self, done: int, notes: Notes) -> None:
        """Begin to write this rank's part."""
        A, elapsed_s = self._A, self._spans.active_s
        self._number, self._kept_s = self._number + 1, elapsed_s
        part = Part(
            run=self._run.name,
            number=self._number,
            steps=done,
            m=A.rows.n,
            n=A.cols.n,
            nb=A.nb,
            P=A.grid.P,
            Q=A.grid.Q,
            p=A.grid.p,
            q=A.grid.q,
            dtype=A.local.dtype.name,
            elapsed_s=elapsed_s + self._run.before_s,
            unix=time.time(),
            notes={name: list(values) for name, values in notes.items()},
        )
        self._writer.write(part, lambda copy: self._kernels.copy(A.local, copy))

    def finish(self) -> list[Caution]:
        """The factorization is over: let the last part be written, and hear how the writing went.  Collective."""
        self._writer.wait()
        texts = self._A.grid.all.gather_objects(None if self._writer.error is None else str(self._writer.error))
        cautions = list(self._run.cautions)
        if texts and any(texts):
            text = f"a checkpoint could not be written: {next(filter(None, texts))}"
            cautions.append(Caution("checkpoint", text, "give --checkpoint a folder on a disk with more room"))
        return cautions


def end() -> None:
    """End this rank by the signal that it has put off; a rank that got none takes two."""
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)


def _largest(notes: list[Mapping[str, list[float]]]) -> dict[str, list[float]]:
    """The largest of all ranks' notes, NaN if there is one."""
    return {name: [max(values, key=_size) for values in zip(*(one[name] for one in notes))] for name in notes[0]}


def _size(value: float) -> float:
    return float("inf") if value != value else value


@dataclass(slots=True)
class Run:
    """The folder of checkpoints of one run; `found`: the one to go on from."""

    folder: Path
    name: str
    every_s: float
    found: Checkpoint | None
    cautions: list[Caution]
    gap_s: float = 0.0

    @property
    def before_s(self) -> float:
        """Seconds of the clock before this process."""
        return 0.0 if self.found is None else self.found.about.elapsed_s

    def about(self, result: Result) -> None:
        """Say in a result that it is one of a resumed run; its time holds what came before."""
        if self.found is None:
            return
        after_s = result.result["time_s"] - self.before_s
        result.result["resumed"] = {
            "before_s": self.before_s,
            "after_s": after_s,
            "gap_s": self.gap_s,
            "steps": self.found.about.steps,
        }
        times = [three_digits(value) for value in (self.before_s, after_s, self.gap_s)]
        text = f"resumed after step {self.found.about.steps}: {times[0]} s before, {times[1]} s after, gap {times[2]} s"
        result.warnings.append(Caution("resumed", text, "run it in one piece for an official result"))
        if result.rules:
            break_rule(result.rules, Violation("resumed", "a run in two pieces is no official run"))


def opened(config: LuConfig, case: LuCase, comm: Communicator, benchmark: str) -> Run | None:
    """The folder that --checkpoint names, new or to go on from; None without --checkpoint.  Collective."""
    if config.checkpoint is None:
        return None
    folder = Path(config.checkpoint)
    if config.resumed:
        return _found(folder, config, comm)
    name = by_root(comm, lambda: _write_run(folder, config, case, comm.size, benchmark))
    return Run(folder, name, seconds(config.every), None, [])


def _write_run(folder: Path, config: LuConfig, case: LuCase, ranks: int, benchmark: str) -> str:
    """Say what is computed; the name of the run."""
    settings = {o.name: value for o in options(type(config)) if (value := getattr(config, o.name)) != o.default}
    for shape in ("P", "Q", "grid", "node_grid"):
        settings.pop(shape, None)
    texts = {key: as_text(value) for key, value in settings.items() if value is not None}
    texts |= {"n": str(case.n), "nb": str(case.nb), "grid": f"{case.P}x{case.Q}"}
    if case.node_grid is not None:
        texts["node_grid"] = "x".join(map(str, case.node_grid))
    name = secrets.token_hex(8)
    about = {"schema": SCHEMA, "run": name, "benchmark": benchmark, "version": __version__, "ranks": ranks}
    beside = folder / f".{RUN}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps({**about, "settings": texts}, indent=2) + "\n", encoding="utf-8")
        beside.rename(folder / RUN)
    except OSError as error:
        raise UsageError(f"cannot write to --checkpoint {folder}: {error.strerror}; give another folder") from None
    return name


def read_run(folder: Path) -> dict[str, Any]:
    """What a folder of checkpoints says of its run."""
    try:
        said = read_json((folder / RUN).read_text(encoding="utf-8"))
        if said["schema"] != SCHEMA or not all(isinstance(text, str) for text in said["settings"].values()):
            raise ValueError(f"it is not one of {SCHEMA}")
        return {"run": str(said["run"]), "benchmark": str(said["benchmark"]), "settings": dict(said["settings"])}
    except FileNotFoundError:
        raise UsageError(f"{folder} holds no checkpoints: there is no {RUN}; give the DIR of --checkpoint") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{folder / RUN} cannot be read: {error}") from None


def _found(folder: Path, config: LuConfig, comm: Communicator) -> Run:
    """The latest checkpoint whose parts are all there and whole; all ranks look through them together."""
    name = by_root(comm, lambda: str(read_run(folder)["run"]))
    found, wrong = by_root(comm, lambda: checkpoints(folder, name))
    wrong = [text for text in wrong if "nothing has been kept" not in text]
    for one in found:
        mine = [text for path, part in one.parts[comm.rank :: comm.size] if (text := trouble(path, part))]
        texts = comm.bcast_object(comm.gather_objects(mine))
        if not any(texts):
            cautions = [Caution("torn", f"a torn checkpoint was left aside: {text}", "") for text in wrong]
            run = Run(folder, name, seconds(config.every), one, cautions)
            run.gap_s = comm.bcast_object(time.time() - one.about.unix)
            return run
        wrong += [text for part in texts for text in part]
    raise UsageError(
        f"{folder} holds no whole checkpoint: {'; '.join(wrong) or 'nothing has been kept'}; "
        "run again from the start, and give --checkpoint another folder"
    )

"""Test that all ranks continue from the newest checkpoint whose parts are intact and belong together."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxpeak.bench import checkpointing, run_record
from mxpeak.bench.checkpointing import Checkpoint, newest
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl_mxp.config import HplMxpConfig
from mxpeak.bench.run_record import RunRecord, read_run, record_of
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.configs.run import OutputConfig
from mxpeak.errors import UsageError
from mxpeak.options import options, recordable
from mxpeak.runtime import checkpoint
from mxpeak.runtime.checkpoint import SLOTS, CheckpointPart, write_part

M, N, NB, STEPS = 37, 38, 5, 8
RECORD = RunRecord("this", "hpl", run_record.__version__, {"n": str(M), "nb": str(NB), "seed": "100", "grid": "2x3"})


def keep(folder: Path, number: int, P: int = 2, Q: int = 3, only: Any = None, **values: Any) -> None:
    """Write all parts of a checkpoint, or one of them."""
    for p in range(P):
        for q in range(Q):
            if only not in (None, (p, q)):
                continue
            usual: dict[str, Any] = dict(
                about=RECORD.about(), generation="g", number=number, steps=number, dtype="float64"
            )
            usual |= dict(
                m=M, n=N, nb=NB, P=P, Q=Q, p=p, q=q, elapsed_s=number + 0.1 * p + 0.01 * q, unix=10.0 * number
            )
            usual["notes"] = {"blocks": [float(p + q)] * STEPS, "singular": [0.0]}
            part = CheckpointPart(**{**usual, **values})
            rng = np.random.default_rng([number, p, q])
            write_part(folder / SLOTS[number % 2], part, rng.standard_normal(part.shape))


def newest_of(folder: Path, ranks: int = 4) -> list[tuple[Checkpoint, list[str]]]:
    """Return the newest usable checkpoint and its messages as several ranks find them."""
    return run_ranks(ranks, lambda comm: newest(folder, RECORD, comm))


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def another(**settings: str) -> dict[str, Any]:
    """Return the record of a run of another problem with the same name."""
    return dataclasses.replace(RECORD, settings={**RECORD.settings, **settings}).about()


#: Damage to checkpoint 4 in slot a, which has the parts of 2x3 processes, and the message about it.
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit of a head": (lambda slot: flip(slot / "1-2", 300), "1-2: its header is damaged"),
    "a bit of the numbers": (lambda slot: flip(slot / "1-1", checkpoint.PAGE + 77), "1-1: its numbers are damaged"),
    "a bit of the digest": (lambda slot: flip(slot / "0-0", -9), "0-0: its numbers are damaged"),
    "a part is missing": (lambda slot: (slot / "0-2").unlink(), "0-2: No such file"),
    "the first part is missing": (lambda slot: (slot / "0-0").unlink(), "0-0 is missing"),
    "two parts change places": (
        lambda slot: [(slot / source).rename(slot / to) for source, to in (("0-1", "x"), ("1-1", "0-1"), ("x", "1-1"))],
        "1-1: it contains the part of process 0,1",
    ),
    "a part of another step": (lambda slot: keep(slot.parent, 4, only=(1, 0), steps=5), "its steps is 5, but 4 in 0-0"),
    "a part of the checkpoint before the last": (
        lambda slot: (keep(slot.parent, 2), keep(slot.parent, 4, only=(0, 0))),
        "it belongs to another checkpoint: its number is 2, but 4 in 0-0",
    ),
    "a part that a killed start has written under the same number": (
        lambda slot: keep(slot.parent, 4, only=(1, 1), generation="h"),
        "1-1: it belongs to another checkpoint: its generation is 'h', but 'g' in 0-0",
    ),
    "a part of another problem": (
        lambda slot: keep(slot.parent, 4, only=(0, 1), about=another(seed="7")),
        "0-1: it belongs to another checkpoint: its about is",
    ),
    "parts of another problem": (
        lambda slot: keep(slot.parent, 4, about=another(seed="7")),
        "0-0: it belongs to another problem ('seed' is '7', but '100' in run.json)",
    ),
    "parts of a problem with one more setting": (
        lambda slot: keep(slot.parent, 4, about=another(scaling="auto")),
        "0-0: it belongs to another problem ('scaling' is 'auto', but None in run.json)",
    ),
    "parts of another version": (
        lambda slot: keep(slot.parent, 4, about={**RECORD.about(), "version": "0"}),
        "0-0: it belongs to another run ('version' is '0', but",
    ),
    "parts of another run": (
        lambda slot: keep(slot.parent, 4, about={**RECORD.about(), "run": "other"}),
        "0-0: it belongs to another run ('run' is 'other', but 'this' in run.json)",
    ),
    "parts of another matrix": (lambda slot: keep(slot.parent, 4, m=36), "0-0: it belongs to another matrix (36 rows"),
    "parts of another grid": (lambda slot: keep(slot.parent, 4, P=2, Q=2, only=(1, 1)), "1-1: it belongs to another"),
    "a slot in place of the other": (
        lambda slot: [path.write_bytes((slot.parent / "b" / path.name).read_bytes()) for path in slot.iterdir()],
        "0-0: checkpoint 3 is in the wrong slot",
    ),
    "notes that are too short": (
        lambda slot: keep(slot.parent, 4, notes={"blocks": [1.0]}),
        "data 'blocks' has an unexpected",
    ),
    "notes that are missing": (
        lambda slot: keep(slot.parent, 4, notes={"singular": [0.0]}),
        "the data of its diagonal blocks is missing",
    ),
    "notes that no LU writes": (
        lambda slot: keep(slot.parent, 4, notes={"blocks": [0.0] * STEPS, "x": [0.0]}),
        "data 'x' has an unexpected",
    ),
    "a column that is none": (
        lambda slot: keep(slot.parent, 4, notes={"blocks": [0.0] * STEPS, "singular": [float("nan")]}),
        "first singular column is out of range",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_all_ranks_use_the_other_slot_and_say_why(tmp_path: Path, name: str) -> None:
    keep(tmp_path, 3)
    keep(tmp_path, 4)
    assert [(resume.first.number, wrong) for resume, wrong in newest_of(tmp_path)] == [(4, [])] * 4
    damage, says = DAMAGES[name]
    damage(tmp_path / "a")
    for resume, wrong in newest_of(tmp_path):
        assert (resume.first.number, resume.slot.name) == (3, "b")
        (text,) = wrong
        assert says in text


def test_the_times_are_those_of_the_slowest_rank_and_the_notes_the_largest(tmp_path: Path) -> None:
    keep(tmp_path, 5)
    keep(
        tmp_path, 5, only=(1, 0), elapsed_s=9.0, unix=60.0, notes={"blocks": [float("nan")] * STEPS, "singular": [3.0]}
    )
    for ranks in (1, 4, 9):
        for resume, _ in newest_of(tmp_path, ranks):
            assert (resume.elapsed_s, resume.unix) == (9.0, 60.0)
            assert resume.notes["singular"] == [3.0]
            assert np.isnan(resume.notes["blocks"]).all()


def test_parts_of_a_larger_grid_that_was_used_before_do_no_harm(tmp_path: Path) -> None:
    for number, shape in ((1, (2, 3)), (2, (2, 3)), (3, (1, 2)), (4, (1, 2))):
        keep(tmp_path, number, *shape)
        for one, wrong in newest_of(tmp_path, 2):
            assert (one.first.number, one.first.P * one.first.Q, wrong) == (number, shape[0] * shape[1], [])


def test_the_folder_is_locked_by_rank_0_for_all_ranks(tmp_path: Path) -> None:
    """A second run in the folder is refused on each rank until the first run has ended."""
    config = HplConfig(n=(M,), nb=(NB,), grid=((2, 2),), checkpoint=str(tmp_path / "kept"))
    resumed = dataclasses.replace(config, resumed=True)

    def body(comm: Any) -> list[str]:
        (case,) = config.cases(comm.size)
        run = checkpointing.open_checkpoints(config, case, comm, "hpl")
        assert run is not None
        refusals = []
        for again in (config, resumed):
            with pytest.raises(UsageError) as refused:
                checkpointing.open_checkpoints(again, case, comm, "hpl")
            refusals.append(str(refused.value))
        run.close()
        comm.barrier()
        with pytest.raises(UsageError) as refused:
            checkpointing.open_checkpoints(resumed, case, comm, "hpl")
        return [*refusals, str(refused.value)]

    for texts in run_ranks(4, body):
        assert ["in use" in text for text in texts] == [True, True, False]
        assert "no checkpoint has been written yet" in texts[2]


def test_two_damaged_slots_are_an_error_that_names_both(tmp_path: Path) -> None:
    keep(tmp_path, 3)
    keep(tmp_path, 4)
    flip(tmp_path / "a" / "1-1", 300)
    flip(tmp_path / "b" / "0-1", 300)
    with pytest.raises(
        UsageError, match=r"no intact checkpoint: .*a/1-1: its header .*b/0-1: its header .*to start again"
    ):
        newest_of(tmp_path, 1)


def test_every_option_that_names_a_path_is_marked() -> None:
    """A recorded run may set only one path: the matrix, because it defines the problem."""
    for config in (HplConfig, HplMxpConfig, OutputConfig):
        named = {o.name for o in options(config) if o.metavar.split(".")[0] in ("FILE", "DIR")}
        assert named
        assert not named & recordable(config)


def test_the_record_of_a_run_holds_every_setting_of_its_case_and_no_path(tmp_path: Path) -> None:
    paths = dict(trace="t", baseline="b", submit="s", checkpoint=str(tmp_path))
    config = HplMxpConfig(n=(96,), nb=(32,), grid=((1, 2),), ranks=2, seed=7, quick=True, watchdog="off", **paths)
    (case,) = config.cases(2)
    record = record_of(config, case, "hpl-mxp")
    assert {
        "n": "96",
        "seed": "7",
        "precision": "fp32",
        "bcast": "1ringM",
        "watchdog": "off",
    }.items() <= record.settings.items()
    assert not {*paths, "quick", "ranks"} & set(record.settings)
    run_record.write_run(tmp_path, record)
    assert read_run(tmp_path, {"hpl-mxp": HplMxpConfig}) == record


def test_a_grid_that_mxpeak_chose_for_the_nodes_is_not_recorded() -> None:
    config = HplConfig(n=(96,), nb=(32,), grid=((2, 2),), node_grid=(1, 2))
    (case,) = config.cases(4)
    assert record_of(config, case, "hpl").settings.items() >= {"node_grid": "1x2", "order": "row"}.items()
    assert not {"node_grid", "order"} & set(record_of(config, case, "hpl", ("node_grid", "order")).settings)


def test_a_limit_from_a_baseline_is_recorded_as_a_target() -> None:
    config = HplConfig(n=(96,), nb=(32,), grid=((1, 1),), baseline="old.json", max_slowdown=0.1, target=9.0)
    (case,) = config.cases(1)
    settings = record_of(config, case, "hpl").settings
    assert settings["target"] == "9.0"
    assert not {"max_slowdown", "baseline"} & set(settings)


def test_any_single_flipped_bit_of_run_json_is_recognized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flip every bit of the file, which is read from memory. No parts exist that could describe the run instead."""
    config = HplConfig(n=(96,), nb=(32,), grid=((1, 1),), seed=7)
    (case,) = config.cases(1)
    record = record_of(config, case, "hpl")
    run_record.write_run(tmp_path, record)
    content = bytearray((tmp_path / "run.json").read_bytes())
    monkeypatch.setattr(run_record, "regular_file", lambda path: io.BytesIO(content))
    accepted = []
    for at in range(len(content)):
        for bit in range(8):
            content[at] ^= 1 << bit
            with suppress(UsageError):
                accepted.append((at, bit, read_run(tmp_path, {"hpl": HplConfig})))
            content[at] ^= 1 << bit
    assert accepted == []
    assert read_run(tmp_path, {"hpl": HplConfig}) == record

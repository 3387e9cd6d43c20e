"""Test the store of tuned settings: complete files, ignored bad files with a note, and the settings of runs."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mxpeak.bench.registry import BENCHMARKS
from mxpeak.configs.run import RunConfig
from mxpeak.errors import UsageError
from mxpeak.options import Run, resolve, run_of
from mxpeak.perf.tuned import Winner, Winners
from mxpeak.runtime import tuned
from mxpeak.runtime.tuned import Store, append, with_tuned

CORES = max(1, len(tuned.one_core_each()))
HPL = Winner(
    benchmark="hpl",
    mode="official",
    device="cpu",
    ranks=1,
    threads=CORES,
    any_layout=False,
    size={"n": 1024},
    settings={"nb": "64", "bcast": "long"},
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "not" / "there" / "yet", {"cpu_model": "invented"})


@pytest.fixture
def here(nothing_tuned: Path) -> Store:
    """Return the store of this machine, in a folder of the test."""
    return tuned.this_store()


def test_an_empty_store_has_nothing_and_complains_of_nothing(store: Store) -> None:
    assert store.book() == (Winners(store.facts), "")
    assert store.journal() == ([], "")
    assert store.tables() == {}
    store.clear()


def test_what_is_written_is_read_again(store: Store) -> None:
    book = Winners(store.facts)
    book.add(HPL)
    store.write_book(book)
    assert store.book() == (book, "")
    assert [path.name for path in store.folder.iterdir()] == [f"{store.name}.json"], "no part of a file is left"


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b'{"schema": "mxpeak.tuned/1"}', b"[]"])
def test_a_corrupted_book_is_ignored_and_named(store: Store, content: bytes) -> None:
    store.folder.mkdir(parents=True)
    store.book_file.write_bytes(content)
    book, trouble = store.book()
    assert book.winners == {}
    assert str(store.book_file) in trouble
    assert "--fresh" in trouble


def test_a_book_of_another_machine_under_this_name_is_ignored(store: Store) -> None:
    other = Winners({"cpu_model": "another"})
    other.add(HPL)
    store.write(store.book_file, other.text())
    book, trouble = store.book()
    assert book.winners == {}
    assert "another machine" in trouble


def test_another_machine_in_the_same_folder_has_files_of_its_own(store: Store) -> None:
    other = Store(store.folder, {"cpu_model": "another"})
    book = Winners(other.facts)
    book.add(HPL)
    other.write_book(book)
    assert store.book()[0].winners == {}
    other.clear()
    assert list(store.folder.iterdir()) == []


def test_measurements_are_appended_and_a_half_written_line_costs_only_itself(store: Store) -> None:
    store.note([{"kind": "kernel", "k": 1}])
    with store.journal_file.open("a") as file:
        file.write('{"kind": "kernel", "k"')  # an interrupted write
    store.note([{"kind": "kernel", "k": 2}, {"kind": "kernel", "k": 3}])
    found, problem = store.journal()
    assert [one["k"] for one in found] == [1, 2, 3]
    assert problem.startswith("1 line")


def test_a_folder_that_cannot_be_written_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    blocked = Store(tmp_path / "file" / "folder", {})
    with pytest.raises(UsageError, match="MXPEAK_CACHE_DIR"):
        blocked.write_book(Winners({}))
    with pytest.raises(UsageError, match="MXPEAK_CACHE_DIR"):
        append(blocked.journal_file, [{"kind": "kernel"}])


def test_tables_are_found_by_their_layout(store: Store) -> None:
    for ranks, threads in ((2, 1), (1, 2)):
        store.write(store.table_file(ranks, threads), "")
    store.write(store.folder / f"{store.name}-odd.toml", "")
    assert store.tables() == {(1, 2): store.table_file(1, 2), (2, 1): store.table_file(2, 1)}


# --- settings of runs -------------------------------------------------------------------------------------------


def run_with(name: str, **flags: str) -> Run[RunConfig]:
    config = BENCHMARKS[name].config
    return run_of(config, config.settle(resolve(config, flags, {}, {})))


def taken(store: Store, *winners: Winner, benchmark: str = "hpl", **flags: str) -> tuple[dict[str, Any], list[str]]:
    """Return the tuned settings of a run, and the notes."""
    book = Winners(store.facts)
    for winner in winners:
        book.add(winner)
    store.write_book(book)
    run, notes = with_tuned(benchmark, run_with(benchmark, **{"device": "cpu", **flags}))
    return {name: one["value"] for name, one in run.section().items() if one["origin"] == "tuned"}, notes


def test_a_run_takes_what_it_does_not_say_itself(here: Store) -> None:
    assert taken(here, HPL, n="2000") == ({"nb": (64,), "bcast": ("long",)}, [])
    assert taken(here, HPL, n="2000", nb="32") == ({"bcast": ("long",)}, [])


@pytest.mark.parametrize(("runs", "text"), [(1, "1 run was missing"), (9, "9 runs were missing")])
def test_a_note_states_that_a_search_was_cut_short(here: Store, runs: int, text: str) -> None:
    values, notes = taken(here, replace(HPL, runs_left=runs), n="2000")
    assert values == {"nb": (64,), "bcast": ("long",)}
    assert text in notes[0]
    assert "repeat its mxpeak tune command to continue it" in notes[0]
    assert taken(here, replace(HPL, runs_left=runs), n="2000", nb="32", bcast="1ring") == ({}, [])


def test_a_run_of_another_size_or_layout_takes_nothing(here: Store) -> None:
    nothing, notes = taken(here, HPL, n="100000")
    assert nothing == {}
    assert "N = 1024" in notes[0]
    assert taken(here, HPL, n="2000", ranks="7") == ({}, [])
    assert taken(here, HPL, n="2000", benchmark="hpl-mxp") == ({}, [])


def test_ranks_and_threads_are_taken_where_both_are_open(here: Store) -> None:
    several = replace(HPL, ranks=2, threads=1, any_layout=True)
    assert taken(here, several, n="2000")[0] == {"nb": (64,), "bcast": ("long",), "ranks": 2, "threads": 1}
    assert taken(here, several, n="2000", comm="solo")[0] == {}
    assert taken(here, several, n="2000", ranks="2", threads="1")[0] == {"nb": (64,), "bcast": ("long",)}
    run, _ = with_tuned("hpl", run_with("hpl", n="2000", device="cpu"), alone=False)
    assert "tuned" not in run.origins.values()


def test_a_grid_and_a_box_are_taken_whole_or_not_at_all(here: Store) -> None:
    one = replace(HPL, settings={"grid": "1x1", "nb": "64"})
    assert taken(here, one, n="2000")[0] == {"grid": ((1, 1),), "nb": (64,)}
    assert taken(here, one, n="2000", P="1")[0] == {"nb": (64,)}
    box = replace(
        HPL,
        benchmark="hpcg",
        size={"nx": 104, "ny": 104, "nz": 104},
        settings={"nx": "208", "ny": "104", "nz": "56", "storage": "sell"},
    )
    assert taken(here, box, benchmark="hpcg")[0] == {"nx": 208, "ny": 104, "nz": 56, "storage": "sell"}
    assert taken(here, box, benchmark="hpcg", nx="96")[0] == {"storage": "sell"}
    assert taken(here, box, benchmark="hpcg", quick="yes")[0] == {"storage": "sell"}


def test_a_searched_order_is_taken_if_nothing_determines_the_order(here: Store) -> None:
    winner = replace(HPL, settings={"n": "1024", "nb": "64"})
    assert taken(here, winner) == ({"n": (1024,), "nb": (64,)}, [])  # although the memory of this machine holds more
    for flags in ({"n": "2000"}, {"n": "2000", "mem": "1GiB"}):
        assert taken(here, winner, **flags) == ({"nb": (64,)}, []), flags
    assert "n" not in taken(here, winner, mem="1GiB")[0]
    assert "n" not in taken(here, winner, quick="yes")[0]
    assert "n" not in taken(here, winner, study="weak")[0]
    run, _ = with_tuned("hpl", run_with("hpl", device="cpu", ranks="1", threads=str(CORES)), alone=False)
    assert run.origins.get("n", "default") == "default"


@pytest.mark.parametrize("settings", [{"nb": "0"}, {"nb": "wide"}, {"nonsense": "1"}, {"bcast": "telegram"}])
def test_an_invalid_stored_value_is_ignored_with_a_note(here: Store, settings: dict[str, str]) -> None:
    nothing, notes = taken(here, replace(HPL, settings=settings), n="2000")
    assert nothing == {}
    assert "--fresh" in notes[0]


@pytest.fixture
def with_library(tmp_path: Path) -> Winner:
    """Return a winner with a BLAS library whose file exists."""
    file = tmp_path / "libblis.so"
    file.write_bytes(b"code")
    return replace(HPL, settings={"blas": "blis"}, library=tuned._properties(str(file)))


def test_a_run_uses_the_file_that_was_measured(here: Store, with_library: Winner) -> None:
    file = with_library.library["file"]
    assert taken(here, with_library, n="2000") == ({"blas": file}, [])
    assert taken(here, with_library, n="2000", blas="blis") == ({}, [])  # the flag sets the only setting
    both = replace(with_library, settings={"blas": "blis", "nb": "64"})
    link = Path(file).with_name("link.so")
    link.symlink_to(file)
    for name in (file, str(link), os.path.relpath(file)):
        assert taken(here, both, n="2000", blas=name) == ({"nb": (64,)}, [])
    no_file = replace(with_library, library={})  # like macOS's Accelerate, which is no file on disk
    assert taken(here, no_file, n="2000") == ({"blas": "blis"}, [])


@pytest.mark.parametrize(
    ("flags", "other"),
    [({"blas": "scipy"}, "SciPy's BLAS"), ({"blas": "mkl"}, "mkl"), ({"kernels": "reference"}, "SciPy's BLAS")],
)
def test_another_library_than_the_measured_one_is_a_note(
    here: Store, with_library: Winner, flags: dict[str, str], other: str
) -> None:
    nothing, notes = taken(here, with_library, n="2000", **flags)
    assert nothing == {}
    assert f"they were measured with blis, not with {other}" in notes[0]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "is no longer installed"),
        (b"newer code", "has changed since the measurement"),
        (b"Code", "has changed since the measurement"),
    ],
)
def test_a_library_that_is_missing_or_changed_is_a_note(
    here: Store, with_library: Winner, content: bytes | None, why: str
) -> None:
    file = Path(with_library.library["file"])
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
        later = with_library.library["modified_ns"] + 1_000_000_000  # the clock of the file system may be coarse
        os.utime(file, ns=(later, later))
    nothing, notes = taken(here, with_library, n="2000")
    assert nothing == {}
    assert f"they were measured with {file}, which {why}; measure again with mxpeak tune hpl --blas blis" in notes[0]


@pytest.mark.parametrize("fp64", ["emulated", "auto"])
def test_values_of_native_products_are_not_used_for_emulated_ones(here: Store, fp64: str) -> None:
    nothing, notes = taken(here, HPL, n="2000", fp64=fp64)
    assert nothing == {}
    assert f"native fp64 products, not with --fp64 {fp64}" in notes[0]


def test_a_bad_store_never_stops_a_run(here: Store) -> None:
    here.folder.mkdir(parents=True)
    here.book_file.write_text("{ this is no JSON")
    run, notes = with_tuned("hpl", run_with("hpl", n="2000"))
    assert "tuned" not in run.origins.values()
    assert "not JSON" in notes[0]


def test_without_any_store_the_machine_is_not_even_looked_at(
    nothing_tuned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked() -> Any:
        raise AssertionError("the machine was looked at")

    monkeypatch.setattr(tuned, "machine_facts", looked)
    assert with_tuned("hpl", run_with("hpl"))[1] == []


def test_winners_without_settings_change_nothing(here: Store) -> None:
    assert taken(here, replace(HPL, settings={}), n="2000") == ({}, [])


def test_the_folder_is_next_to_that_of_compiled_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()  # the real folder
    assert tuned.store_folder() == tuned.cache_directory().parent / "tuned"
    assert json.dumps(dict(tuned.machine_facts())), "a fingerprint is JSON"
    assert os.sep not in tuned.this_store().name

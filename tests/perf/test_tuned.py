"""Test which tuned settings fit a request, and which files are no store of settings."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from mxpeak.perf.tuned import InvalidWinnersError, RunNeeds, Winner, Winners, read_journal, read_winners, winner_for

FACTS = {"cpu_model": "Xeon", "mxpeak": "0.1.0"}
HPL = Winner(
    benchmark="hpl",
    mode="official",
    device="cpu",
    ranks=1,
    threads=2,
    any_layout=False,
    size={"n": 4096},
    settings={"nb": "256"},
    rate_flops=1e11,
    gain=0.1,
    verdict="faster",
    when="2026-11-23T00:00:00Z",
)
ANY = replace(HPL, ranks=2, threads=1, any_layout=True, settings={"nb": "128"})
BOX = replace(HPL, benchmark="hpcg", size={"nx": 48, "ny": 48, "nz": 48}, settings={"storage": "sell"})
MXP = replace(HPL, benchmark="hpl-mxp", precision="bf16")
LIBRARY = {"file": "/lib/libblis.so", "bytes": 1, "modified_ns": 1}
RUN = RunNeeds(benchmark="hpl", mode="official", device="cpu", ranks=1, threads=2)


def test_a_winner_serves_its_own_layout_and_no_other() -> None:
    assert winner_for([HPL], RUN) == (HPL, "")
    for other in ({"ranks": 2, "threads": 1}, {"threads": 1}, {"device": "cuda"}, {"mode": "explore"}, {"ranks": 4}):
        assert winner_for([HPL], replace(RUN, **other)) == (None, ""), other  # type: ignore[arg-type]
    assert winner_for([HPL], replace(RUN, benchmark="hpcg")) == (None, "")


def test_an_open_layout_takes_the_search_of_layouts_before_that_of_the_default_one() -> None:
    assert winner_for([HPL, ANY], replace(RUN, open_layout=True))[0] == ANY
    assert winner_for([HPL], replace(RUN, open_layout=True))[0] == HPL
    assert winner_for([ANY, HPL], RUN)[0] == HPL
    assert winner_for([ANY], RUN)[0] is None


def test_a_search_of_layouts_also_serves_the_layout_that_it_found() -> None:
    assert winner_for([ANY], replace(RUN, ranks=2, threads=1))[0] == ANY


def test_under_a_launcher_ranks_decide_alone() -> None:
    assert winner_for([HPL], replace(RUN, threads=None))[0] == HPL
    assert winner_for([HPL], replace(RUN, ranks=2, threads=None))[0] is None


@pytest.mark.parametrize(("n", "fits"), [(1024, True), (1023, False), (4096, True), (16384, True), (16385, False)])
def test_an_order_fits_within_four_times_either_way(n: int, fits: bool) -> None:
    winner, reason = winner_for([HPL], replace(RUN, n=(n,)))
    assert (winner is not None, bool(reason)) == (fits, not fits)
    assert fits or str(n) in reason


def test_every_order_of_a_list_has_to_fit() -> None:
    assert winner_for([HPL], replace(RUN, n=(4096, 100_000)))[0] is None
    assert winner_for([HPL], replace(RUN, n=None))[0] == HPL


def test_a_box_fits_within_eight_times_the_points() -> None:
    run = replace(RUN, benchmark="hpcg")
    assert winner_for([BOX], replace(run, shape=(96, 96, 96)))[0] == BOX
    assert winner_for([BOX], replace(run, shape=(104, 104, 104)))[0] is None
    assert winner_for([BOX], replace(run, shape=(16, 16, 16)))[0] is None


def test_products_in_another_precision_are_another_search() -> None:
    run = replace(RUN, benchmark="hpl-mxp")
    assert winner_for([MXP], replace(run, precision=("fp32",)))[0] is None
    assert winner_for([MXP], replace(run, precision=("bf16",)))[0] == MXP
    assert winner_for([MXP], run)[0] == MXP


def test_a_library_of_the_winner_fits_runs_that_name_it_or_no_library() -> None:
    blis = replace(HPL, settings={"blas": "blis"}, library={"file": "/lib/libblis.so.4", "bytes": 9, "modified_ns": 1})
    for name in (None, "blis", "/lib/libblis.so.4", "/lib/../lib/libblis.so.4"):
        assert winner_for([blis], replace(RUN, blas=name)) == (blis, "")
    for name, shown in (("scipy", "SciPy's BLAS"), ("mkl", "mkl"), ("/no/lib.so", "/no/lib.so")):
        reason = f"they were measured with blis, not with {shown}"
        assert winner_for([blis], replace(RUN, blas=name)) == (None, reason)
    assert winner_for([HPL], replace(RUN, blas="mkl"))[1] == "they were measured with SciPy's BLAS, not with mkl"
    assert winner_for([HPL], replace(RUN, blas=None))[0] == HPL


# --- stores of settings -----------------------------------------------------------------------------------------


def test_a_book_comes_back_as_it_was_written() -> None:
    book = Winners(FACTS)
    for winner in (HPL, ANY, BOX, MXP):
        book.add(winner)
    assert read_winners(book.text(), FACTS).winners == book.winners
    assert len(book.winners) == 4


def test_a_later_winner_takes_the_place_of_an_earlier_one() -> None:
    book = Winners(FACTS)
    book.add(HPL)
    book.add(replace(HPL, settings={}))
    assert [one.settings for one in book.winners.values()] == [{}]


def body(**changed: Any) -> str:
    whole = {"schema": "mxpeak.tuned/1", "fingerprint": FACTS, "winners": [asdict(HPL)], **changed}
    return json.dumps(whole)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "list"),
        ('{"schema": "other/1"}', "other/1"),
        (body(fingerprint={"cpu_model": "EPYC"}), "another machine"),
        (body(winners=[{"benchmark": "hpl"}]), "not valid"),
        (body(winners=[{**asdict(HPL), "surprise": 1}]), "not valid"),
        (body(winners=[{**asdict(HPL), "ranks": "two"}]), "ranks"),
        (body(winners=[{**asdict(HPL), "settings": {"nb": 256}}]), "settings"),
        (body(winners=[{**asdict(HPL), "size": {"n": -1}}]), "size"),
        (body(winners=[{**asdict(HPL), "library": {"file": "/lib/libblis.so"}}]), "library"),
        (body(winners=[{**asdict(HPL), "library": {"file": "/lib/libblis.so", "bytes": 1}}]), "library"),
        (body(winners=[{**asdict(HPL), "library": LIBRARY}]), "library"),  # without `blas` in the settings
        (body(winners=[7]), "not valid"),
        (body(winners=None), "not valid"),
    ],
)
def test_what_is_no_book_of_this_machine_says_why(text: str, why: str) -> None:
    with pytest.raises(InvalidWinnersError, match=why):
        read_winners(text, FACTS)


def test_a_journal_leaves_out_lines_that_are_no_measurements() -> None:
    lines = ['{"kind": "trial", "rate_flops": 1.0}', "", "[1]", '{"no": "kind"}', '{"kind": 3}', '{"kind": "tri']
    found, bad = read_journal("\n".join(lines))
    assert found == [{"kind": "trial", "rate_flops": 1.0}]
    assert bad == 4

"""Test the options of `mxpeak run norms`, the cases that they select, and the memory of these cases."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from itertools import pairwise
from typing import Any

import pytest

from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl_mxp.config import HplMxpConfig
from mxpeak.bench.norms.config import NormsCase, NormsConfig
from mxpeak.bench.norms.matrix import footprint
from mxpeak.configs.norms import DTYPES, KINDS, STRUCTURES
from mxpeak.errors import UsageError
from mxpeak.layout.structure import structure
from mxpeak.options import options, resolve
from mxpeak.solvers.norms import PARTIAL
from tests.support.notes import note_case

OPTIONS = {"uplo": "upper", "diag": "unit", "kl": 3, "ku": 3}


def parsed(name: str, text: str) -> Any:
    return resolve(NormsConfig, {name: text}, {}, {})[name].value


def config(**values: Any) -> NormsConfig:
    return NormsConfig(**{"n": (8,), **values})


# --- parsing ----------------------------------------------------------------------------------------------------


PARSED: list[tuple[str, str, Any]] = [
    ("n", "1000,2000", (1000, 2000)),
    ("m", "300", (300,)),
    ("seed", "1,2", (1, 2)),
    ("kind", "max,one,inf,fro,all", ("max", "one", "inf", "fro", "all")),
    ("kind", "1,infinity,frobenius", ("one", "inf", "fro")),
    ("dtype", "fp64,fp32,fp16,bf16,c128,c64", ("float64", "float32", "float16", "bfloat16", "complex128", "complex64")),
    ("dtype", "d,s,z,c", ("float64", "float32", "complex128", "complex64")),
    ("dtype", ",".join(DTYPES), tuple(DTYPES)),
    ("structure", "hermitian-band,general", ("hermitian-band", "general")),
    ("layout", "tiles,F,C", ("tiles", "F", "C")),
    ("uplo", "upper,lower", ("upper", "lower")),
    ("diag", "unit", ("unit",)),
    ("kl", "0,7", (0, 7)),
    ("deterministic", "yes", True),
]


def test_lists_are_parsed_and_aliases_become_the_names_that_are_reported():
    for name, text, value in PARSED:
        assert parsed(name, text) == value, (name, text)


IMPOSSIBLE = [
    ("kind", "two", "--kind: 'two' is unknown; use one of max, one, inf, fro, all"),
    ("dtype", "int8", "--dtype: 'int8' is unknown; use one of float64"),
    ("structure", "sparse", "--structure: 'sparse' is unknown; use one of general"),
    ("layout", "R", "--layout: 'R' is unknown; use one of C, F, tiles"),
    ("uplo", "left", "--uplo: 'left' is unknown; use one of lower, upper"),
    ("kl", "-1", "--kl: -1 is out of range"),
    ("n", "0", "-N/--n: 0 is out of range"),
]


def test_an_impossible_value_is_named_with_its_flag_and_the_choices():
    for name, text, says in IMPOSSIBLE:
        with note_case(name=name, text=text), pytest.raises(UsageError) as caught:
            parsed(name, text)
        assert says in str(caught.value)


def test_norms_have_the_options_of_a_grid_and_none_of_panels():
    names = {o.name for o in options(NormsConfig)}
    assert {"grid", "P", "Q", "order", "node_grid", "mem", "threads", "repeat"} <= names
    assert names.isdisjoint({"bcast", "depth", "pfact", "split"})
    for panels in (HplConfig, HplMxpConfig):
        assert {"bcast", "depth"} <= {o.name for o in options(panels)}


# --- cases ------------------------------------------------------------------------------------------------------


def test_the_solver_computes_every_kind():
    assert set(PARTIAL) == set(KINDS)


def test_every_structure_takes_the_options_of_its_cases_and_no_others():
    for name in STRUCTURES:
        (case,) = config(structure=(name,), kind=("one",)).cases(1)
        given = {option: getattr(case, option) for option in OPTIONS}
        structure(name, 8, 8, **given)
        needless = [
            option for option, value in given.items() if value is None and (name, option) != ("hermitian-band", "ku")
        ]
        for option in needless:
            with pytest.raises(UsageError):
                structure(name, 8, 8, **{**given, option: OPTIONS[option]})


def test_an_option_multiplies_the_cases_of_those_structures_that_have_it():
    wide = config(
        structure=tuple(STRUCTURES),
        kind=("one",),
        uplo=("lower", "upper"),
        diag=("nonunit", "unit"),
        kl=(1, 2, 3),
        ku=(4, 5, 6, 7),
    )
    assert Counter(case.structure for case in wide.cases(1)) == {
        "general": 1,
        "hessenberg": 1,
        "trapezoid": 4,
        "triangular": 4,
        "symmetric": 2,
        "hermitian": 2,
        "band": 12,
        "hermitian-band": 6,
    }
    assert {case.ku for case in wide.cases(1) if case.structure == "hermitian-band"} == {None}


def test_no_two_cases_are_the_same():
    wide = config(structure=tuple(STRUCTURES), dtype=tuple(DTYPES), layout=("C", "F", "tiles"), uplo=("lower", "upper"))
    cases = list(wide.cases(1))
    assert len(set(cases)) == len(cases)


def test_a_matrix_is_square_unless_its_rows_are_given():
    assert [(c.m, c.n) for c in config(n=(4, 5), kind=("one",)).cases(1)] == [(4, 4), (5, 5)]
    assert [(c.m, c.n) for c in config(n=(4, 5), m=(2, 3), kind=("one",)).cases(1)] == [(2, 4), (2, 5), (3, 4), (3, 5)]


def test_cases_of_one_matrix_follow_each_other():
    many = config(
        n=(4, 5),
        nb=(2, 3),
        seed=(1, 2),
        dtype=("float64", "float32"),
        layout=("C", "F"),
        structure=("general", "symmetric"),
        kind=("one", "all"),
    )
    matrices = [(c.n, c.nb, c.seed, c.dtype, c.layout) for c in many.cases(1)]
    changes = sum(a != b for a, b in pairwise(matrices))
    assert changes == len(set(matrices)) - 1
    assert [c.kind for c in many.cases(1)][:4] == ["one", "all", "one", "all"], "the kinds are the innermost"


def test_all_is_the_four_norms_in_one_pass():
    assert NormsCase(m=1, n=1, nb=1, P=1, Q=1, kind="all").kinds == ("max", "one", "inf", "fro")
    assert NormsCase(m=1, n=1, nb=1, P=1, Q=1, kind="fro").kinds == ("fro",)


def test_a_type_knows_its_size():
    for dtype, size, is_complex in (
        ("float64", 8, False),
        ("float32", 4, False),
        ("complex128", 16, True),
        ("complex64", 8, True),
        ("float16", 2, False),
        ("bfloat16", 2, False),
    ):
        case = NormsCase(m=1, n=1, nb=1, P=1, Q=1, dtype=dtype)
        assert (case.itemsize, case.complex) == (size, is_complex), dtype


def test_the_default_is_every_kind_of_a_general_matrix_of_doubles():
    cases = list(NormsConfig().cases(1, [10240]))
    assert [(c.kind, c.structure, c.dtype, c.layout, c.m, c.n, c.nb) for c in cases] == [
        (kind, "general", "float64", "C", 10240, 10240, 512) for kind in ("max", "one", "inf", "fro", "all")
    ]


def test_a_size_is_needed():
    with pytest.raises(UsageError, match="add -N"):
        next(NormsConfig().cases(1))


def test_a_case_names_itself_with_what_its_structure_takes():
    (case,) = config(structure=("band",), kind=("fro",), dtype=("bfloat16",), layout=("tiles",)).cases(1)
    assert case.tag == "fro band kl=20 ku=100 bfloat16 tiles"
    (case,) = config(structure=("triangular",), kind=("one",), diag=("unit",), deterministic=True).cases(1)
    assert case.tag == "one triangular lower unit float64 C deterministic"


# --- memory -----------------------------------------------------------------------------------------------------


def test_memory_is_that_of_the_matrix_and_little_more():
    case = NormsCase(m=10240, n=10240, nb=512, P=2, Q=2, dtype="complex64")
    parts = footprint(case, square=True, threads=4)(10240, 512, 2, 2)
    assert parts["total"] == parts["matrix"] + parts["buffers"]
    assert 8 * 10240**2 <= parts["matrix"] < 8 * 10240**2 + 10_000
    assert parts["buffers"] < 0.5 * parts["matrix"]


def test_memory_of_a_matrix_whose_rows_are_given_grows_with_its_columns_alone():
    case = NormsCase(m=100, n=1000, nb=10, P=1, Q=1)
    one, two = (footprint(case, square=False, threads=1)(n, 10, 1, 1)["matrix"] for n in (1000, 2000))
    assert two - one == 8 * 100 * 1000


def test_many_tiles_take_memory_of_their_own():
    whole, tiled = (
        footprint(NormsCase(m=9, n=9, nb=1, P=1, Q=1, layout=name), square=True, threads=1)(1000, 1, 1, 1)["matrix"]
        for name in ("C", "tiles")
    )
    assert tiled > 10 * whole


def test_every_field_of_a_case_is_an_option_or_follows_from_one():
    known = {o.name for o in options(NormsConfig)}
    assert {f.name for f in fields(NormsCase)} <= known


def test_a_kind_named_twice_is_measured_once() -> None:
    cases = NormsConfig(n=(4,), kind=("one", "one", "fro")).cases(1)
    assert [case.kind for case in cases] == ["one", "fro"]

"""Test configurations and results: values by precedence with their origin, grids by arithmetic, JSON without NaN."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from mxpeak.bench.hpl.config import HplConfig
from mxpeak.configs.grid import squarest
from mxpeak.configs.lu import BCASTS
from mxpeak.configs.run import OutputConfig
from mxpeak.errors import UsageError
from mxpeak.options import Setting, memory_bytes, options, resolve
from mxpeak.records import Caution, Result, document, rate_text, size_text, three_digits, to_json


def settled(flags: dict[str, str] | None = None, **sources: Any) -> dict[str, Setting]:
    return HplConfig.settle(
        resolve(HplConfig, flags or {}, sources.get("environ", {}), sources.get("file", {}), sources.get("dat"))
    )


def config_of(settings: dict[str, Setting]) -> HplConfig:
    return HplConfig(**{name: s.value for name, s in settings.items()})


def test_flag_beats_variable_beats_file_beats_dat_beats_default():
    sources = [("flag", {"nb": "1"}), ("variable", {"MXPEAK_NB": "2"}), ("file", {"nb": 3}), ("HPL.dat", {"nb": (4,)})]
    for k, (origin, _) in enumerate(sources):
        present = dict(sources[k:])
        settings = resolve(
            HplConfig,
            present.get("flag", {}),
            present.get("variable", {}),
            present.get("file", {}),
            present.get("HPL.dat"),
        )
        assert settings["nb"] == Setting((k + 1,), origin)
    assert resolve(HplConfig, {}, {}, {})["nb"] == Setting((192,), "default")


def test_an_empty_variable_counts_as_not_set():
    assert resolve(HplConfig, {}, {"MXPEAK_NB": ""}, {})["nb"].origin == "default"


def test_every_field_has_a_setting_so_the_config_can_be_built_from_them():
    assert config_of(resolve(HplConfig, {}, {}, {})) == HplConfig()


def test_toml_lists_numbers_and_booleans_are_taken():
    settings = resolve(HplConfig, {}, {}, {"n": [1000, 2000], "quick": True, "split": 0.5, "grid": ["2x3"]})
    config = config_of(settings)
    assert (config.n, config.quick, config.split, config.grid) == ((1000, 2000), True, 0.5, ((2, 3),))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"nb": "0"}, "--nb: 0 is out of range; use an integer from 1 to 100000000"),
        ({"nb": "12.5"}, "--nb: '12.5' is not an integer; use an integer from 1 to 100000000"),
        ({"nb": ""}, "--nb: the list is empty; use at least one value"),
        ({"n": "-1"}, "-N/--n: -1 is out of range; use an integer from 1 to 100000000"),
        ({"bcast": "3ring"}, "--bcast: '3ring' is unknown; use one of " + ", ".join(BCASTS)),
        ({"bcast": "8"}, "--bcast: '8' is unknown; use one of " + ", ".join(BCASTS)),
        ({"threshold": "nan"}, "--threshold: 'nan' is not a finite number; use a finite number"),
        ({"ndiv": "1"}, "--ndiv: 1 is out of range; use an integer from 2 to 100000000"),
        ({"split": "1.5"}, "--split: 1.5 is out of range; use a number from 0 to 1"),
        ({"grid": "2by2"}, "--grid: '2by2' is not a grid; use PxQ with P, Q >= 1, for example 2x4"),
        ({"mem": "64"}, "--mem: '64' is not a memory budget; use a share such as 80% or a size such as 64GiB"),
    ],
)
def test_a_bad_value_names_its_flag_what_was_found_and_what_is_right(flags: dict[str, str], message: str):
    with pytest.raises(UsageError) as caught:
        resolve(HplConfig, flags, {}, {})
    assert str(caught.value) == message


def test_a_bad_value_names_its_variable_or_key():
    with pytest.raises(UsageError, match="MXPEAK_NB: 'x'"):
        resolve(HplConfig, {}, {"MXPEAK_NB": "x"}, {})
    with pytest.raises(UsageError, match="--config key nb: 'x'"):
        resolve(HplConfig, {}, {}, {"nb": "x"})


def test_an_unknown_key_of_a_file_is_an_error_that_suggests_the_nearest_key():
    with pytest.raises(UsageError, match="unknown key 'block'; see mxpeak help settings"):
        resolve(HplConfig, {}, {}, {"block": 1})
    with pytest.raises(UsageError, match=r"unknown key 'nbb'; did you mean nb\?"):
        resolve(HplConfig, {}, {}, {"nbb": 1})


def test_broadcasts_can_be_given_by_hpls_digit():
    assert resolve(HplConfig, {"bcast": "0,5"}, {}, {})["bcast"].value == ("1ring", "longM")


@pytest.mark.parametrize(
    ("text", "expected"), [("80%", 80), ("1kB", 1000), ("1KiB", 1024), ("0.5GiB", 2**29), ("2 TB", 2 * 10**12)]
)
def test_memory_is_a_share_or_a_size_with_its_unit(text: str, expected: int):
    assert memory_bytes(text, total=100) == expected


def test_option_names_and_flags_are_unique_within_a_command_line():
    both = options(HplConfig) + options(OutputConfig)
    names = [o.name for o in both]
    flags = [flag for o in both for flag in o.flags]
    assert len(set(names)) == len(names)
    assert len(set(flags)) == len(flags)


# --- grids ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "grid"), [(1, (1, 1)), (4, (2, 2)), (6, (2, 3)), (7, (1, 7)), (12, (3, 4))])
def test_without_a_wish_the_grid_is_the_squarest_of_all_ranks(ranks: int, grid: tuple[int, int]):
    assert HplConfig().grids(ranks) == (grid,)
    assert squarest(ranks) == grid


def test_one_side_of_the_grid_completes_the_other():
    assert HplConfig(P=(2,)).grids(6) == ((2, 3),)
    assert HplConfig(Q=(2, 1)).grids(6) == ((3, 2), (6, 1))


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (
            HplConfig(grid=((2, 3),)),
            "grid 2x3 needs 2*3 = 6 ranks, but there are 4; "
            "start 6 ranks (--ranks 6, or mpiexec -n 6), or use --grid 2x2",
        ),
        (
            HplConfig(P=(1,), Q=(2,)),
            "grid 1x2 needs 1*2 = 2 ranks, but there are 4; "
            "start 2 ranks (--ranks 2, or mpiexec -n 2), or use --grid 2x2",
        ),
        (
            HplConfig(P=(3,)),
            "-P 3 does not divide the number of ranks: 4 / 3 leaves a remainder of 1; remove -P for the grid 2x2, "
            "or start 6 ranks",
        ),
        (HplConfig(P=(2, 1), Q=(2,)), "-P has 2 values, but -Q has 1; use the same number of values for both"),
        (
            HplConfig(grid=((2, 2),), P=(2,)),
            "--grid conflicts with -P and -Q, which also set the process grid; use either --grid or -P and -Q",
        ),
    ],
)
def test_a_grid_that_does_not_fit_the_ranks_shows_the_arithmetic(wish: HplConfig, message: str):
    with pytest.raises(UsageError) as caught:
        wish.grids(4)
    assert str(caught.value) == message


DAT = {"P": (2, 1), "Q": (2, 3), "idle_ranks": True}


def test_grids_of_a_file_may_leave_ranks_idle_but_not_want_more():
    config = config_of(settled(dat=DAT))
    assert config.grids(5) == ((2, 2), (1, 3))
    with pytest.raises(UsageError, match=r"2\*2 = 4 ranks, but there are 3"):
        config.grids(3)


@pytest.mark.parametrize("flags", [{"grid": "2x2"}, {"P": "2", "Q": "2"}])
def test_a_grid_that_was_typed_displaces_the_files_and_must_use_all_ranks(flags: dict[str, str]):
    config = config_of(settled(flags, dat=DAT))
    assert config.grids(4) == ((2, 2),)
    with pytest.raises(UsageError, match="there are 5"):
        config.grids(5)


def test_sides_that_were_typed_displace_a_grid_in_the_config_file():
    settings = settled({"P": "1"}, file={"grid": "2x2"})
    assert config_of(settings).grids(4) == ((1, 4),)
    assert settings["grid"] == Setting(None, "default")


def test_cases_come_in_hpls_order_grid_outermost_ndiv_innermost():
    config = HplConfig(n=(10, 20), nb=(2,), grid=((1, 2), (2, 1)), ndiv=(2, 3))
    seen = [(c.P, c.Q, c.n, c.ndiv) for c in config.cases(2)]
    assert seen[:4] == [(1, 2, 10, 2), (1, 2, 10, 3), (1, 2, 20, 2), (1, 2, 20, 3)]
    assert len(seen) == 8


def test_the_tag_is_hpls_encoded_variant():
    config = HplConfig(n=(1,), order="column", depth=(0,), bcast=("ilib",), rfact=("crout",), pfact=("left",))
    assert next(config.cases(1)).tag == "WC07C2L16"


# --- results ----------------------------------------------------------------------------------------------------


def test_what_is_not_finite_becomes_null_and_a_warning():
    result = Result(benchmark="hpl", status="invalid", validation={"residual": math.nan, "norms": [1.0, math.inf]})
    body = result.as_dict()
    assert body["validation"] == {"residual": None, "norms": [1.0, None]}
    assert [w["text"].split()[0] for w in body["warnings"]] == ["validation.residual", "validation.norms[1]"]
    assert json.loads(to_json(body)) == body


def test_a_notebook_shows_a_result_as_a_table():
    result = Result(benchmark="<hpl>", status="slow", result={"rate_flops": 2e9, "fraction_of_limit": 0.5})
    page = result._repr_html_()
    assert "<td>&lt;hpl&gt;</td>" in page
    assert "<td>TOO SLOW</td>" in page
    assert "<td>2.00 GFLOP/s</td>" in page
    assert "residual" not in page


def test_a_file_is_a_list_of_results_and_that_of_one_case_has_its_keys_at_the_top_too():
    record = Result(benchmark="hpl", status="valid", warnings=[Caution("a", "b")])
    for results, several in (([record], False), ([record], True), ([record, record], False), ([], False)):
        body = document(results, several=several)
        assert body["schema"] == "mxpeak.results/1"
        assert body["results"] == [r.as_dict() for r in results]
        assert ("benchmark" in body) == (len(results) == 1 and not several)
    assert document([record])["status"] == "valid"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1.00"),
        (9.999, "10.0"),
        (71.234, "71.2"),
        (1234.0, "1230"),
        (0.012345, "0.0123"),
        (3.2e-9, "3.20e-09"),
        (4.56e8, "4.56e+08"),
        (None, "none"),
        (math.nan, "none"),
    ],
)
def test_people_see_three_digits(value: float | None, text: str):
    assert three_digits(value) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (71.234e9, "71.2 GFLOP/s"),
        (2.5e6, "0.00250 GFLOP/s"),
        (999.4e9, "999 GFLOP/s"),
        (999.6e9, "1.00 TFLOP/s"),
        (1.35e18, "1.35 EFLOP/s"),
        (None, "no rate"),
    ],
)
def test_people_see_rates_in_si_units(rate: float | None, text: str):
    assert rate_text(rate) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 MiB"),
        (2**20 * 12.34, "12.3 MiB"),
        (2**20 * 999.7, "1000 MiB"),
        (2**30 - 1, "1024 MiB"),
        (2**30, "1 GiB"),
        (2**30 * 1234.56, "1235 GiB"),
        (2**30 * 12345.6, "12346 GiB"),
    ],
)
def test_sizes_have_no_exponent(size_bytes: float, text: str):
    assert size_text(size_bytes) == text

"""Test that the runs of a soak give bitwise identical results, and that a different run is named with its rank."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from mxpeak.bench.hpl import run as hpl
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl_mxp import run as hpl_mxp
from mxpeak.bench.hpl_mxp.config import HplMxpConfig
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.errors import UsageError
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.records import Result, document
from mxpeak.report.text import verdict
from tests.support.result_file import VALIDATOR


def soaked(benchmark: str, ranks: int, **settings: Any) -> Result:
    run, config = {"hpl": (hpl.run, HplConfig), "hpl-mxp": (hpl_mxp.run, HplMxpConfig)}[benchmark]
    made = config(n=(97,), nb=(16,), P=(1,), Q=(ranks,), warmup="none", **{"soak": "1s", **settings})
    (result,) = run_ranks(ranks, lambda comm: run(made, comm))[0]
    assert not list(VALIDATOR.iter_errors(document([result])))
    return result


@pytest.mark.parametrize(("benchmark", "ranks"), [("hpl", 1), ("hpl", 2), ("hpl-mxp", 2)])
def test_runs_of_a_case_give_the_same_bits(benchmark: str, ranks: int) -> None:
    result = soaked(benchmark, ranks)
    soak = result.telemetry["soak"]
    assert result.status == "valid"
    assert soak["differ"] == []
    assert soak["runs"] == len(result.samples_s) >= 2
    assert f"soak: {soak['runs']} runs in" in verdict(result)
    assert "all bitwise identical" in verdict(result)


@pytest.mark.parametrize("benchmark", ["hpl", "hpl-mxp"])
def test_a_run_with_a_flipped_bit_fails_and_is_named_with_its_rank(
    monkeypatch: pytest.MonkeyPatch, benchmark: str
) -> None:
    """The last bit of one number in the third run: the residual does not show it."""
    filled: Counter[int] = Counter()
    right = HostKernels.generate

    def generate(self: HostKernels, A: Any, rows: Any, *others: Any) -> None:
        right(self, A, rows, *others)
        column = others[0].p if others[0].n > 1 else 0
        filled[column] += 1
        if column == 1 and filled[column] == flip_at:
            A.view(f"i{A.dtype.itemsize}")[0, 0] ^= 1

    flip_at = 10**9
    monkeypatch.setattr(HostKernels, "generate", generate)
    result = soaked(benchmark, 2, soak="0.001s", repeat=6)
    assert result.status == "valid"
    assert filled[1] % 6 == 0, "each run fills the matrix as often"
    flip_at = 2 * (filled[1] // 6) + FILLED_BEFORE[benchmark]
    filled.clear()
    result = soaked(benchmark, 2, soak="0.001s", repeat=6)
    assert result.status == "invalid"
    differ = result.telemetry["soak"]["differ"]
    assert [one["runs"] for one in differ] == [[3]] * len(differ)
    assert 1 in [one["rank"] for one in differ]
    (caution,) = [one for one in result.warnings if one.code == "soak"]
    assert "of 6 runs of the same case, these are not bitwise identical to most: run 3 on rank" in caution.text
    assert result.validation["residual"] < result.validation["threshold"]
    assert not result.validation["passed"]


#: The number of times that a run fills the matrix, the last of which is for the factorization.
FILLED_BEFORE = {"hpl": 1, "hpl-mxp": 2}


def test_a_soak_keeps_no_checkpoints(tmp_path: Any) -> None:
    with pytest.raises(UsageError, match=r"not --soak 1s.*remove --repeat and --soak"):
        hpl.run(HplConfig(n=(64,), nb=(16,), soak="1s", checkpoint=str(tmp_path)), run_ranks(1, lambda comm: comm)[0])

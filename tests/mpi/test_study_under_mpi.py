"""Compare `mxpeak study` under mpiexec with one process, and test that only rank 0 writes files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import StandingRanks, commands_here, needs_mpi

pytestmark = needs_mpi

STUDIES = {
    "by generator": ["study", "generators", "pivoting", "-N", "61", "--generator", "sqrt-n,fasi-higham", "--json", "-"],
    "in fp64": ["study", "pivots", "gmres", "-N", "83", "--seeds", "1", "--diagonal-scale", "1", "--json", "-"],
}


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_find_the_cases_of_one_process(ranks: int, tmp_path: Path, standing: dict[int, StandingRanks]) -> None:
    here, there = tmp_path / "one", tmp_path / "all"
    for folder in (here, there):
        folder.mkdir()
    alone, together = commands_here(STUDIES, here), standing[ranks].run(STUDIES, there)
    for name in STUDIES:
        together[name].check(0)
        study_of_ranks: dict[str, Any] = together[name].body
        other: dict[str, Any] = alone[name].body
        assert (study_of_ranks["ranks"], other["ranks"]) == (ranks, 1)
        for study in set(STUDIES[name]) & set(study_of_ranks):
            for case, single in zip(study_of_ranks[study]["cases"], other[study]["cases"], strict=True):
                for key in ("generator", "pivoting", "steps", "iterations"):
                    assert case.get(key) == single.get(key)
                for key in {"largest", "growth"} & set(case):  # sums in another order, in fp64 or in fp32
                    unit = 2.0**-24 if key == "growth" else 2.0**-53
                    assert case[key] == pytest.approx(single[key], rel=100 * 83**2 * unit)

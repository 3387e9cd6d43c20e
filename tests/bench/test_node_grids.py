"""--node-grid against the hosts of the ranks, which are simulated here."""

from __future__ import annotations

from collections.abc import Callable
from threading import local
from typing import Any

import pytest

from mxpeak.bench import harness
from mxpeak.bench.hpl import run as hpl
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.norms import run as norms
from mxpeak.bench.norms.config import NormsConfig
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.errors import UsageError


def call_nodes(names: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Nodes by rank; each rank calls what is returned, to be on its own."""
    mine = local()
    monkeypatch.setattr(harness, "node_name", lambda: mine.name)
    return lambda comm: setattr(mine, "name", names[comm.rank])


GRID: dict[str, Any] = {"grid": ((2, 2),), "node_grid": (1, 2)}


@pytest.mark.parametrize(
    ("bench", "config"), [(hpl, HplConfig(n=(64,), **GRID)), (norms, NormsConfig(n=(64,), **GRID))]
)
def test_every_rank_stops_before_anything_runs_where_a_node_grid_lies_on_two_nodes(
    bench: Any, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_there = call_nodes("abab", monkeypatch)

    def body(comm: Any) -> list[str]:
        go_there(comm)
        said = []
        for start in (bench.run, bench.dry_run):
            with pytest.raises(UsageError) as refused:
                start(config, comm)
            said.append(str(refused.value))
        return said

    for said in run_ranks(4, body):
        assert all("ranks 0 to 1 are on 2 nodes: a has 0, b has 1; start 2 ranks per node" in text for text in said)


@pytest.mark.parametrize(
    ("names", "hints"), [("aabb", []), ("aaaa", ["start 2 ranks per node, or use --node-grid 2x2"])], ids=str
)
def test_a_node_with_several_node_grids_is_a_warning(
    names: str, hints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_there = call_nodes(names, monkeypatch)

    def body(comm: Any) -> list[str]:
        go_there(comm)
        config = HplConfig(n=(64,), nb=(16,), warmup="none", **GRID)
        results = hpl.run(config, comm)
        return [warning.hint for warning in results[0].warnings if warning.code == "node-grid"]

    assert run_ranks(4, body) == [hints] * 4

"""Compare --node-grid with the hosts of the ranks, which are simulated."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import local
from typing import Any

import pytest

from mxpeak.bench import harness
from mxpeak.bench.hpl import run as hpl
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl_mxp.config import HplMxpConfig
from mxpeak.bench.norms import run as norms
from mxpeak.bench.norms.config import NormsConfig
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.errors import UsageError
from mxpeak.options import Run
from mxpeak.runtime import nodes


def call_nodes(names: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Set the nodes by rank: each rank calls the returned function to be on its own node."""
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
        errors = []
        for start in (bench.run, bench.dry_run):
            with pytest.raises(UsageError) as refused:
                start(config, comm)
            errors.append(str(refused.value))
        return errors

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


def on_nodes(names: str, monkeypatch: pytest.MonkeyPatch, body: Callable[[Any], Any]) -> list[Any]:
    """Return the results of thread ranks on nodes with these letters as names."""
    own = local()
    for module in (harness, nodes):
        monkeypatch.setattr(module, "node_name", lambda: own.name)

    def there(comm: Any) -> Any:
        own.name = names[comm.rank]
        return body(comm)

    return run_ranks(len(names), there)


@pytest.mark.parametrize(
    ("names", "hpl_part", "mxp_part", "gpu_part"),
    [
        ("aaaabbbb", (2, 2), (1, 4), (1, 4)),  # a 2x4 grid, in which 2x2 and 1x4 send equally many bytes
        ("aabbccdd", (1, 2), (1, 2), (1, 2)),
        ("aaaaaaaa", None, None, None),
        ("abababab", None, None, None),  # not numbered node by node
        ("aaaaabbb", None, None, None),
        ("abcdefgh", (1, 1), (1, 1), (1, 1)),
        ("aaabbb", (1, 3), (1, 3), (1, 3)),
        ("aabbccddeeffgghh", (2, 1), (1, 2), (1, 2)),
        ("aaabbbccc", (3, 1), (1, 3), (1, 3)),
    ],
)
def test_the_default_node_grid_is_that_of_plan(
    names: str, hpl_part: Any, mxp_part: Any, gpu_part: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [(HplConfig(), hpl_part), (HplMxpConfig(), mxp_part), (HplConfig(device="cuda"), gpu_part)]

    def body(comm: Any) -> list[Any]:
        return [harness.with_node_grid(Run(config), comm).config.node_grid for config, _ in runs]  # type: ignore[type-var]

    for found in on_nodes(names, monkeypatch, body):
        assert found == [part for _, part in runs]


@pytest.mark.parametrize(
    ("config", "origins"),
    [
        (HplConfig(order="column"), {"order": "HPL.dat"}),
        (HplConfig(order="row"), {"order": "flag"}),
        (HplConfig(node_grid=(2, 1)), {"node_grid": "flag"}),
        (HplConfig(grid=((2, 2), (1, 4))), {"grid": "flag"}),
        (NormsConfig(), {}),
    ],
)
def test_a_given_order_or_several_grids_leave_the_ranks_as_they_are(
    config: Any, origins: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = on_nodes("aabb", monkeypatch, lambda comm: harness.with_node_grid(Run(config, origins), comm))
    assert [run.config for run in found] == [config] * 4


def test_a_run_on_two_nodes_places_its_columns_and_reports_them(monkeypatch: pytest.MonkeyPatch) -> None:
    config = HplConfig(n=(97,), nb=(8,), warmup="none", kernels="reference", device="cpu")
    (chosen,) = on_nodes("aabb", monkeypatch, lambda comm: hpl.run(config, comm))[0]
    given = replace(config, node_grid=(2, 1))
    (same,) = on_nodes("aabb", monkeypatch, lambda comm: hpl.run(given, comm))[0]
    assert chosen.passed
    assert chosen.problem["node_grid"] == same.problem["node_grid"] == (2, 1)
    assert chosen.validation["residual"] == same.validation["residual"]
    assert chosen.config["node_grid"] == {"value": (2, 1), "origin": "auto"}
    assert chosen.launch["grid"].splitlines() == [
        "process grid 2x2, row order, node grid 2x1", "  0 | 2", "  1 | 3",
    ]  # fmt: skip


@pytest.mark.parametrize(("origin", "recorded"), [("default", False), ("flag", True)])
def test_a_checkpoint_records_only_the_node_grid_of_the_user(
    origin: str, recorded: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run that is resumed on other nodes chooses the node grid for them."""
    kept = tmp_path / "kept"
    node_grid = (1, 2) if origin == "flag" else None
    config = HplConfig(
        n=(64,), nb=(8,), grid=((2, 2),), node_grid=node_grid, warmup="none", checkpoint=str(kept), every="0s"
    )
    (result,) = on_nodes("aabb", monkeypatch, lambda comm: hpl.run(config, comm, origins={"node_grid": origin}))[0]
    assert result.status == "valid"
    assert result.problem["node_grid"] is not None
    settings = json.loads((kept / "run.json").read_text())["settings"]
    assert settings["grid"] == "2x2"
    assert ("node_grid" in settings) == recorded

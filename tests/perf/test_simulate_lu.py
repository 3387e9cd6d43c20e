"""Compare HPL and HPL-MxP on clocks with a simulation of every rank, and with results by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest

from mxpeak.errors import UsageError
from mxpeak.layout.block_cyclic import numroc
from mxpeak.layout.lu_schedule import lu_steps
from mxpeak.perf.simulation import hpl, mxp
from mxpeak.perf.simulation.clocks import ProcessLine, stages
from mxpeak.perf.simulation.hpl import NARROW, fact_cores, fact_s, own_fact_s, rounds
from mxpeak.perf.simulation.lu import LuForecast, LuRun, hops, node_block, owned
from mxpeak.perf.simulation.machines import Curve, Machine, Network, find_machine
from mxpeak.perf.simulation.predict import predict, simulate_lu
from tests.support.turns import for_each

#: One rank per node, no tree latency of the diagonal block, no edge effects: a model that a few lines can repeat.
PLAIN = Machine(
    name="plain",
    title="plain",
    nodes=None,
    ranks_per_node=1,
    cores=4,
    memory_bytes=1e12,
    memory_rate=1e10,
    network=Network(1, 1e8, 1e-5, 1e9, 1e-6, 1e9, 1.0, 1.0),
    gemm={"fp16": Curve(((1, 1e9),)), "fp64": Curve(((1, 5e8),))},
    trsm={"fp32": Curve(((1, 5e8),)), "fp64": Curve(((1, 4e8),))},
    factor={"fp32": Curve(((1, 1e8),))},
    core_rate=1e8,
    sync_s=1e-6,
)
MXP = LuRun(n=1000, nb=64, P=2, Q=3, precision="fp16", bcast="1ring", order="row")
HPL = LuRun(n=1000, nb=64, P=2, Q=3, bcast="1ringM", order="row")
BCASTS = ("1ring", "1ringM", "2ring", "2ringM", "long", "longM", "lib", "ilib")


def run_of(benchmark: str, run: LuRun, machine: Machine = PLAIN) -> LuForecast:
    return simulate_lu(benchmark, run, machine)


@for_each(("n", "nb", "P"), [(0, 4, 3), (1, 4, 3), (17, 4, 3), (24, 4, 3), (1000, 64, 7)])
def test_local_sizes_are_those_of_the_block_cyclic_distribution(n: int, nb: int, P: int) -> None:
    assert owned(n, nb, P).tolist() == [numroc(n, nb, p, P) for p in range(P)]


def rank_by_rank(run: LuRun, machine: Machine) -> list[float]:
    """Return when the owner of each step's diagonal block begins it, from every rank and message; 1ring only."""
    net, P, Q = machine.network, run.P, run.Q
    gemm, trsm, factor = machine.gemm["fp16"](1), machine.trsm["fp32"](1), machine.factor["fp32"](1)
    ranks = list(product(range(P), range(Q)))
    device, L, U, port = ({rank: 0.0 for rank in ranks} for _ in range(4))

    def below(j: int, p: int, size: int) -> int:
        return numroc(run.n, run.nb, p, size) - numroc(j, run.nb, p, size)

    def tree(size: int, size_bytes: float) -> float:
        return int(np.ceil(np.log2(size))) * net.latency_s + size_bytes / net.nic_rate if size > 1 else 0.0

    def ring(members: list[tuple[int, int]], ready: float, size_bytes: float, at: dict[tuple[int, int], float]) -> None:
        at[members[0]] = ready
        for sender, receiver in pairwise(members):
            begin = max(at[sender], entry[sender], port[sender])
            at[receiver] = port[sender] = begin + net.latency_s + size_bytes / net.nic_rate

    def make(step, column, row, rest):  # type: ignore[no-untyped-def]
        (p, q), jb = (step.p, step.q), step.jb
        rate_bytes = machine.memory_rate
        D = column[p] + 2 / 3 * jb**3 / factor

        def panel(size: int) -> float:
            return jb**2 * size / trsm + 6 * jb * size / rate_bytes

        sent_L = {
            i: (D if i == p else max(column[i], D + tree(P, 4 * jb**2))) + panel(below(step.j1, i, P)) for i in range(P)
        }
        sent_U = {
            j: (sent_L[p] if j == q else max(row[j], D + tree(Q, 4 * jb**2))) + panel(below(step.j1, j, Q))
            for j in range(Q)
        }
        for i in range(P):
            device[i, q] = max(column[i] + panel(below(step.j1, i, P)) + rest[i, q], sent_L[i])
        for j in range(Q):
            device[p, j] = max(row[j] + panel(below(step.j1, j, Q)) + rest[p, j], sent_U[j])
        both = panel(below(step.j1, p, P)) + panel(below(step.j1, q, Q))
        device[p, q] = max(D + both + rest[p, q], sent_U[q])
        for i in range(P):
            ring([(i, (q + r) % Q) for r in range(Q)], sent_L[i], 2 * jb * below(step.j1, i, P), L)
        for j in range(Q):
            ring([((p + r) % P, j) for r in range(P)], sent_U[j], 2 * jb * below(step.j1, j, Q), U)

    steps, begun = lu_steps(run.n, run.nb, P, Q), []
    entry = {rank: 0.0 for rank in ranks}
    make(steps[0], dict.fromkeys(range(P), 0.0), dict.fromkeys(range(Q), 0.0), dict.fromkeys(ranks, 0.0))
    for step, following in zip(steps, [*steps[1:], None]):
        ready = {rank: max(device[rank], L[rank], U[rank]) for rank in ranks}
        begun.append(ready[step.p, step.q])
        if following is None:
            break
        entry = ready
        c, jb = 2 * step.jb / gemm, following.jb
        column = {i: ready[i, following.q] + c * below(step.j1, i, P) * jb for i in range(P)}
        row = {j: ready[following.p, j] + c * jb * below(following.j1, j, Q) for j in range(Q)}
        column[following.p] += c * jb * below(following.j1, following.q, Q)
        row[following.q] = column[following.p]
        rest = {(i, j): c * below(following.j1, i, P) * below(following.j1, j, Q) for i, j in ranks}
        for rank in ranks:
            device[rank] = ready[rank] + rest[rank]
        make(following, column, row, rest)
    return begun


@for_each(("P", "Q"), [(1, 1), (1, 3), (2, 2), (2, 3), (3, 5)])
@for_each(("n", "nb"), [(512, 64), (1000, 64), (997, 37)])
def test_hpl_mxp_on_arrays_is_hpl_mxp_rank_by_rank(P: int, Q: int, n: int, nb: int) -> None:
    run = replace(MXP, P=P, Q=Q, n=n, nb=nb)
    np.testing.assert_allclose(run_of("hpl-mxp", run).step_s, rank_by_rank(run, PLAIN), rtol=1e-12)


def test_one_process_on_the_host_updates_by_one_product() -> None:
    """It looks ahead, for any requested depth, only if a device works in the background."""
    run, host = replace(MXP, P=1, Q=1, n=640), replace(PLAIN, edge=16.0, devices=False)
    device = replace(host, devices=True)
    plain = mxp.simulate_mxp(replace(run, depth=0), host).time_s
    assert mxp.simulate_mxp(run, host).time_s == plain
    assert mxp.simulate_mxp(run, device).time_s > plain  # the edges of three products
    assert mxp.simulate_mxp(replace(run, P=2), host).time_s != mxp.simulate_mxp(replace(run, P=2, depth=0), host).time_s


def test_one_rank_without_look_ahead_takes_the_sum_of_its_kernels() -> None:
    run = replace(MXP, P=1, Q=1, n=640, depth=0)
    seconds = 0.0
    for step in lu_steps(run.n, run.nb, 1, 1):
        m = run.n - step.j1
        seconds += (
            2 / 3 * step.jb**3 / 1e8 + 2 * (step.jb**2 * m / 5e8 + 6 * step.jb * m / 1e10) + 2 * step.jb * m**2 / 1e9
        )
    assert run_of("hpl-mxp", run).time_s == pytest.approx(seconds)


def test_one_rank_of_hpl_without_look_ahead_takes_the_sum_of_its_phases() -> None:
    run = replace(HPL, P=1, Q=1, n=640, depth=0)
    T, line, seconds = 4, ProcessLine(1, 1, 1, PLAIN.network), 8 * 640 * 641 / 1e10
    for step in lu_steps(run.n, run.nb, 1, 1):
        jb, m, n = step.jb, run.n - step.j0, run.n + 1 - step.j1
        seconds += fact_s(PLAIN, line, m, jb, T) + 2 * 8 * jb * m / 1e9
        seconds += 4 * 8 * jb * n / 1e10 + jb**2 * n / 4e8 + 2 * jb * (m - jb) * n / 5e8
    assert run_of("hpl", run).time_s == pytest.approx(seconds)


@for_each(("P", "expected"), [(1, 0), (2, 1), (3, 3), (4, 2), (5, 4), (7, 4), (8, 3), (12, 5)])
def test_ranks_beyond_a_power_of_two_hand_in_and_get_back(P: int, expected: int) -> None:
    assert rounds(P) == expected


def test_own_cores_factor_at_their_rate_and_exchange_a_candidate_a_column() -> None:
    here = replace(PLAIN, fact={"fp64": Curve(((1, 2e8),))})
    line, M, nb = ProcessLine(4, 1, 1, here.network), 512.0, 64
    flops = M * nb**2 - nb**3 / 3
    message_s = 1e-5 + 2 * 8 * nb / 1e8
    assert own_fact_s(here, line, M, nb) == pytest.approx(flops / 2e8 + nb * (1e-6 + 2 * message_s))
    measured = replace(here, exchange_s=7e-5)
    assert own_fact_s(measured, line, M, nb) == pytest.approx(flops / 2e8 + nb * (1e-6 + 2 * (7e-5 + message_s)))


@for_each("columns", [0, NARROW, NARROW + 1, 700])
def test_rows_are_scattered_while_they_are_gathered(columns: int) -> None:
    """The owner sends 7/8 of U twice, in seven rolls, or in three rounds of a binary exchange."""
    P, jb = 8, 64
    simulation = hpl.HplClocks(replace(HPL, P=P, Q=1, nb=jb), PLAIN)
    hops = 3 if columns <= NARROW else 7
    expected = 2.0 + (hops * 1e-5 + 2 * (P - 1) / P * 8 * jb * columns / 1e8 if columns else 0.0)
    begun = np.linspace(0.0, 2.0, P)[:, None]
    np.testing.assert_allclose(simulation.exchange(begun, np.array([float(columns)]), jb), np.full((P, 1), expected))


@for_each("benchmark", ["hpl", "hpl-mxp"])
@for_each("bcast", BCASTS)
def test_faster_links_and_devices_are_never_slower(benchmark: str, bcast: str) -> None:
    run = replace(HPL if benchmark == "hpl" else MXP, P=3, Q=4, bcast=bcast, split=0.5 if benchmark == "hpl" else 0.0)
    times = [
        run_of(benchmark, run, PLAIN.varied(c, n)).time_s for c, n in ((0.5, 0.5), (0.5, 1), (1, 1), (1, 2), (2, 2))
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


@for_each("benchmark", ["hpl", "hpl-mxp"])
def test_what_takes_away_never_helps(benchmark: str) -> None:
    run = replace(HPL if benchmark == "hpl" else MXP, P=2, Q=4, node_grid=(1, 2))
    machine = replace(PLAIN, ranks_per_node=2, network=replace(PLAIN.network, nics=2))
    usual = run_of(benchmark, run, machine).time_s
    for worse in ({"slow": {3: 0.5}}, {"nics": 1}, {"aware": False}, {"depth": 0}):
        assert run_of(benchmark, replace(run, **worse), machine).time_s >= usual, worse
    assert run_of(benchmark, replace(run, slow={3: 0.5}), machine).time_s > 1.2 * usual


@for_each("benchmark", ["hpl", "hpl-mxp"])
def test_phases_sum_to_the_time_and_steps_follow_one_another(benchmark: str) -> None:
    done = run_of(benchmark, HPL if benchmark == "hpl" else MXP)
    assert sum(done.phases.values()) == pytest.approx(done.time_s)
    assert 0.0 <= done.exposed < 1.0
    assert (np.diff(done.step_s) >= 0).all()
    assert len(done.step_s) == 16


def test_the_flops_of_products_add_up_to_those_of_the_matrix() -> None:
    """Without edge effects, the products of all ranks have Σ 2 jb (n - j1)² flops for any order of the work."""
    flops = sum(2.0 * s.jb * (MXP.n - s.j1) ** 2 for s in lu_steps(MXP.n, MXP.nb, 2, 3))
    for depth in (0, 1):
        assert run_of("hpl-mxp", replace(MXP, depth=depth)).phases["gemm"] * 6 * 1e9 == pytest.approx(flops)


@pytest.mark.parametrize(("benchmark", "run", "format"), [("hpl", HPL, "fp64"), ("hpl-mxp", MXP, "fp16")])
def test_small_trailing_matrices_are_updated_at_their_share_of_the_rate(
    benchmark: str, run: LuRun, format: str
) -> None:
    whole, half = (
        run_of(benchmark, run, replace(PLAIN, gemm_share={format: Curve(points)}))
        for points in (((1, 1.0),), ((1, 0.5), (10**6, 0.5)))
    )
    assert whole.phases["gemm"] == run_of(benchmark, run).phases["gemm"]
    assert half.phases["gemm"] == pytest.approx(2 * whole.phases["gemm"])
    late = run_of(benchmark, run, replace(PLAIN, gemm_share={format: Curve(((200, 0.5), (201, 1.0)))}))
    assert whole.phases["gemm"] < late.phases["gemm"] < half.phases["gemm"]


def test_with_as_much_memory_per_rank_large_grids_are_no_slower() -> None:
    """Ranks of a node share its ports by their rates: none waits for the latest of the others to have sent.

    A hop takes as long as a step's product here, so such waits would add up around the rings, to 16 % from 16² to 48².
    """
    machine = find_machine("frontier")
    small, large = (
        simulate_lu(
            "hpl-mxp",
            LuRun(n=side * 30720, nb=2560, P=side, Q=side, precision="fp16", node_grid=(2, 4), bcast="2ringM"),
            machine,
        ).rate_flops
        / side**2
        for side in (16, 48)
    )
    assert large > 0.95 * small


def test_the_split_update_hides_row_swaps() -> None:
    machine = replace(PLAIN, network=replace(PLAIN.network, nic_rate=3e7, local_rate=3e7))
    run = replace(HPL, n=4000, P=2, Q=2)
    split, plain = run_of("hpl", replace(run, split=0.5), machine), run_of("hpl", run, machine)
    assert split.phases["wait"] < 0.5 * plain.phases["wait"]
    assert split.time_s < plain.time_s


def test_slow_panels_that_overlap_update1_are_hidden_longer_than_rochpls() -> None:
    machine, run = find_machine("crusher"), LuRun(n=256000, nb=512, P=4, Q=2, node_grid=(4, 2), split=0.5)
    assert machine.core_rate is not None
    machine = replace(machine, core_rate=0.6 * machine.core_rate)
    early, behind = run_of("hpl", run, machine), run_of("hpl", replace(run, early=False), machine)
    assert early.hidden_until() > 1.1 * behind.hidden_until()
    assert early.time_s < 0.98 * behind.time_s


def test_fact_shares_the_cores_of_ranks_that_wait() -> None:
    frontier = find_machine("frontier")
    assert [fact_cores(frontier, block, True) for block in ((8, 1), (2, 4), (1, 8))] == [8, 29, 57]
    assert [fact_cores(frontier, block, False) for block in ((8, 1), (2, 4), (1, 8))] == [8, 8, 8]
    line = ProcessLine(1, 1, 1, frontier.network)
    by_cores = [fact_s(frontier, line, 64000, 512, T) for T in (1, 2, 4, 8, 16, 32, 64)]
    assert by_cores == sorted(by_cores, reverse=True)
    assert by_cores[0] > 20 * by_cores[-1], "rocHPL fig. 5: large numbers of cores pay"
    short = [fact_s(frontier, line, 512, 512, T) for T in (1, 64)]
    assert short[0] <= short[1], "a panel of one tile has work for one core"


@for_each(
    ("P", "Q", "ranks", "order", "block"),
    [
        (54, 54, 6, "column", (6, 1)),
        (54, 54, 6, "row", (1, 6)),
        (172, 172, 8, "column", (4, 2)),
        (2, 2, 8, "column", (2, 2)),
        (7, 5, 8, "column", (1, 1)),
    ],
)
def test_consecutive_ranks_make_the_block_of_a_node(P: int, Q: int, ranks: int, order: str, block: tuple) -> None:
    assert node_block(P, Q, ranks, order, None) == block


def test_an_interval_holds_the_rate() -> None:
    found = predict(lambda machine: mxp.simulate_mxp(MXP, machine), PLAIN)
    assert found.low < found.forecast.rate_flops < found.high


def test_missing_machine_data_and_unsupported_options_raise_errors() -> None:
    with pytest.raises(UsageError, match=r"lacks values for hpl in fp64; add core_rate to \[plain.panel\]"):
        hpl.simulate_hpl(HPL, replace(PLAIN, core_rate=None))
    with pytest.raises(UsageError, match="HPL computes in fp64, not fp16"):
        hpl.simulate_hpl(MXP, PLAIN)
    with pytest.raises(UsageError, match="--bcast star cannot be simulated"):
        stages("star", 4)


def test_refinement_waits_for_other_ranks_at_every_block_of_a_solve() -> None:
    calm = replace(PLAIN, generate_rate=1e9, refine_steps=5)
    waits = replace(calm, exchange_s=1e-4)
    more = run_of("hpl-mxp", MXP, waits).phases["refine"] - run_of("hpl-mxp", MXP, calm).phases["refine"]
    both = 1 + 2  # hops of reductions over two rows or columns, and over three
    assert hops(MXP.P, MXP.Q) == both
    assert more == pytest.approx(5 * (2 * MXP.n / MXP.nb + mxp.REDUCTIONS) * both * 1e-4)
    measured = replace(waits, turn_s=3e-4)  # measured in such solves, with the message
    times = 5 * (2 * MXP.n / MXP.nb + mxp.REDUCTIONS) * both
    more = run_of("hpl-mxp", MXP, measured).phases["refine"] - run_of("hpl-mxp", MXP, calm).phases["refine"]
    assert more == pytest.approx(times * (3e-4 - PLAIN.network.latency_s))
    solve_s = [run_of("hpl", HPL, one).phases["solve"] for one in (calm, waits, measured)]
    exchanges = -(-HPL.n // HPL.nb) * both
    assert solve_s[1] - solve_s[0] == pytest.approx(exchanges * 1e-4)
    assert solve_s[2] - solve_s[0] == pytest.approx(exchanges * (3e-4 - PLAIN.network.latency_s))
    alone = replace(MXP, P=1, Q=1)
    assert run_of("hpl-mxp", alone, waits).time_s == run_of("hpl-mxp", alone, calm).time_s

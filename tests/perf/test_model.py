"""Compare the closed formula with the paper's equations for round numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mxpeak.perf.simulation.machines import Curve, Machine, Network
from mxpeak.perf.simulation.model import upper_bound

ROUND = Machine(
    name="round",
    title="round",
    nodes=None,
    ranks_per_node=4,
    cores=4,
    memory_bytes=1e12,
    memory_rate=1e12,
    network=Network(2, 1e9, 0.0, 1e10, 0.0, 1e10, 1.0, 1.0),
    gemm={"fp16": Curve(((1, 1e12),))},
    trsm={"fp32": Curve(((1, 1e11),))},
    factor={"fp32": Curve(((1, 1e10),))},
)


def test_the_terms_of_equation_3_and_5() -> None:
    # N = 10^4, B = 100, P_r×P_c = 4×8 in blocks of 2×2
    bound = upper_bound(ROUND, 10**4, 100, 4, 8, (2, 2), "fp16")
    assert bound.getrf == pytest.approx(1e4 * 1e4 / 1e10)  # N B² / GETRF = 0.01 s
    assert bound.trsm == pytest.approx(1e10 / 4e11 + 1e10 / 8e11)  # N² B / (P TRSM), both panels
    assert bound.bcast_panel == pytest.approx(2e8 * 2 / (4 * 2e9) + 2e8 * 2 / (8 * 2e9))  # 2N² Q/(P NBN)
    assert bound.gemm == pytest.approx(1e12 / (32 * 1e12))  # N³ / (P_r P_c GEMM)
    assert bound.time_s == bound.getrf + bound.trsm + max(bound.bcast_panel, bound.gemm)


def test_products_of_equation_3_have_the_rate_of_the_local_size() -> None:
    # N_L = 10^4/√(4·8) = 1768: between the shares at 1000 and 4000
    shares = Curve(((1000, 0.5), (4000, 0.8)))
    bound = upper_bound(replace(ROUND, gemm_share={"fp16": shares}), 10**4, 100, 4, 8, (2, 2), "fp16")
    assert bound.gemm == pytest.approx(1e12 / (32 * 1e12 * shares(10**4 / 32**0.5)))
    assert 0.5 < shares(10**4 / 32**0.5) < 0.8


def test_half_of_the_ports_double_the_communication_and_nothing_else() -> None:
    two, one = (upper_bound(ROUND, 10**4, 100, 4, 8, (2, 2), "fp16", nics) for nics in (2, 1))
    assert one.bcast_panel == 2 * two.bcast_panel
    assert (one.getrf, one.trsm, one.gemm) == (two.getrf, two.trsm, two.gemm)


def test_within_one_node_the_devices_own_links_carry_the_panels() -> None:
    bound = upper_bound(ROUND, 10**4, 100, 2, 2, (2, 2), "fp16")
    assert bound.bcast_panel == pytest.approx(2 * 2e8 * 2 / (2 * 1e10))

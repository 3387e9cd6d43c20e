"""Ranks of MPI that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.ranks import StandingRanks


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandingRanks]:
    """Two ranks, for commands of any test."""
    ranks = StandingRanks(2, tmp_path_factory.mktemp("two_ranks"))
    yield ranks
    ranks.end()


@pytest.fixture(scope="session")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandingRanks]:
    """Four ranks, for commands of any test."""
    ranks = StandingRanks(4, tmp_path_factory.mktemp("four_ranks"))
    yield ranks
    ranks.end()

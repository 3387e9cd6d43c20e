"""Provide the MPI ranks that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.ranks import StandingRanks


@pytest.fixture(scope="session")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, StandingRanks]]:
    """Provide MPI ranks that wait for calls of any test, by their number."""
    by_size = {size: StandingRanks(size, tmp_path_factory.mktemp(f"ranks{size}")) for size in (2, 4)}
    yield by_size
    for ranks in by_size.values():
        ranks.dismiss()
    for ranks in by_size.values():
        ranks.end()

"""Fixtures of the tests of the library."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from mxpeak.library import policy


@pytest.fixture
def small_lu_up_to(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Return a function that makes fp32 factors faster than the small LU from this order on."""

    def change(n: int) -> None:
        monkeypatch.setitem(policy.FP32_FROM, ("small_lu", "real"), policy.Crossover(n, n))
        policy.own_precision_is_fastest.cache_clear()

    yield change
    monkeypatch.undo()
    policy.own_precision_is_fastest.cache_clear()

"""Compare docs/reference/peer-tests.md with the counts of the adapted test cases.

`python -m tests.library.test_peer_page` writes them.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.support.peer_cases import tables

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "peer-tests.md"
#: The modules whose cases the page counts, in the order of the page.
FILES = [import_module(f"tests.library.test_cases_of_{peer}") for peer in ("scipy", "scipy_sparse", "numpy", "jax")]


def updated(page: str) -> str:
    """Return the page with the current tables."""
    import jax

    jax.config.update("jax_enable_x64", True)
    for name, table in tables([peer for file in FILES for peer in file.PEERS]).items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        page = re.sub(f"{begin}.*?{end}", lambda _, t=f"{begin}\n\n{table}\n\n{end}": t, page, flags=re.DOTALL)
    return page


@pytest.fixture
def narrow_again() -> Any:
    """Restore the precision mode of JAX."""
    jax = pytest.importorskip("jax")
    before = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.mark.usefixtures("narrow_again")
def test_the_page_has_the_counts() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == updated(page), "use python -m tests.library.test_peer_page to update the page"


def test_every_test_is_adapted_or_has_a_reason_and_not_both() -> None:
    for file in FILES:
        for peer in file.PEERS:
            assert not set(peer.tests) & set(peer.reasons), peer.function
            assert set(peer.differences) <= set(peer.tests)
            assert peer.tests, peer.function


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

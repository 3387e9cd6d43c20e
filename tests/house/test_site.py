"""Test that every page of the documentation has its place in the site, and that every link has a target."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "examples" / "README.md", ROOT / "CONTRIBUTING.md"]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """Return a page without its code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings as MkDocs and GitHub write them, and explicit ones."""
    text = page.read_text(encoding="utf-8")
    heads = [re.sub(r"[^\w\- ]", "", head.lower()).strip() for head in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    spelt = {re.sub(r"[-\s]+", "-", head) for head in heads} | {head.replace(" ", "-") for head in heads}
    return spelt | set(re.findall(r'<a id="([^"]+)"', text))


#: Pages that tools/site_hooks.py generates; `mkdocs build --strict` checks links to them.
GENERATED = {f"reference/{name}.md" for name in ("command-line/index", "settings", "result-file", "modules")}


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    named = re.findall(r": (\S+\.md)$", nav, re.MULTILINE)
    assert sorted(named) == sorted([*GENERATED, *(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))])


#: The largest number of words of a page by its kind, with tables and code. A longer page is hard to search.
LIMITS = {"howto": 700, "tutorials": 900, "explanation": 1000}


@pytest.mark.parametrize("kind", LIMITS)
def test_pages_are_short(kind: str) -> None:
    lengths = {
        str(page.relative_to(DOCS)): len(re.findall(r"\S*\w\S*", page.read_text(encoding="utf-8")))
        for page in (DOCS / kind).rglob("*.md")
    }
    assert {page: length for page, length in lengths.items() if length > LIMITS[kind]} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if re.match(r"https?:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if target.is_relative_to(DOCS) and str(target.relative_to(DOCS)) in GENERATED:
            continue
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link

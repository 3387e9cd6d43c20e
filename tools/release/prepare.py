"""The edits of a release: version, date and changelog."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

#: The sections of CHANGELOG.md, as the names of the fragments spell them.
SECTIONS = ("benchmarks", "commands", "library", "platforms")
VERSION_FILE, CITATION, CHANGELOG, FRAGMENTS = "src/mxpeak/__init__.py", "CITATION.cff", "CHANGELOG.md", "changelog.d"


def fragments(root: Path) -> list[Path]:
    """Return the files of changelog.d that hold a sentence."""
    return [file for file in sorted((root / FRAGMENTS).glob("*.md")) if file.name != "README.md"]


def sections(files: list[Path]) -> dict[str, list[str]]:
    """Return the sentences of each section of the changelog."""
    fragments: dict[str, list[str]] = {section: [] for section in SECTIONS}
    wrong = []
    for file in files:
        topic, _, section = file.stem.rpartition(".")
        if topic and section in fragments:
            fragments[section].append(file.read_text(encoding="utf-8"))
        else:
            wrong.append(file.name)
    if wrong:
        names = ", ".join(SECTIONS)
        raise SystemExit(
            f"no section: {', '.join(wrong)}; use names such as topic.{SECTIONS[0]}.md (sections: {names})"
        )
    return {section: sentences for section, sentences in fragments.items() if sentences}


def entry(text: str) -> str:
    """Return a fragment as an item of the changelog."""
    words = " ".join(text.split())
    return textwrap.fill(
        words, 120, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
    )


def released(changelog: str, version: str, date: str, entries: dict[str, list[str]]) -> str:
    """Return the changelog with a date for `version` and with the entries in its sections."""
    head, *versions = re.split(r"^(?=## \[)", changelog, flags=re.MULTILINE)
    earlier = [text for text in versions if not text.startswith(f"## [{version}] - unreleased\n")]
    for text in earlier:
        if text.splitlines()[0].endswith("] - unreleased"):
            raise SystemExit(f"{CHANGELOG} has {text.splitlines()[0][3:]}; rename it to [{version}] - unreleased")
        if text.startswith(f"## [{version}]"):
            raise SystemExit(f"{CHANGELOG} says that {text.splitlines()[0][3:]} is released; use a larger version")
    unreleased = "".join(text for text in versions if text not in earlier)
    heading, *parts = re.split(r"^### (.+)\n", unreleased, flags=re.MULTILINE)
    names = parts[::2]
    if len(set(names)) < len(names):
        raise SystemExit(f"{CHANGELOG} has several sections {', '.join(names)} of {version}; use one of each name")
    if text := heading.partition("\n")[2].strip():
        raise SystemExit(f"{CHANGELOG} has text before the first section of {version}: {text!r}; move it to a section")
    items = dict(zip(parts[::2], (part.strip("\n") for part in parts[1::2])))
    for section, sentences in entries.items():
        name = section.capitalize()
        items[name] = "\n".join(filter(None, [items.get(name), *map(entry, sentences)]))
    text = "\n".join(f"### {name}\n\n{lines}\n" for name, lines in items.items())
    return f"{head}## [{version}] - {date}\n\n{text}" + ("\n" if earlier else "") + "".join(earlier)


def substituted(file: Path, pattern: str, line: str) -> str:
    """Return the text of a file with another line in the place of the only one that matches."""
    text, count = re.subn(pattern, line, file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if count != 1:
        raise SystemExit(f"{file} has {count} lines that match {pattern}, instead of one")
    return text


def prepare(root: Path, version: str, date: str) -> None:
    """Set the version and the date of a release, and move the fragments into the changelog."""
    files = fragments(root)
    entries = sections(files)
    new = {
        CHANGELOG: released((root / CHANGELOG).read_text(encoding="utf-8"), version, date, entries),
        VERSION_FILE: substituted(root / VERSION_FILE, '^__version__ = ".*"$', f'__version__ = "{version}"'),
        CITATION: substituted(
            root / CITATION, r"^version: .*\n(date-released: .*\n)?", f"version: {version}\ndate-released: {date}\n"
        ),
    }
    for name, text in new.items():
        (root / name).write_text(text, encoding="utf-8")
    for file in files:
        file.unlink()
    print(f"{version} of {date}: {len(files)} fragments are in {CHANGELOG}; commit the changes, then tag the commit")


def version_of(root: Path) -> str:
    """Return the version of the package in a checkout."""
    match = re.search('^__version__ = "(.*)"$', (root / VERSION_FILE).read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise SystemExit(f"{root / VERSION_FILE} has no __version__")
    return match[1]


def unprepared(root: Path) -> list[str]:
    """Return the reasons why a checkout is not the commit of a release."""
    version = version_of(root)
    changelog = (root / CHANGELOG).read_text(encoding="utf-8")
    heading = re.search(rf"^## \[{re.escape(version)}\] - (\S+)$", changelog, re.MULTILINE)
    date = heading[1] if heading else "missing"
    reasons = []
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        reasons.append(f"the date of {version} in {CHANGELOG} is {date}")
    if f"version: {version}\ndate-released: {date}\n" not in (root / CITATION).read_text(encoding="utf-8"):
        reasons.append(f"{CITATION} does not name version {version} and date {date}")
    if count := len(fragments(root)):
        reasons.append(f"{FRAGMENTS} holds {count} fragments")
    return reasons

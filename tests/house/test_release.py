"""Test the edits of a release on a copy of its files, and that the version has one source."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import mxpeak

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools" / "release"))
import artifacts  # noqa: E402
import prepare  # noqa: E402

EDITED = (prepare.VERSION_FILE, prepare.CITATION, prepare.CHANGELOG)
TEXTS = {
    prepare.VERSION_FILE: '"""A package."""\n\n__version__ = "0.1.0"\n__all__ = ["__version__"]\n',
    prepare.CITATION: "cff-version: 1.2.0\nversion: 0.1.0\nlicense: BSD-3-Clause\n",
    prepare.CHANGELOG: "# Changelog\n\nThe format.\n\n## [0.1.0] - unreleased\n\n### Benchmarks\n\n- `run hpl` runs.\n"
    "\n### Commands\n\n- `doctor` inspects.\n- `peak` measures,\n  twice.\n\n### Known limitations\n\n- One GPU.\n",
}
FRAGMENTS = {
    "README.md": "How to write them.\n",
    "a.commands.md": " ".join(["`run`", *["word"] * 30]) + ".\n",
    "b.commands.md": "`scan` finds slow nodes.\n",
    "c.library.md": "`solve` solves.\n",
}
#: 110 characters and a blank fill a line of 120 after its dash.
RELEASED = f"""# Changelog

The format.

## [0.1.0] - 2027-01-31

### Benchmarks

- `run hpl` runs.

### Commands

- `doctor` inspects.
- `peak` measures,
  twice.
- `run` {" ".join(["word"] * 22)}
  {" ".join(["word"] * 8)}.
- `scan` finds slow nodes.

### Known limitations

- One GPU.

### Library

- `solve` solves.
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that a release edits, with three fragments."""
    for name, text in [*TEXTS.items(), *((f"{prepare.FRAGMENTS}/{name}", text) for name, text in FRAGMENTS.items())]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_prepare_moves_fragments_and_sets_one_version_and_date(copy: Path) -> None:
    prepare.prepare(copy, "0.1.0", "2027-01-31")
    assert prepare.unprepared(copy) == []
    assert (copy / prepare.CHANGELOG).read_text() == RELEASED
    assert [file.name for file in (copy / prepare.FRAGMENTS).iterdir()] == ["README.md"]
    assert (copy / prepare.VERSION_FILE).read_text() == TEXTS[prepare.VERSION_FILE]
    citation = "cff-version: 1.2.0\nversion: 0.1.0\ndate-released: 2027-01-31\nlicense: BSD-3-Clause\n"
    assert (copy / prepare.CITATION).read_text() == citation


def test_the_next_version_gets_a_section_of_its_own_above_the_last(copy: Path) -> None:
    prepare.prepare(copy, "0.1.0", "2027-01-31")
    (copy / prepare.FRAGMENTS / "d.benchmarks.md").write_text("`run hpl` runs.\n")
    prepare.prepare(copy, "0.2.0", "2027-02-28")
    head, old = RELEASED.split("## [0.1.0]")
    new = "## [0.2.0] - 2027-02-28\n\n### Benchmarks\n\n- `run hpl` runs.\n\n"
    assert (copy / prepare.CHANGELOG).read_text() == f"{head}{new}## [0.1.0]{old}"
    assert prepare.version_of(copy) == "0.2.0"
    assert (copy / prepare.CITATION).read_text().count("date-released") == 1
    assert prepare.unprepared(copy) == []


def test_the_files_of_the_repository_can_be_prepared(tmp_path: Path) -> None:
    for name in EDITED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / prepare.FRAGMENTS, tmp_path / prepare.FRAGMENTS)
    unreleased = re.search(r"^## \[(.+)\] - unreleased$", (ROOT / prepare.CHANGELOG).read_text(), re.MULTILINE)
    version = unreleased[1] if unreleased else "999.0.0"
    prepare.prepare(tmp_path, version, "2027-01-31")
    assert prepare.unprepared(tmp_path) == []
    citation = yaml.safe_load((tmp_path / prepare.CITATION).read_text())
    assert (citation["version"], citation["date-released"].isoformat()) == (version, "2027-01-31")


def test_a_version_is_released_once(copy: Path) -> None:
    prepare.prepare(copy, "0.1.0", "2027-01-31")
    before = [(copy / name).read_bytes() for name in EDITED]
    with pytest.raises(SystemExit, match=r"\[0.1.0\] - 2027-01-31 is released; use a larger version"):
        prepare.prepare(copy, "0.1.0", "2027-02-28")
    assert [(copy / name).read_bytes() for name in EDITED] == before


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("## [0.1.0] - unreleased\n", "## [0.1.0] - unreleased\n\nThe first.\n", "text before the first section"),
        ("### Known limitations", "### Commands", "several sections Benchmarks, Commands, Commands"),
        ("## [0.1.0]", "## [0.0.9]", r"has \[0.0.9\] - unreleased; rename it to \[0.1.0\]"),
    ],
)
def test_text_of_the_changelog_that_would_be_lost_is_refused(copy: Path, old: str, new: str, message: str) -> None:
    text = TEXTS[prepare.CHANGELOG].replace(old, new)
    (copy / prepare.CHANGELOG).write_text(text)
    with pytest.raises(SystemExit, match=message):
        prepare.prepare(copy, "0.1.0", "2027-01-31")
    assert (copy / prepare.CHANGELOG).read_text() == text


def test_a_tag_needs_a_signature(copy: Path) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "tag.gpgSign=false")
        done = subprocess.run(["git", *identity, *words], cwd=copy, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    prepare.prepare(copy, "0.1.0", "2027-01-31")
    git("init", "-q")
    git("add", ".")
    git("-c", "commit.gpgSign=false", "commit", "-q", "-m", "release")
    commit = git("rev-parse", "HEAD")
    assert artifacts.blockers(copy, copy, commit) == ["the tag v0.1.0 does not name the commit"]
    assert not artifacts.is_tag(copy, "v0.1.0")
    git("branch", "v0.2.0")
    assert not artifacts.is_tag(copy, "v0.2.0")
    for words in (("tag", "v0.1.0"), ("tag", "--force", "--annotate", "-m", "0.1.0", "v0.1.0")):
        git(*words)
        assert artifacts.is_tag(copy, "v0.1.0")
        assert artifacts.is_tag(copy, "refs/tags/v0.1.0")
        (reason,) = artifacts.blockers(copy, copy, commit)
        assert reason.startswith("git verify-tag v0.1.0: ")


def test_a_fragment_without_a_section_is_refused_before_any_edit(copy: Path) -> None:
    for name in ("new.md", "new.gpus.md"):
        (copy / prepare.FRAGMENTS / name).write_text("New.\n")
    message = r"no section: new.gpus.md, new.md; use names such as topic.benchmarks.md \(sections: "
    with pytest.raises(SystemExit, match=message):
        prepare.prepare(copy, "0.1.0", "2027-01-31")
    assert all((copy / name).read_text() == TEXTS[name] for name in EDITED)


def test_what_keeps_a_commit_from_release_is_named(copy: Path) -> None:
    assert prepare.unprepared(copy) == [
        "the date of 0.1.0 in CHANGELOG.md is unreleased",
        "CITATION.cff does not name version 0.1.0 and date unreleased",
        "changelog.d holds 3 fragments",
    ]


def test_every_fragment_of_the_repository_has_a_section_and_one_short_sentence() -> None:
    files = prepare.fragments(ROOT)
    assert sum(map(len, prepare.sections(files).values())) == len(files)
    for file in files:
        text = file.read_text().strip()
        assert text.endswith("."), file
        assert text.count(". ") == 0, file


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["prepare", "1.0", "2026-12-01"], "'1.0' is not a version; use three numbers, such as 0.1.0"),
        (["prepare", "0.1.0", "1 December"], "'1 December' is not a date; use the form 2026-12-01"),
        (["build", "v99.0.0"], "v99.0.0"),
    ],
)
def test_wrong_arguments_of_the_command(words: list[str], message: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "release", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode
    assert message in done.stderr


def test_the_version_has_one_source() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == prepare.VERSION_FILE
    assert prepare.version_of(ROOT) == mxpeak.__version__
    assert yaml.safe_load((ROOT / prepare.CITATION).read_text())["version"] == mxpeak.__version__
    stated = re.findall(r"mxpeak (\d+\.\d+(?:\.\d+)?) is", (ROOT / "README.md").read_text())
    assert stated
    assert all(mxpeak.__version__.startswith(one) for one in stated)


def test_builds_that_differ_in_a_byte_or_a_file_are_refused(tmp_path: Path) -> None:
    files = [tmp_path / name / "a.whl" for name in ("one", "other")]
    for file, text in zip(files, ("a", "b")):
        file.parent.mkdir()
        file.write_text(text)
    with pytest.raises(SystemExit, match="two builds differ: a"):
        artifacts.check_identical(files[:1], files[1:])
    artifacts.check_identical(files[:1], files[:1])
    with pytest.raises(SystemExit, match=r"missing \['x'\], unexpected \['y'\]"):
        artifacts.check_same_names("a.whl", {"y"}, {"x"})


def test_the_licenses_of_other_libraries_test_inputs_are_bundled() -> None:
    tests = (ROOT / "tests" / "library").glob("test_cases_of_*.py")
    libraries = {file.stem.removeprefix("test_cases_of_").partition("_")[0] for file in tests}
    licenses = {file.stem.lower(): file.read_text() for file in (ROOT / "LICENSES").iterdir()}
    assert set(licenses) == libraries
    assert all("Redistribution" in text or "Apache License" in text for text in licenses.values())


def test_data_files_of_the_package_name_their_sources() -> None:
    data = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "src").rglob("*")
        if file.suffix in (".toml", ".txt", ".csv", ".dat")
    }
    page = (ROOT / "docs" / "project" / "release.md").read_text()
    assert data == {"src/mxpeak/perf/machines.toml", "src/mxpeak/perf/published.toml"}
    assert all(f"`{file.removeprefix('src/mxpeak/')}`" in page for file in data)
    for file in data:
        values = re.findall(r"^\w+ = \{ value = .*", (ROOT / file).read_text(), re.MULTILINE)
        assert len(values) > 20
        assert [line for line in values if 'source = "' not in line] == []


def test_a_version_of_the_site_is_in_its_title_and_links() -> None:
    pytest.importorskip("mkdocs", reason="MkDocs is not installed: pip install '.[docs]'")
    config = "types.SimpleNamespace(site_name='mxpeak', edit_uri='edit/')"
    code = f"import site_hooks, types; c = site_hooks.on_config({config})"
    code += "; print(c.site_name, repr(c.edit_uri), site_hooks.HOST)"
    path = os.pathsep.join([str(ROOT / "tools"), str(ROOT / "src")])
    for ref, expected in (
        ("v0.1.0", f"mxpeak {mxpeak.__version__} '' https://github.com/mxpeak/mxpeak/blob/v0.1.0/"),
        ("main", "mxpeak 'edit/' https://github.com/mxpeak/mxpeak/blob/main/"),
    ):
        environ = os.environ | {"DOCS_REF": ref, "PYTHONPATH": path}
        done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected

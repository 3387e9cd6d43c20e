"""The files of a release: two identical builds of a commit, their checks, and tests of the installed wheel."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from prepare import unprepared, version_of

#: Two environments whose differences must not change a byte: time zone, locale, order of sets, and modes of new files.
BUILDERS: dict[str, dict[str, Any]] = {
    "first": {"variables": {"TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}, "umask": 0o022},
    "second": {"variables": {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "1"}, "umask": 0o077},
}
#: Files of the packages that are not in the repository.
GENERATED_STUB = "mxpeak/library/run.pyi"
WHEEL_METADATA = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
#: What pip writes during an installation, in addition to the files of the wheel.
BY_PIP = ("INSTALLER", "REQUESTED", "direct_url.json", "RECORD")
TESTS = ("tests/layout", "tests/cli/test_help.py", "tests/library/test_conventions.py")
TEST_NEEDS = ("pytest", "pytest-xdist", "hypothesis", "jsonschema")


def run(*command: object, folder: Path | None = None, umask: int = -1, **variables: str) -> str:
    """Run a command without the caller's Python path, and return its output; end if the command fails."""
    unset = ("PYTHONPATH", "SOURCE_DATE_EPOCH")
    environ = {name: value for name, value in os.environ.items() if name not in unset} | variables
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environ,
        umask=umask,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\nFAILED  {' '.join(map(str, command))}: exit code {done.returncode}")
    return done.stdout


@contextmanager
def step(name: str) -> Iterator[None]:
    """Print the name and the duration of a step that passed."""
    start = time.monotonic()
    yield
    print(f"passed  {name}  {time.monotonic() - start:.0f} s", flush=True)


def clone(root: Path, commit: str, folder: Path, umask: int = -1) -> Path:
    """Clone a commit, so that files of the working tree cannot enter the packages."""
    run("git", "clone", "-q", "--no-checkout", root, folder, umask=umask)
    run("git", "checkout", "-q", commit, folder=folder, umask=umask)
    return folder


def packages(root: Path, commit: str, folder: Path, variables: dict[str, str], umask: int) -> tuple[Path, Path]:
    """Build the source distribution, and from it the wheel."""
    source = clone(root, commit, folder / "source", umask)
    run(sys.executable, "-m", "build", "--outdir", folder / "dist", folder=source, umask=umask, **variables)
    (wheel,), (sdist,) = (list((folder / "dist").glob(pattern)) for pattern in ("*.whl", "*.tar.gz"))
    return wheel, sdist


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def check_identical(first: tuple[Path, ...], second: tuple[Path, ...]) -> None:
    """End if two builds differ in a byte."""
    for one, other in zip(first, second):
        if (one.name, sha256(one)) != (other.name, sha256(other)):
            raise SystemExit(f"two builds differ: {one.name} {sha256(one)}, {other.name} {sha256(other)}")


def check_same_names(package: str, actual: set[str], expected: set[str]) -> None:
    """End if a package contains other files than expected."""
    if actual != expected:
        raise SystemExit(f"{package}: missing {sorted(expected - actual)}, unexpected {sorted(actual - expected)}")


def tracked(source: Path, *paths: str) -> set[str]:
    """Return the files of a commit below paths."""
    return set(run("git", "ls-files", "--", *paths, folder=source).splitlines())


def check_contents(source: Path, wheel: Path, sdist: Path) -> None:
    """Compare the files of both packages with those of the commit."""
    name = f"mxpeak-{version_of(source)}"
    code = {file.removeprefix("src/") for file in tracked(source, "src/mxpeak")}
    metadata = {f"{name}.dist-info/{file}" for file in WHEEL_METADATA}
    with zipfile.ZipFile(wheel) as archive:
        check_same_names(wheel.name, set(archive.namelist()), code | metadata | {GENERATED_STUB})
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    files = tracked(source, *(name.lstrip("/") for name in included)) | {"PKG-INFO", "pyproject.toml", ".gitignore"}
    with tarfile.open(sdist) as archive:
        check_same_names(sdist.name, set(archive.getnames()), {f"{name}/{file}" for file in files})


def pip(environment: Path, *words: object) -> str:
    """Run pip for an environment that contains no pip."""
    return run(sys.executable, "-m", "pip", "--python", environment / "bin" / "python", *words)


def install(wheel: Path, folder: Path) -> Path:
    """Install the wheel in an empty environment: only dependencies come from the network, before the installation."""
    environment, wheels = folder / "environment", folder / "wheels"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    pip(environment, "download", "-q", "--dest", wheels, wheel)
    pip(environment, "install", "-q", "--no-index", "--find-links", wheels, "mxpeak")
    return environment


def record(wheel_or_files: Path) -> dict[str, str]:
    """Return the hash of each file of a wheel or of an installation, except for scripts and files that pip writes."""
    if wheel_or_files.suffix == ".whl":
        with zipfile.ZipFile(wheel_or_files) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
            lines = archive.read(name).decode().splitlines()
    else:
        lines = wheel_or_files.read_text(encoding="utf-8").splitlines()
    hashes = {name: code for name, code, _ in csv.reader(lines) if code and not name.startswith("..")}
    return {name: code for name, code in hashes.items() if not name.endswith(BY_PIP)}


def check_from_git(source: Path, wheel: Path, environment: Path) -> None:
    """Install from the repository's URL; the installed files must be those of the wheel.

    The requirement has no name, because pip 23 accepts no URL without a host behind a name.
    """
    need = f"git+file://{source}"
    pip(environment, "install", "-q", "--no-deps", "--force-reinstall", need)
    (installed,) = environment.glob(f"lib/python*/site-packages/mxpeak-{version_of(source)}.dist-info/RECORD")
    from_git, from_wheel = record(installed), record(wheel)
    if different := {name for name in from_git | from_wheel if from_git.get(name) != from_wheel.get(name)}:
        raise SystemExit(f"{need} installs other files than the wheel: {sorted(different)}")


def check_commands(environment: Path, version: str, folder: Path) -> None:
    """Run the installed commands in an empty folder."""
    folder.mkdir()
    mxpeak = environment / "bin" / "mxpeak"
    if (printed := run(mxpeak, "--version").strip()) != f"mxpeak {version}":
        raise SystemExit(f"the installed command prints {printed!r}, instead of version {version}")
    run(mxpeak, "doctor", folder=folder)
    run(mxpeak, "run", "hpl", "-N", "500", "--threads", "1", "--out", "out", folder=folder)


def check_tests(environment: Path, sdist: Path, folder: Path) -> None:
    """Run tests of the source distribution against the installed wheel."""
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and newer
        archive.extractall(folder)
    tests = folder / sdist.name.removesuffix(".tar.gz")
    shutil.rmtree(tests / "src")
    pip(environment, "install", "-q", *TEST_NEEDS)
    run(environment / "bin" / "python", "-m", "pytest", "-q", *TESTS, folder=tests)


def bill_of_materials(source: Path, wheel: Path, environment: Path, file: Path) -> None:
    """Write the SBOM of the environment in which only the wheel and its dependencies are installed."""
    options = ("--of", "JSON", "--output-reproducible", "--pyproject", source / "pyproject.toml", "-o", file)
    run(sys.executable, "-m", "cyclonedx_py", "environment", *options, environment / "bin" / "python")
    bill = json.loads(file.read_text(encoding="utf-8"))
    hashes = [{"alg": "SHA-256", "content": sha256(wheel)}]
    bill["metadata"]["component"] |= {"version": version_of(source), "hashes": hashes}
    (needed,) = (entry["dependsOn"] for entry in bill["dependencies"] if entry["ref"] == "root-component")
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    expected = {Requirement(need).name for need in project["dependencies"]}
    check_same_names(file.name, {reference.partition("==")[0] for reference in needed}, expected)
    file.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")


def documentation(source: Path, ref: str, file: Path) -> None:
    """Build the documentation site of the commit and pack it."""
    site = source.parent / file.name.removesuffix(".tar.gz")
    command = (sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "--site-dir", site)
    run(*command, folder=source, PYTHONPATH=str(source / "src"), DOCS_REF=ref, NO_MKDOCS_2_WARNING="1")
    with tarfile.open(file, "w:gz") as archive:
        archive.add(site, site.name)


def blockers(root: Path, source: Path, commit: str) -> list[str]:
    """Return the reasons why a commit cannot be published."""
    tag = f"v{version_of(source)}"
    tags = run("git", "tag", "--points-at", commit, folder=root).split()
    reasons = unprepared(source)
    if tag not in tags:
        return [*reasons, f"the tag {tag} does not name the commit"]
    verified = subprocess.run(["git", "verify-tag", tag], cwd=root, capture_output=True, text=True)
    return reasons if verified.returncode == 0 else [*reasons, f"git verify-tag {tag}: {verified.stderr.strip()}"]


def is_tag(root: Path, ref: str) -> bool:
    """Return whether a ref is the name of a tag."""
    name = ref if ref.startswith("refs/tags/") else f"refs/tags/{ref}"
    return not subprocess.run(["git", "show-ref", "--verify", "--quiet", name], cwd=root).returncode


def build(root: Path, ref: str, out: Path) -> None:
    """Build and test the files of a release."""
    commit = run("git", "rev-parse", "--verify", f"{ref}^{{commit}}", folder=root).strip()
    with tempfile.TemporaryDirectory(prefix="mxpeak-release-") as name:
        work = Path(name)
        with step("two builds are identical"):
            first, second = (packages(root, commit, work / one, **how) for one, how in BUILDERS.items())
            check_identical(first, second)
        wheel, sdist = first
        source = work / "first" / "source"
        version = version_of(source)
        with step("the packages contain the files of the commit"):
            check_contents(source, wheel, sdist)
            run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
        with step("the wheel is installed in an empty environment"):
            environment = install(wheel, work)
        files = [wheel, sdist, work / f"mxpeak-{version}.cdx.json", work / f"mxpeak-{version}-docs.tar.gz"]
        with step("the SBOM lists the wheel and its dependencies"):
            bill_of_materials(source, wheel, environment, files[2])
        with step("the installed commands run"):
            check_commands(environment, version, work / "empty")
        with step("tests pass with the installed wheel"):
            check_tests(environment, sdist, work / "tests")
        with step("an installation from git has the files of the wheel"):
            check_from_git(source, wheel, environment)
        with step("the documentation site is built"):
            documentation(source, ref if ref != "HEAD" else commit, files[3])
        reasons = blockers(root, source, commit)
        if reasons and is_tag(root, ref):
            raise SystemExit("\n".join([f"{ref} cannot be published:", *reasons]))
        out.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(file, out)
        (out / "SHA256SUMS").write_text("".join(f"{sha256(file)}  {file.name}\n" for file in files), encoding="utf-8")
    print(f"{version} at {commit[:12]}: the files are in {out}")
    print("\n".join(["rehearsal, not to be published:", *reasons]) if reasons else "ready to publish")

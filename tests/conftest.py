"""Define the settings and fixtures of all tests."""

from __future__ import annotations

import atexit
import gc
import os
import re
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Triton's kernels are interpreted on the CPU and compiled on a GPU, unless the variable is already set. Triton reads it
# when kernels are decorated, so it must be set before any import of kernels.
os.environ.setdefault("TRITON_INTERPRET", "0" if os.environ.get("TEST_DEVICE") == "cuda" else "1")

# If colorama is installed, Numba colors the errors by which it distinguishes function types: about 3 % of the time to
# compile.
os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")

# Tests use no tuned settings of the user: neither in this process (see `nothing_tuned`) nor in processes they start.
os.environ["MXPEAK_TUNED"] = "no"

import numpy as np
import pytest

from mxpeak.errors import ResourceError
from mxpeak.kernels.choose import open_device
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.reference.kernels import ReferenceKernels
from mxpeak.library.norms import prepare as norm_arguments
from mxpeak.perf.host import one_core_each
from mxpeak.runtime import calls


def imports_torch(file: Path) -> bool:
    """Return whether a test file imports PyTorch at module level, directly or through tests.support."""
    text = file.read_text(encoding="utf-8")
    if re.search(r"^(import|from) (torch|mxpeak\.kernels\.torch)\b", text, re.MULTILINE):
        return True
    used = re.findall(r"^from (tests\.support[\w.]*) import (\w+)", text, re.MULTILINE)
    paths = (TESTS.parent.joinpath(*f"{module}.{name}".split(".")[:depth]) for module, name in used for depth in (3, 4))
    return any(path.with_suffix(".py").exists() and imports_torch(path.with_suffix(".py")) for path in paths)


TESTS = Path(__file__).parent
HAS_TORCH = find_spec("torch") is not None
#: Without PyTorch, pytest does not collect the tests that need it, and prints their number.
collect_ignore = [] if HAS_TORCH else [str(file) for file in TESTS.rglob("test_*.py") if imports_torch(file)]


def pytest_report_header() -> str:
    """Print how many test files are not collected without PyTorch."""
    return "" if HAS_TORCH else f"PyTorch is not installed: {len(collect_ignore)} test files are not collected"


def pytest_configure() -> None:
    """Check TEST_DEVICE: with `cuda` the tests of the torch backend run on a GPU, and stop if there is none."""
    # Garbage collection at the default rate costs a sixth of the time to load all tests, and up to a tenth of the run.
    gc.set_threshold(50_000)
    where = os.environ.get("TEST_DEVICE", "cpu")
    if where not in ("cpu", "cuda"):
        raise pytest.UsageError(f"TEST_DEVICE={where}: tests run on cpu or cuda")
    if where == "cuda":
        try:
            open_device("cuda")
        except ResourceError as error:
            raise pytest.UsageError(f"TEST_DEVICE=cuda: {error}; unset it to test on the CPU") from error


def pytest_collection() -> None:
    """Run an empty Hypothesis test now: the first one collects garbage, which is fast as long as few objects exist."""
    with suppress(ImportError):  # the tests on a GPU do not need it
        import hypothesis

        hypothesis.settings(database=None)(hypothesis.given(hypothesis.strategies.none())(lambda _: None))()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print failures on a GPU at once: `benchmarks/gpu.sh` may end the tests before their report."""
    if os.environ.get("TEST_DEVICE") == "cuda" and report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\n{report.nodeid}\n{report.longreprtext[-3000:]}", flush=True)


#: The order of folders. First: compilers, which use the cores while the workers load, tests of accidents, which mostly
#: wait, and tests that need few host kernels. Then: tests that use all cores, with MPI in between, because its ranks
#: wait. Last: short files, so that all workers end at about the same time.
FIRST = ("triton", "faults", "comm", "queues", "perf", "layout", "golden")
THEN = ("contract", "solvers", "bench", "mpi", "library")
AT_THE_END = ("runtime", "house", "cli", "")  # the empty name is for all other folders
#: Folders that one worker runs completely: operations of PyTorch in `queues` load half of its compiler, all tests in
#: `mpi` share MPI ranks, and tests in `faults` wait for time to pass.
WHOLE = ("queues", "mpi", "faults")


def group(file: Path) -> str:
    """Return the unit that one worker runs: a file, a folder, or the files that compile the same kernels."""
    if file.parent.name in WHOLE:
        return file.parent.name
    alike = re.match(r"test_(norm|sparse)", file.name) if file.parent.name == "contract" else None
    return str(file.parent / alike[0]) if alike else str(file)


def turn(file: Path) -> int:
    """Return the position of a file in the order of folders."""
    order = (*FIRST, *THEN, *AT_THE_END)
    return order.index(file.parent.name if file.parent.name in order else "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests by the order of their folders."""
    items.sort(key=lambda item: turn(item.path))


def pytest_collection_finish() -> None:
    """Exclude all loaded objects from garbage collection.

    Also store the number of usable cores in the library now, because virtual ranks are bound to one core.
    """
    norm_arguments.cores()
    calls._cores()
    gc.freeze()
    atexit.register(gc.unfreeze)  # restores freeing at exit, without which Triton prints complaints


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_xdist_auto_num_workers() -> int | None:
    """Use one worker more than cores, because some workers wait for processes that they have started."""
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else len(one_core_each()) + 1


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Assign whole groups to workers. The groups of xdist are suffixes of test names, which pytest 9.2 removes."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(Path(nodeid.split("::")[0]))

    return ByGroup(config, log)


@pytest.fixture(autouse=True)
def nothing_tuned(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test an empty folder of tuned settings."""
    folder = tmp_path_factory.getbasetemp() / "tuned" / os.urandom(8).hex()
    monkeypatch.setattr("mxpeak.runtime.tuned.store_folder", lambda: folder)
    return folder


@pytest.fixture(autouse=True)
def torch_alone() -> None:
    """Make PyTorch compute with one thread after a test that changed this: threads of its pool spin while they wait.

    Kernels for more threads set their own number.
    """
    if "torch" in sys.modules and (torch := sys.modules["torch"]).get_num_threads() > 1:
        torch.set_num_threads(1)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20261121)


@pytest.fixture(params=["host", "host with 3 threads"])
def host(request: pytest.FixtureRequest) -> HostKernels:
    """Return the host kernels, whose new arrays are filled with NaN."""
    return HostKernels(1 if request.param == "host" else 3, poison=True)


@pytest.fixture
def reference() -> ReferenceKernels:
    return ReferenceKernels()

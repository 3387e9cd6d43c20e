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

# Triton's kernels are interpreted on the CPU and compiled on a GPU, unless whoever starts the tests says otherwise: it
# is read when they are decorated, so before anything imports them.
os.environ.setdefault("TRITON_INTERPRET", "0" if os.environ.get("TEST_DEVICE") == "cuda" else "1")

# Where colorama is installed, Numba paints the errors by which it tells forms of a function apart: some 3 % of the time
# that it takes to compile.
os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")

# What a user has tuned is no part of what is tested: not here, see `nothing_tuned`, and in no process that tests start.
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
    """Return whether a test imports PyTorch at its top, itself or through tests.support."""
    text = file.read_text(encoding="utf-8")
    if re.search(r"^(import|from) (torch|mxpeak\.kernels\.torch)\b", text, re.MULTILINE):
        return True
    used = re.findall(r"^from (tests\.support[\w.]*) import (\w+)", text, re.MULTILINE)
    paths = (TESTS.parent.joinpath(*f"{module}.{name}".split(".")[:depth]) for module, name in used for depth in (3, 4))
    return any(path.with_suffix(".py").exists() and imports_torch(path.with_suffix(".py")) for path in paths)


TESTS = Path(__file__).parent
HAS_TORCH = find_spec("torch") is not None
#: A light installation has no PyTorch: pytest does not collect the tests that need it, and prints so.
collect_ignore = [] if HAS_TORCH else [str(file) for file in TESTS.rglob("test_*.py") if imports_torch(file)]


def pytest_report_header() -> str:
    """Print which tests a light installation leaves out."""
    return "" if HAS_TORCH else f"PyTorch is not installed: {len(collect_ignore)} test files are not collected"


def pytest_configure() -> None:
    """With TEST_DEVICE=cuda the torch backend is tested on a GPU: tests do not begin where there is none."""
    # Garbage collection as often as by default costs a sixth of loading all tests, and up to a tenth of running them.
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
    """Before its first test Hypothesis looks through all there is for garbage: it does that while there is little."""
    with suppress(ImportError):  # what is tested on a GPU does not need it
        import hypothesis

        hypothesis.settings(database=None)(hypothesis.given(hypothesis.strategies.none())(lambda _: None))()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """On a GPU what failed is told at once: `benchmarks/gpu.sh` may end the tests before their report."""
    if os.environ.get("TEST_DEVICE") == "cuda" and report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\n{report.nodeid}\n{report.longreprtext[-3000:]}", flush=True)


#: Folders in turn: the compilers first, which fill the cores while the workers load, and beside them accidents, which
#: mostly wait, and what needs few of the host's kernels; then what fills the cores, with MPI's ranks in between, whose
#: waiting costs least there; and short files at the end, so that all workers end together.
FIRST = ("triton", "faults", "comm", "queues", "perf", "layout", "golden")
THEN = ("contract", "solvers", "bench", "mpi", "library")
AT_THE_END = ("runtime", "house", "cli", "")  # the empty one stands for all that are not named
#: Folders that one worker takes whole: operations of PyTorch in `queues` load half of its compiler, ranks of MPI stand
#: for all of `mpi`, and accidents wait for time to pass, one after the other.
WHOLE = ("queues", "mpi", "faults")


def group(file: Path) -> str:
    """What one worker takes together: a file, a whole folder, or files that compile the same kernels."""
    if file.parent.name in WHOLE:
        return file.parent.name
    alike = re.match(r"test_(norm|sparse)", file.name) if file.parent.name == "contract" else None
    return str(file.parent / alike[0]) if alike else str(file)


def turn(file: Path) -> int:
    """When a file's turn comes."""
    order = (*FIRST, *THEN, *AT_THE_END)
    return order.index(file.parent.name if file.parent.name in order else "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in turn: workers take a group when they have done with one."""
    items.sort(key=lambda item: turn(item.path))


def pytest_collection_finish() -> None:
    """What has been loaded by now stays: it need not be looked through for garbage again and again.

    The library remembers how many cores it may use: it asks now, for virtual ranks are bound to one.
    """
    norm_arguments.cores()
    calls._cores()
    gc.freeze()
    atexit.register(gc.unfreeze)  # at exit all is freed as usual, or Triton complains of what stays


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_xdist_auto_num_workers() -> int | None:
    """One worker more than there are cores, for some wait for processes that they have started."""
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else len(one_core_each()) + 1


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Groups go to workers whole.  xdist's own groups are marks that it writes into names, which pytest 9.2 undoes."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(Path(nodeid.split("::")[0]))

    return ByGroup(config, log)


@pytest.fixture(autouse=True)
def nothing_tuned(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for tuned settings, of each test."""
    folder = tmp_path_factory.getbasetemp() / "tuned" / os.urandom(8).hex()
    monkeypatch.setattr("mxpeak.runtime.tuned.store_folder", lambda: folder)
    return folder


@pytest.fixture(autouse=True)
def torch_alone() -> None:
    """PyTorch computes with one thread, as other tests may have left it or not: those of a pool spin while they wait.

    Kernels that are made for more threads tell it so.
    """
    if "torch" in sys.modules and (torch := sys.modules["torch"]).get_num_threads() > 1:
        torch.set_num_threads(1)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20261121)


@pytest.fixture(params=["host", "host with 3 threads"])
def host(request: pytest.FixtureRequest) -> HostKernels:
    """The host kernels, whose new arrays are full of NaN."""
    return HostKernels(1 if request.param == "host" else 3, poison=True)


@pytest.fixture
def reference() -> ReferenceKernels:
    return ReferenceKernels()

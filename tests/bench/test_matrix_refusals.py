"""Test the refusals of HPG-MxP on a matrix from a file, and the planned memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from mxpeak.bench.hpg_mxp import input
from mxpeak.bench.hpg_mxp import run as bench
from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.bench.hpg_mxp.input import FILLING_BYTES, MatrixFile, filled_entries
from mxpeak.bench.stencil_sizes import HierarchySize as Held
from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.solo import Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.distributed.halo import localized
from mxpeak.distributed.rows import distribute
from mxpeak.errors import ResourceError, UsageError
from mxpeak.kernels.host.kernels import HostKernels
from tests.support.own_matrices import random_matrix, tridiagonal, write

Array = np.ndarray[Any, np.dtype[Any]]


def refused(ranks: int, config: HpgMxpConfig, error: type[Exception], says: str, action: Callable[..., Any]) -> None:
    """Check that every rank raises the same error."""

    def body(comm: Communicator) -> str:
        with pytest.raises(error, match=says) as caught:
            action(config, comm)
        return str(caught.value)

    assert len(set(run_ranks(ranks, body) if ranks > 1 else [body(Solo())])) == 1


@pytest.mark.parametrize(
    ("values", "says"),
    [({name: 8}, f"--matrix A.mtx conflicts with --{name} 8") for name in ("nx", "ny", "nz", "npx", "npy", "npz")]
    + [
        ({"nonsymmetric": True}, "--matrix A.mtx conflicts with --nonsymmetric"),
        ({"mg_precision": ("fp32",) * 4}, "has 4 formats for 1 level"),
        ({"precision": "fp8"}, "--mode explore"),
    ],
)
def test_what_contradicts_a_file_is_named_with_it(values: dict[str, Any], says: str) -> None:
    refused(2, HpgMxpConfig(matrix="A.mtx", threads=1, **values), UsageError, says, bench.run)


BANNER = "%%MatrixMarket matrix coordinate real general\n"
BAD_FILES = {
    "no banner": ("hello", "not a Matrix Market banner"),
    "dense": ("%%MatrixMarket matrix array real general\n1 1\n1\n", "dense"),
    "rectangular": (BANNER + "2 3 1\n1 1 1\n", "2x3"),
    "complex": ("%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1 0\n", "complex"),
    "empty row": (BANNER + "3 3 2\n1 1 1\n3 3 1\n", "row 2 has no entries"),
    "no diagonal": (BANNER + "2 2 2\n1 2 1\n2 1 1\n", "2 of 2 diagonal entries"),
    "NaN": (BANNER + "2 2 2\n1 1 1\n2 2 nan\n", "nan"),
    "few rows": (BANNER + "1 1 1\n1 1 1\n", "has 1 rows for 3 ranks"),
    "zero sums": (BANNER + "3 3 6\n1 1 .1\n1 2 -.1\n2 2 .3\n2 3 -.3\n3 3 .7\n3 1 -.7\n", "singular"),
    "too large": (BANNER + "3 3 3\n1 1 1e200\n2 2 1e200\n3 3 1e200\n", "scale the matrix"),
    "overflow": (BANNER + "3 3 4\n1 1 1.5e308\n1 2 1.5e308\n2 2 1\n3 3 1\n", "scale the matrix"),
    "too small": (BANNER + "3 3 3\n1 1 1e-200\n2 2 1e-200\n3 3 1e-200\n", "scale the matrix"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_on_every_rank(tmp_path: Path, name: str) -> None:
    text, says = BAD_FILES[name]
    path = tmp_path / "A.mtx"
    path.write_text(text)
    config = HpgMxpConfig(matrix=str(path), threads=1)
    refused(3, config, UsageError, says, bench.run)
    refused(3, config, UsageError, says, bench.dry_run)


def test_a_missing_file_and_a_folder_are_refused_on_every_rank(tmp_path: Path) -> None:
    refused(2, HpgMxpConfig(matrix=str(tmp_path / "B.mtx"), threads=1), UsageError, "does not exist", bench.run)
    refused(2, HpgMxpConfig(matrix=str(tmp_path), threads=1), UsageError, "mxpeak cannot read", bench.run)


def test_a_matrix_that_does_not_fit_is_refused_with_the_arithmetic(tmp_path: Path) -> None:
    path = write(tmp_path, tridiagonal(500))
    config, typed = HpgMxpConfig(matrix=path, mem="100kB", threads=1), {"mem": "flag"}
    says = "A.mtx with 500 rows and 1498 entries needs matrix .* making .* --mem"
    refused(2, config, ResourceError, says, lambda config, comm: bench.run(config, comm, origins=typed))
    text = bench.dry_run(config, Solo(), typed).text
    assert "does not fit" in text


BIDIAGONAL, SCATTERED = tridiagonal(20_000, 2.5, -1.0, 0.0), random_matrix(300, 0.2, 4)


@pytest.mark.parametrize("A", [BIDIAGONAL, SCATTERED], ids=["bidiagonal", "scattered"])
def test_filling_up_a_pattern_takes_no_more_memory_than_is_planned_for(A: Any) -> None:
    """The peak includes the block of the matrix on a rank: columns of 8 bytes, values of 8 bytes, and row pointers."""
    A = sp.csr_array(A)
    A.eliminate_zeros()
    kernels = HostKernels(1).sparse

    def fill() -> int:
        block = distribute(Solo(), A)
        rows, _ = localized(kernels, Solo(), block)
        return int(rows.indices.size)

    filled, nnz = fill(), A.nnz
    tracemalloc.start()
    try:
        fill()
        peak = tracemalloc.get_traced_memory()[1] + A.data.nbytes  # other ranks also receive it
    finally:
        tracemalloc.stop()
    assert filled == filled_entries(A) > nnz
    assert peak <= FILLING_BYTES * nnz
    file = MatrixFile("A.mtx", A.shape[0], nnz, filled, nonsymmetric=True)
    parts = file.memory_need([Held((8,), 8)])
    assert parts["matrix"] == 12 * filled
    assert parts["total"] >= parts["filling"] >= peak


def test_a_symmetric_pattern_of_zeros_and_others_is_not_filled_up() -> None:
    A = sp.csr_array(tridiagonal(9, 2.5, -1.0, -0.5))
    A.data[A.data == -0.5] = 0.0  # zeros are stored like other values
    assert filled_entries(A) == A.nnz
    assert MatrixFile("A.mtx", 9, A.nnz, A.nnz, nonsymmetric=True).memory_need([Held((8,), 8)])["filling"] == 0


def test_a_dry_run_tells_rows_entries_and_memory(tmp_path: Path) -> None:
    text = bench.dry_run(HpgMxpConfig(matrix=write(tmp_path, tridiagonal(50)), storage="sell"), Solo()).text
    assert "sell: A.mtx  ranks 1: 50 rows, 148 entries; matrices " in text
    assert "matrix:" in text, "the rule that it breaks"
    assert "not fit" not in text


def test_reading_that_takes_too_much_memory_is_a_matter_of_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, ranks: int) -> Any:
        raise MemoryError

    monkeypatch.setattr(input, "_read", full)
    refused(2, HpgMxpConfig(matrix="A.mtx", threads=1), ResourceError, "more memory", bench.run)


def test_rows_without_entries_are_found_before_there_is_memory_for_them(tmp_path: Path) -> None:
    """The row pointers alone would need 8 PB."""
    path = tmp_path / "A.mtx"
    path.write_text(BANNER + f"{10**15} {10**15} 1\n1 1 1\n")
    refused(2, HpgMxpConfig(matrix=str(path), threads=1), UsageError, "row 2 has no entries", bench.run)

"""Matrix Market files: what is read, and what each mistake in one is told as."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from mxpeak.bench.matrix_market import read_matrix
from mxpeak.errors import UsageError

REAL = "%%MatrixMarket matrix coordinate real general\n"


def write(folder: Path, text: str, name: str = "A.mtx") -> Path:
    path = folder / name
    path.write_text(text)
    return path


# --- what is read --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("banner", "entries", "dense"),
    [
        ("real general", "1 1 2\n1 2 -0.5\n2 2 3e2\n", [[2, -0.5], [0, 300]]),
        ("double general", "2 2 1.25\n1 1 2\n2 1 7\n", [[2, 0], [7, 1.25]]),
        ("integer general", "1 1 2\n1 2 -1\n2 2 3\n", [[2, -1], [0, 3]]),
        ("pattern general", "1 1\n1 2\n2 2\n", [[1, 1], [0, 1]]),
        ("real symmetric", "1 1 2\n2 1 -1\n2 2 3\n", [[2, -1], [-1, 3]]),
        ("pattern symmetric", "1 1\n2 1\n2 2\n", [[1, 1], [1, 1]]),
    ],
)
def test_every_field_and_symmetry_is_read(tmp_path: Path, banner: str, entries: str, dense: object) -> None:
    path = write(tmp_path, f"%%MatrixMarket matrix coordinate {banner}\n% by hand\n\n2 2 3\n{entries}")
    A = read_matrix(path)
    assert A.format == "csr"
    assert A.dtype == np.float64
    assert np.array_equal(A.toarray(), dense)


def test_the_banners_words_are_read_in_any_case_and_paths_as_text(tmp_path: Path) -> None:
    path = write(tmp_path, "%%MatrixMarket MATRIX Coordinate Real GENERAL\n1 1 1\n1 1 5\n")
    assert read_matrix(str(path)).toarray().tolist() == [[5]]


def test_a_compressed_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "A.mtx.gz"
    path.write_bytes(gzip.compress((REAL + "1 1 1\n1 1 5\n").encode()))
    assert read_matrix(path).toarray().tolist() == [[5]]


def test_entries_in_one_place_are_summed(tmp_path: Path) -> None:
    A = read_matrix(write(tmp_path, REAL + "1 1 3\n1 1 5\n1 1 -2\n1 1 1\n"))
    assert A.nnz == 1
    assert A[0, 0] == 4


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 12), seed=st.integers(0, 2**31), symmetric=st.booleans())
def test_what_scipy_writes_is_read_back_exactly(tmp_path_factory: pytest.TempPathFactory, n: int, seed: int,
                                                symmetric: bool) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random((n, n)) < 0.4, rng.standard_normal((n, n)), 0.0) + np.diag(np.full(n, 9.0))
    dense = dense + dense.T if symmetric else dense
    path = tmp_path_factory.mktemp("mtx") / "A.mtx"
    scipy.io.mmwrite(path, sparse.coo_array(dense), precision=17)
    assert np.array_equal(read_matrix(path).toarray(), dense)


# --- what is refused -----------------------------------------------------------------------------------------------

MISTAKES = {
    "no banner": ("hello\n1 1 1\n1 1 1\n", "line 1: 'hello' is no Matrix Market banner"),
    "empty file": ("", "line 1: '' is no Matrix Market banner"),
    "short banner": ("%%MatrixMarket matrix coordinate\n1 1 1\n", "line 1: .* should be %%MatrixMarket matrix"),
    "array": ("%%MatrixMarket matrix array real general\n1 1\n1\n", "line 1: the format is array, a dense matrix"),
    "complex": ("%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1 0\n", "line 1: the field is complex"),
    "hermitian": ("%%MatrixMarket matrix coordinate real hermitian\n1 1 1\n1 1 1\n", "line 1: the symmetry is hermit"),
    "only a banner": (REAL + "% nothing more\n", "it ends on line 2, before the sizes"),
    "two sizes": (REAL + "2 2\n1 1 1\n", "line 2: '2 2' should be three sizes"),
    "sizes in words": (REAL + "two 2 2\n1 1 1\n", "line 2: 'two 2 2' should be three sizes"),
    "rectangular": (REAL + "2 3 1\n1 1 1\n", "line 2: the matrix is 2x3, but only square ones"),
    "0x0": (REAL + "0 0 0\n", "line 2: the matrix is empty"),
    "truncated": (REAL + "2 2 2\n1 1 1\n", "it ends after 1 of the 2 entries that line 2 says"),
    "too long": (REAL + "1 1 1\n1 1 1\n1 1 2\n", "line 4: '1 1 2' is entry 2, but line 2 says that there are 1"),
    "row outside": (REAL + "2 2 2\n1 1 1\n3 2 1\n", "line 4: '3 2 1' is in row 3, but the rows are 1 to 2"),
    "counted from 0": (REAL + "2 2 2\n0 1 1\n2 2 1\n", "line 3: '0 1 1' is in row 0, but the rows are 1 to 2"),
    "column outside": (REAL + "2 2 2\n1 5 1\n2 2 1\n", "line 3: '1 5 1' is in column 5"),
    "no number": (REAL + "1 1 1\n1 1 x\n", "line 3: '1 1 x' has no real number for its value"),
    "no value": (REAL + "1 1 1\n1 1\n", "line 3: '1 1' has 2 numbers, but an entry of a real matrix has 3"),
    "NaN": (REAL + "2 2 2\n1 1 1\n2 2 nan\n", "the entry in row 2, column 2 is nan, one of 1 not finite ones"),
    "Inf": (REAL + "2 2 2\n1 1 -inf\n2 2 1\n", "the entry in row 1, column 1 is -inf"),
    "empty row": (REAL + "3 3 2\n1 1 1\n3 3 1\n", "row 2 has no entries, as have 1 of 3"),
    "no diagonal": (REAL + "2 2 2\n1 2 1\n2 1 1\n", "diagonal entry of row 1 is zero or missing, as are 2 of 2"),
    "zero diagonal": (REAL + "2 2 3\n1 1 1\n2 2 0\n2 1 1\n", "diagonal entry of row 2 is zero or missing, as are 1"),
    "skew": ("%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 1\n2 1 1\n", "of a skew-symmetric matrix all"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_its_file_and_line_or_row(tmp_path: Path, name: str) -> None:
    text, message = MISTAKES[name]
    path = write(tmp_path, text)
    with pytest.raises(UsageError, match=message) as caught:
        read_matrix(path)
    assert str(caught.value).startswith(str(path))


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.mtx: there is no such file"):
        read_matrix(tmp_path / "missing.mtx")


def test_a_folder_and_a_broken_archive_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_matrix(tmp_path)
    path = tmp_path / "A.mtx.gz"
    path.write_bytes(gzip.compress((REAL + "1 1 1\n1 1 5\n").encode())[:-10])
    with pytest.raises(UsageError, match="cannot be read"):
        read_matrix(path)


def test_a_binary_file_is_no_matrix_market_file(tmp_path: Path) -> None:
    path = tmp_path / "A.mtx"
    path.write_bytes(bytes(range(256)) * 20)
    with pytest.raises(UsageError, match="is no Matrix Market banner"):
        read_matrix(path)

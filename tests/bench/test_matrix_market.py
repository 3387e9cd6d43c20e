"""Test which Matrix Market files are read, and the error for each mistake in a file."""

from __future__ import annotations

import gzip
import re
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
INTEGER = REAL.replace("real", "integer")
SKEW = REAL.replace("general", "skew-symmetric")


def write(folder: Path, text: str, name: str = "A.mtx") -> Path:
    path = folder / name
    path.write_text(text)
    return path


# --- accepted files ------------------------------------------------------------------------------------------------


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


def test_entries_at_one_position_are_summed(tmp_path: Path) -> None:
    A = read_matrix(write(tmp_path, REAL + "1 1 3\n1 1 5\n1 1 -2\n1 1 1\n"))
    assert A.nnz == 1
    assert A[0, 0] == 4


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 12), seed=st.integers(0, 2**31), symmetric=st.booleans())
def test_what_scipy_writes_is_read_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, n: int, seed: int, symmetric: bool
) -> None:
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random((n, n)) < 0.4, rng.standard_normal((n, n)), 0.0) + np.diag(np.full(n, 9.0))
    dense = dense + dense.T if symmetric else dense
    path = tmp_path_factory.mktemp("mtx") / "A.mtx"
    scipy.io.mmwrite(path, sparse.coo_array(dense), precision=17)
    assert np.array_equal(read_matrix(path).toarray(), dense)


def defined(text: str, symmetry: str) -> np.ndarray | None:
    """Return the matrix that the lines after the banner define, or None if one of them is wrong."""
    lines = [line.split() for line in text.split("\n")]
    first = next((k for k, words in enumerate(lines) if words and not words[0].startswith("%")), len(lines))
    sizes, entries = lines[first : first + 1], [words for words in lines[first + 1 :] if words]
    whole = re.compile("[0-9]+", re.ASCII)
    if not sizes or len(sizes[0]) != 3 or not all(whole.fullmatch(word) for word in sizes[0]):
        return None
    rows, columns, count = map(int, sizes[0])
    if rows != columns or len(entries) != count or not 0 < rows < 1000:
        return None
    A = np.zeros((rows, rows))
    stored = np.zeros((rows, rows), bool)
    for words in entries:
        if len(words) != 3 or not (whole.fullmatch(words[0]) and whole.fullmatch(words[1])):
            return None
        i, j = int(words[0]), int(words[1])
        if not (1 <= i <= rows and 1 <= j <= rows) or "_" in words[2]:
            return None
        try:
            value = float(words[2])
        except ValueError:
            return None
        for at in {(i - 1, j - 1), (j - 1, i - 1) if symmetry == "symmetric" else (i - 1, j - 1)}:
            A[at] += value
            stored[at] = True
    usable = np.isfinite(A).all() and stored.any(axis=1).all() and A.diagonal().all()
    return A if usable else None


BLANK = st.sampled_from([" ", "  ", "\t", " \t "])
EDIT = st.tuples(
    st.floats(0, 1),  # where, as a part of the text
    st.integers(0, 6),  # how many characters are cut out
    st.sampled_from(
        ["", "", " ", "\n", "\r\n", "\n\n", "%", "-", ".", "e", "d", "x", "1", "7", "nan", "1_0", "\0", "é", "1 1 1\n"]
    ),
)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_corrupted_file_is_read_as_its_lines_define_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Draw blanks, empty lines, comments and line ends of every kind; then delete or replace a part of the text."""
    symmetry = data.draw(st.sampled_from(["general", "symmetric"]))
    n = data.draw(st.integers(1, 4))
    index = st.integers(1, n)
    # Multiples of 1/16, whose sums are exact in any order.
    number = st.integers(-80, 80).map(
        lambda k: data.draw(st.sampled_from(["{}", "{:+}", "{:e}", "{:.8f}"])).format(k / 16)
    )
    entries = [(k, k, "9") for k in range(1, n + 1)] + data.draw(st.lists(st.tuples(index, index, number), max_size=5))
    lines = ["% by hand", "", f"{n} {n} {len(entries)}"][data.draw(st.integers(0, 2)) :]
    for entry in data.draw(st.permutations(entries)):
        lines += [data.draw(BLANK).join(map(str, entry)) + data.draw(st.sampled_from(["", " ", "\t"]))]
        lines += data.draw(st.sampled_from([[], [], [""], [" "]]))
    text = "\n".join(lines) + data.draw(st.sampled_from(["", "\n", " ", "\n\n \n"]))
    for where, cut, new in data.draw(st.lists(EDIT, max_size=2)):
        at = int(where * len(text))
        text = text[:at] + new + text[at + cut :]
    text = re.sub("\r\n?", "\n", text)  # a carriage return alone also ends a line
    wanted = defined(text, symmetry)
    end = data.draw(st.sampled_from(["\n", "\r\n"]))
    path = tmp_path_factory.mktemp("mtx") / data.draw(st.sampled_from(["A.mtx", "A.mtx.gz"]))
    banner = f"%%MatrixMarket matrix coordinate real {symmetry}\n"
    content = (banner + text).replace("\n", end).encode("latin-1")
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    if wanted is None:
        with pytest.raises(UsageError, match=f"^{re.escape(str(path))}"):
            read_matrix(path)
    else:
        assert np.array_equal(read_matrix(path).toarray(), wanted)


# --- refused files -------------------------------------------------------------------------------------------------

MISTAKES = {
    "no banner": ("hello\n1 1 1\n1 1 1\n", "line 1: 'hello' is not a Matrix Market banner"),
    "empty file": ("", "line 1: '' is not a Matrix Market banner"),
    "short banner": ("%%MatrixMarket matrix coordinate\n1 1 1\n", "line 1: .* is not a complete banner"),
    "array": ("%%MatrixMarket matrix array real general\n1 1\n1\n", "line 1: the matrix is dense \\(format array"),
    "complex": ("%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1 0\n", "line 1: the field is complex"),
    "hermitian": ("%%MatrixMarket matrix coordinate real hermitian\n1 1 1\n1 1 1\n", "line 1: the symmetry is hermit"),
    "only a banner": (REAL + "% nothing more\n", "ends on line 2, before the line of sizes"),
    "two sizes": (REAL + "2 2\n1 1 1\n", "line 2: '2 2' is not a line of sizes"),
    "sizes in words": (REAL + "two 2 2\n1 1 1\n", "line 2: 'two 2 2' is not a line of sizes"),
    "rectangular": (REAL + "2 3 1\n1 1 1\n", "line 2: the matrix is 2x3, but a linear system needs a square"),
    "0x0": (REAL + "0 0 0\n", "line 2: the matrix is empty"),
    "truncated": (REAL + "2 2 2\n1 1 1\n", "ends after 1 of the 2 entries that line 2 declares"),
    "too long": (REAL + "1 1 1\n1 1 1\n1 1 2\n", "line 4: '1 1 2' is entry 2, but line 2 declares only 1"),
    "row outside": (
        REAL + "2 2 2\n1 1 1\n3 2 1\n",
        "line 4: '3 2 1' is in row 3, but the rows are numbered from 1 to 2",
    ),
    "counted from 0": (
        REAL + "2 2 2\n0 1 1\n2 2 1\n",
        "line 3: '0 1 1' is in row 0, but the rows are numbered from 1 to 2",
    ),
    "column outside": (REAL + "2 2 2\n1 5 1\n2 2 1\n", "line 3: '1 5 1' is in column 5"),
    "no number": (REAL + "1 1 1\n1 1 x\n", "line 3: '1 1 x' has a value that is not a real number"),
    "no value": (REAL + "1 1 1\n1 1\n", "line 3: '1 1' has 2 numbers, but an entry of a real matrix has 3"),
    "hexadecimal": (REAL + "1 1 1\n1 1 0x10\n", "line 3: '1 1 0x10' has a value that is not a real number"),
    "two points": (REAL + "1 1 1\n1 1 1.5.6\n", "line 3: '1 1 1.5.6' has a value that is not a real number"),
    "Fortran's exponent": (
        REAL + "1 1 1\n1 1 1.5D3\n",
        "line 3: .* that is not a real number; use the letter e in exponents",
    ),
    "words after": (REAL + "1 1 1\n1 1 1 5\n", "line 3: '1 1 1 5' has 4 numbers, but an entry of a real"),
    "comment among entries": (REAL + "1 1 1\n% one\n1 1 1\n", "line 3: '% one' has 2 numbers|use comments only above"),
    "part of an integer": (INTEGER + "1 1 1\n1 1 1.5\n", "has a value that is not an integer"),
    "integer of 65 bits": (INTEGER + "1 1 1\n1 1 9223372036854775808\n", "has a value that is not an integer"),
    "row of 65 bits": (REAL + "1 1 1\n18446744073709551617 1 1\n", "line 3: .* is in row 18446744073709551617"),
    "more rows than memory": (REAL + f"{10**30} {10**30} 1\n1 1 1\n", "row 2 has no entries .one of 9{30} such rows"),
    "size of 5000 digits": (REAL + f"{'9' * 5000} {'9' * 5000} 1\n1 1 1\n", "line 2: .* is not a line of sizes"),
    "row of 5000 digits": (
        REAL + f"2 2 2\n1 1 1\n{'9' * 5000} 2 1\n",
        "line 4: .* is in row 9+…, but the rows are numbered",
    ),
    "value of 5000 digits": (INTEGER + f"1 1 1\n1 1 {'9' * 5000}\n", "line 3: .* has a value that is not an integer"),
    "diagonal of a skew matrix": (
        SKEW + "1 1 1\n1 1 1\n",
        "line 3: '1 1 1' is on the diagonal, which is zero in a skew",
    ),
    "NaN": (
        REAL + "2 2 2\n1 1 1\n2 2 nan\n",
        "the entry in row 2, column 2 is nan .one of 1 entries that are not finite",
    ),
    "Inf": (REAL + "2 2 2\n1 1 -inf\n2 2 1\n", "the entry in row 1, column 1 is -inf"),
    "empty row": (REAL + "3 3 2\n1 1 1\n3 3 1\n", "row 2 has no entries .one of 1 such rows"),
    "no diagonal": (REAL + "2 2 2\n1 2 1\n2 1 1\n", "2 of 2 diagonal entries are zero or missing, the first in row 1"),
    "zero diagonal": (
        REAL + "2 2 3\n1 1 1\n2 2 0\n2 1 1\n",
        "1 of 2 diagonal entries are zero or missing, the first in row 2",
    ),
    "skew": (SKEW + "2 2 1\n2 1 1\n", "in a skew-symmetric matrix, all diagonal entries"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_its_file_and_line_or_row(tmp_path: Path, name: str) -> None:
    text, message = MISTAKES[name]
    path = write(tmp_path, text)
    with pytest.raises(UsageError, match=message) as caught:
        read_matrix(path)
    assert str(caught.value).startswith(str(path))


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.mtx does not exist"):
        read_matrix(tmp_path / "missing.mtx")


def test_a_folder_and_a_broken_archive_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="mxpeak cannot read"):
        read_matrix(tmp_path)
    path = tmp_path / "A.mtx.gz"
    path.write_bytes(gzip.compress((REAL + "1 1 1\n1 1 5\n").encode())[:-10])
    with pytest.raises(UsageError, match="mxpeak cannot read"):
        read_matrix(path)


def test_a_binary_file_is_no_matrix_market_file(tmp_path: Path) -> None:
    path = tmp_path / "A.mtx"
    path.write_bytes(bytes(range(256)) * 20)
    with pytest.raises(UsageError, match="is not a Matrix Market banner"):
        read_matrix(path)

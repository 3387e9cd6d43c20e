"""Read square real sparse matrices from Matrix Market files; errors name the line or the row.

    %%MatrixMarket matrix coordinate real general
    % comments, only here; blank lines anywhere
    rows columns entries
    i j value                       counted from 1; one entry per line; symmetric: on or below the diagonal

NumPy parses every word of every line. (SciPy's reader ends the process if a blank follows the last number, and reads
1.5.6 as 1.5.) If NumPy fails, the lines are read individually to find the error.
"""

from __future__ import annotations

import gzip
import os
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
import scipy.sparse as sparse

from mxpeak.errors import UsageError
from mxpeak.foreign import check_readable
from mxpeak.options import DIGITS, quoted

FIELDS = ("real", "double", "integer", "pattern")
SYMMETRIES = ("general", "symmetric", "skew-symmetric")
#: The error message if each line is valid by itself.
UNLIKE = "its entries cannot be parsed"


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a file: field, symmetry, n, number of entries, and the position of the line with the sizes."""

    field: str
    symmetry: str
    n: int
    entries: int
    line: int


def read_matrix(path: str | Path) -> Any:
    """Read a matrix file (.mtx or .mtx.gz) and return a scipy.sparse.csr_array of fp64; duplicates are summed.

    Raises a UsageError for a matrix that is not square, sparse and real, and for NaN, Inf, empty rows or a zero
    diagonal.
    """
    path = Path(path)
    header = read_header(path)
    entries = parsed(str(path), header, skip=header.line)
    if entries.problem or len(entries.rows) != header.entries:
        raise_mistake(path, header, entries.problem)
    rows, columns, _ = entries.arrays
    if header.n > 2 * len(rows):  # check this before anything with n elements is allocated
        reached = np.unique([rows, columns] if header.symmetry != "general" else rows)
        gaps = np.flatnonzero(reached != np.arange(len(reached)))
        _refuse_empty_row(path, header, int(gaps[0]) if gaps.size else len(reached), header.n - len(reached))
    rows, columns, values = mirrored(header, entries).arrays
    A = sparse.coo_array((values, (rows, columns)), shape=(header.n, header.n)).tocsr()
    _check(path, header, A)
    return A


@dataclass(frozen=True, slots=True)
class MarketEntries:
    """Entries of a file: rows and columns counted from 0, fp64 values, and the error in the entries, if any."""

    rows: Any
    columns: Any
    values: Any
    problem: str = ""

    @property
    def arrays(self) -> tuple[Any, Any, Any]:
        """Return the rows, the columns and the values."""
        return self.rows, self.columns, self.values


def parsed(lines: str | IO[bytes], header: Header, skip: int = 0) -> MarketEntries:
    """Parse the entries after the first `skip` lines of a file, given by its name or as an open stream."""
    index = np.int32 if header.n < 2**31 else np.int64
    kinds: list[tuple[str, Any]] = [("row", index), ("column", index)]
    if header.field != "pattern":
        kinds.append(("value", np.int64 if header.field == "integer" else np.float64))
    problem = ""
    try:
        with warnings.catch_warnings():
            # Ignore the warning about missing data, because the entries are counted afterwards. NumPy 1 accepts 1.5 for
            # the integer 1 with a DeprecationWarning only.
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", DeprecationWarning)
            table = np.loadtxt(lines, np.dtype(kinds), comments=None, skiprows=skip, encoding="latin-1", ndmin=1)
    except (ValueError, OverflowError, OSError, EOFError, zlib.error, DeprecationWarning) as error:
        table, problem = np.empty(0, np.dtype(kinds)), str(error)
    rows, columns = table["row"] - 1, table["column"] - 1
    inside = all(x.min(initial=0) >= 0 and int(x.max(initial=0)) < header.n for x in (rows, columns))
    skew = header.symmetry == "skew-symmetric"
    if not problem and (not inside or (skew and (rows == columns).any())):
        problem = UNLIKE
    values = table["value"].astype(np.float64) if header.field != "pattern" else np.ones(len(table))
    return MarketEntries(rows, columns, values, problem)


def mirrored(header: Header, entries: MarketEntries) -> MarketEntries:
    """Return the entries together with the entries of the other triangle, which a symmetric file omits."""
    if header.symmetry == "general":
        return entries
    rows, columns, values = entries.arrays
    sign = -1.0 if header.symmetry == "skew-symmetric" else 1.0
    off = rows != columns
    values = np.concatenate([values, sign * values[off]])
    return MarketEntries(np.concatenate([rows, columns[off]]), np.concatenate([columns, rows[off]]), values)


def read_header(path: Path) -> Header:
    """Read and check the header of a file."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise UsageError(f"{path} is a pipe or a device, which mxpeak cannot read twice; use a regular file")
    header: Header = _opened(path, lambda lines: _header(path, lines))
    return header


def raise_mistake(path: Path, header: Header, problem: str) -> NoReturn:
    """Raise a UsageError for the first invalid line, or for `problem` if each line is valid by itself."""
    _opened(path, lambda lines: _find_mistake(path, header, lines))
    raise UsageError(
        f"{path} is not a valid Matrix Market file: {problem or UNLIKE}; write it again, for example with "
        "scipy.io.mmwrite"
    )


def _opened(path: Path, use: Any) -> Any:
    """Open the file and return use(file); raise a UsageError if the file cannot be read."""
    open_file = gzip.open if path.suffix == ".gz" else open
    try:
        check_readable(path)
        with open_file(path, "rt", encoding="latin-1") as file:
            return use(file)
    except FileNotFoundError:
        raise UsageError(
            f"{path} does not exist in {path.absolute().parent}; use the path of an existing file"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(
            f"mxpeak cannot read {path}: {getattr(error, 'strerror', None) or error}; use a file that it can read"
        ) from None


def _header(path: Path, file: IO[str]) -> Header:
    """Parse and check the banner and the line with the sizes."""
    field, symmetry = _banner(path, file.readline(1024))
    line, number = "%", 1
    while line.lstrip().startswith("%") or (line and not line.strip()):
        line, number = file.readline(), number + 1
    words = line.split()
    if not line:
        raise UsageError(
            f"{path} ends on line {number - 1}, before the line of sizes; download or write the file again"
        )
    if len(words) != 3 or not all(word.isdecimal() and len(word) <= DIGITS for word in words):
        raise UsageError(
            f"{path}, line {number}: {_shown(line)} is not a line of sizes; use three integers for rows, "
            "columns and entries, such as 100 100 460"
        )
    rows, columns, entries = map(int, words)
    if rows != columns:
        raise UsageError(
            f"{path}, line {number}: the matrix is {rows}x{columns}, but a linear system needs a square "
            "matrix; use a file with a square matrix"
        )
    if rows == 0:
        raise UsageError(f"{path}, line {number}: the matrix is empty (0x0); use a matrix with at least one row")
    return Header(field, symmetry, rows, entries, number)


def _banner(path: Path, line: str) -> tuple[str, str]:
    words = line.lower().split()
    if line.split(maxsplit=1)[:1] != ["%%MatrixMarket"]:
        raise UsageError(
            f"{path}, line 1: {_shown(line)} is not a Matrix Market banner for a sparse matrix; use a file "
            "that begins with %%MatrixMarket matrix coordinate real general, such as one from "
            "scipy.io.mmwrite"
        )
    if len(words) != 5 or words[1] != "matrix":
        raise UsageError(
            f"{path}, line 1: {_shown(line)} is not a complete banner; use %%MatrixMarket matrix coordinate "
            "FIELD SYMMETRY"
        )
    if words[2] != "coordinate":
        raise UsageError(
            f"{path}, line 1: the matrix is dense (format {words[2]}); use mxpeak.solve, or write a sparse "
            "matrix with scipy.io.mmwrite(file, scipy.sparse.coo_array(A))"
        )
    advice = "use mxpeak.gmres on the matrix from scipy.io.mmread, or the real matrix [[Re A, -Im A], [Im A, Re A]]"
    _check_kind(path, words[3], FIELDS, "field", advice)
    _check_kind(path, words[4], SYMMETRIES, "symmetry", "use a file that is written as general")
    return words[3], words[4]


def _check_kind(path: Path, word: str, kinds: tuple[str, ...], what: str, instead: str) -> None:
    if word not in kinds:
        raise UsageError(f"{path}, line 1: the {what} is {word}, but mxpeak reads only {', '.join(kinds)}; {instead}")


def _shown(line: str) -> str:
    return quoted(line.rstrip("\n"))


def _find_mistake(path: Path, header: Header, file: IO[str]) -> None:
    """Raise a UsageError for the first invalid line, if there is one."""
    count = 0
    for number, line in enumerate(file, start=1):
        words = line.split()
        if number <= header.line or not words:
            continue
        count += 1
        where = f"{path}, line {number}: {_shown(line)}"
        if count > header.entries:
            raise UsageError(
                f"{where} is entry {count}, but line {header.line} declares only {header.entries}; remove the "
                "extra entries, or correct that line"
            )
        for problem in _problems(words, header):
            raise UsageError(f"{where} {problem}")
    if count < header.entries:
        raise UsageError(
            f"{path} ends after {count} of the {header.entries} entries that line {header.line} declares; "
            "download or write the file again"
        )


def _problems(words: list[str], header: Header) -> Iterator[str]:
    """Yield a message for each error in the words of one entry."""
    wanted = 2 if header.field == "pattern" else 3
    if len(words) != wanted:
        yield f"has {len(words)} numbers, but an entry of a {header.field} matrix has {wanted}"
    for name, word in zip(("row", "column"), words):
        if not word.isdecimal():
            advice = "; use comments only above the line of sizes" * ("%" in word)
            yield f"has a {name} that is not an integer{advice}"
        elif len(word) > DIGITS or not 1 <= int(word) <= header.n:
            yield f"is in {name} {quoted(word)[1:-1]}, but the {name}s are numbered from 1 to {header.n}"
    if wanted == 3 and not _is_number(words[2], whole=header.field == "integer"):
        fortran = "d" in words[2].lower() and _is_number(words[2].lower().replace("d", "e"), whole=False)
        number = "an integer" if header.field == "integer" else "a real number"
        yield f"has a value that is not {number}{'; use the letter e in exponents' * fortran}"
    if header.symmetry == "skew-symmetric" and words[0] == words[1]:
        yield "is on the diagonal, which is zero in a skew-symmetric matrix; use the symmetry general"


def _is_number(word: str, *, whole: bool) -> bool:
    """Return whether NumPy can read a word as a float or, if `whole`, as a 64-bit integer.

    Underscores are not allowed.
    """
    try:
        return "_" not in word and (-(2**63) <= int(word) < 2**63 if whole else isinstance(float(word), float))
    except ValueError:
        return False


def _check(path: Path, header: Header, A: Any) -> None:
    """Raise a UsageError for a matrix that a solver cannot use; rows are counted from 1, as in the file."""
    finite = np.isfinite(A.data)
    if not finite.all():
        k = int(np.argmin(finite))
        i = int(np.searchsorted(A.indptr, k, side="right"))
        bad = A.nnz - int(finite.sum())
        raise UsageError(
            f"{path}: the entry in row {i}, column {A.indices[k] + 1} is {A.data[k]} (one of {bad} entries "
            "that are not finite); use a file with finite entries"
        )
    empty = np.flatnonzero(np.diff(A.indptr) == 0)
    if empty.size:
        _refuse_empty_row(path, header, empty[0], empty.size)
    zeros = np.flatnonzero(A.diagonal() == 0)
    if zeros.size:
        skew = header.symmetry == "skew-symmetric"
        always = " (in a skew-symmetric matrix, all diagonal entries are zero)" * skew
        raise UsageError(
            f"{path}: {zeros.size} of {header.n} diagonal entries are zero or missing, the first in row "
            f"{zeros[0] + 1}, but Gauss-Seidel divides by them{always}; reorder the rows with "
            "scipy.sparse.csgraph.maximum_bipartite_matching, or use mxpeak.gmres on the matrix from "
            "scipy.io.mmread"
        )


def _refuse_empty_row(path: Path, header: Header, row: int, count: int) -> None:
    raise UsageError(
        f"{path}: row {row + 1} has no entries (one of {count} such rows), so the matrix is singular; "
        "remove these unknowns, or add 1 on their diagonal"
    )

"""Read the rows of each rank from a Matrix Market file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sparse

from mxpeak.bench.matrix_market import Header, MarketEntries, mirrored, parsed, raise_mistake, read_header
from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import run_on_root, validate_on_all
from mxpeak.distributed.csr import Csr
from mxpeak.distributed.rows import at_their_owners
from mxpeak.errors import UsageError
from mxpeak.library.communicators import communicator


def rows_from_file(path: str | Path, comm: Any = "world") -> Csr:
    """Read the rows of this rank from a Matrix Market file.

    Of R ranks, rank r receives the rows n*r//R to n*(r+1)//R - 1, each with all n columns. Each rank reads and parses
    an equal share of the file. All ranks must call this function.

    Parameters
    ----------
    path : str or Path
        Uncompressed Matrix Market file (.mtx) that all ranks can read.
    comm : communicator, "world" or None, default "world"
        Communicator of the ranks that share the rows. Use None to read the whole matrix.

    Returns
    -------
    csr_array
        Rows of this rank in fp64, as input for `mxpeak.gmres(rows, b_rows, comm=comm)`.

    Raises
    ------
    UsageError
        mxpeak cannot read the file, or the file does not contain a valid matrix.

    Examples
    --------
    >>> import mxpeak as mx, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "A.mtx")
    >>> _ = path.write_text("%%MatrixMarket matrix coordinate real symmetric\\n2 2 3\\n1 1 2\\n2 1 1\\n2 2 4\\n")
    >>> mx.rows_from_file(path, comm=None).toarray()
    array([[2., 1.],
           [1., 4.]])
    """
    ranks, file = communicator(comm), Path(path)
    header = run_on_root(ranks, lambda: _header(file))
    entries = validate_on_all(ranks, lambda: _finite(file, parsed(io.BytesIO(_share(file, header, ranks)), header)))
    counts = ranks.bcast_object(ranks.gather_objects((len(entries.rows), entries.problem)))
    problem = next((problem for _, problem in counts if problem), "")
    if problem or sum(count for count, _ in counts) != header.entries:
        run_on_root(ranks, lambda: raise_mistake(file, header, problem))
    starts = [header.n * rank // ranks.size for rank in range(ranks.size + 1)]
    rows, columns, values = at_their_owners(ranks, starts, *mirrored(header, entries).arrays)
    first, last = starts[ranks.rank : ranks.rank + 2]
    positions = rows.astype(np.int64) - first, columns.astype(np.int64)
    return sparse.coo_array((values, positions), shape=(last - first, header.n)).tocsr()


def _header(path: Path) -> Header:
    if path.suffix != ".mtx":
        raise UsageError(
            f"{path} is not an uncompressed Matrix Market file (.mtx), which ranks can read in parts; run "
            "gunzip on a compressed file, or use scipy.io.mmwrite to write one"
        )
    return read_header(path)


def _begin(path: Path, header: Header) -> int:
    """Return the position in bytes of the first byte after the header."""
    with path.open("rt", encoding="latin-1", newline="") as file:  # one byte per character, and unchanged line ends
        return sum(len(file.readline()) for _ in range(header.line))


def _finite(path: Path, entries: MarketEntries) -> MarketEntries:
    """Return the entries; raise a UsageError if a value is not finite."""
    bad = np.flatnonzero(~np.isfinite(entries.values))
    if bad.size:
        row, column, value = (array[bad[0]] for array in entries.arrays)
        raise UsageError(
            f"{path}: the entry in row {row + 1}, column {column + 1} is {value}, which is not finite; use a "
            "file with finite entries"
        )
    return entries


def _share(path: Path, header: Header, ranks: Communicator) -> bytes:
    """Read the lines of entries that begin in this rank's part of the file, and return them as bytes."""
    try:
        with path.open("rb") as file:
            begin, size = _begin(path, header), path.stat().st_size
            low, high = (begin + (size - begin) * rank // ranks.size for rank in (ranks.rank, ranks.rank + 1))
            file.seek(low - (low > begin))
            if low > begin:
                file.readline()  # skip the end of a line that begins in the previous share
            lines = file.read(max(0, high - file.tell()))
            return lines if lines.endswith(b"\n") or not lines else lines + file.readline()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; use a file that all ranks can read") from None

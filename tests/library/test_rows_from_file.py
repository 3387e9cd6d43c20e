"""Compare the rows of `mxpeak.rows_from_file` on every rank with the whole Matrix Market file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sparse

import mxpeak as mx
from mxpeak.bench.matrix_market import read_matrix
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.errors import UsageError
from tests.support.sparse_ranks import even
from tests.support.sparse_systems import flow, irregular, poisson, reached, vector

#: Entries below a header of n = 3: a pattern, blank lines, no newline at the end, and duplicate entries.
TEXTS = {
    "symmetric": "real symmetric\n3 3 5\n1 1 2.5\n2 1 -1\n2 2 2\n3 2 -1e-3\n3 3 2\n",
    "skew-symmetric, and a comment": "real skew-symmetric\n% by hand\n3 3 2\n2 1 4\n3 2 -7\n",
    "pattern, blank lines, no newline": "pattern general\n3 3 4\n1 1\n\n2 2\n3 3\n\n3 1",
    "twice": "integer general\n3 3 5\n1 1 2\n1 1 3\n2 2 1\n3 3 1\n3 1 -12345678901234\n",
}


def read_on(ranks: int, path: Path) -> list[Any]:
    return run_ranks(ranks, lambda comm: mx.rows_from_file(path, comm=comm))


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("name", ["flow", "irregular", "poisson"])
def test_ranks_read_their_rows(name: str, ranks: int, tmp_path: Path) -> None:
    A = {"flow": flow(7), "irregular": irregular(80), "poisson": poisson(6, 5)}[name]
    scipy.io.mmwrite(tmp_path / "A.mtx", sparse.coo_array(A), precision=17)
    starts = even(A.shape[0], ranks)
    for rank, rows in enumerate(read_on(ranks, tmp_path / "A.mtx")):
        assert np.array_equal(rows.toarray(), A[starts[rank] : starts[rank + 1]].toarray())


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("name", TEXTS)
def test_wherever_the_bytes_are_cut_every_line_is_read_once(name: str, ranks: int, tmp_path: Path) -> None:
    path = tmp_path / "A.mtx"
    path.write_text(f"%%MatrixMarket matrix coordinate {TEXTS[name]}")
    stacked = sparse.vstack(read_on(ranks, path)).toarray()
    whole = scipy.io.mmread(path).toarray() if "blank" not in name else read_matrix(path).toarray()
    assert np.array_equal(stacked, whole)


@pytest.mark.parametrize("ranks", [1, 2])
def test_lines_end_where_the_reader_of_headers_has_them_end(ranks: int, tmp_path: Path) -> None:
    path = tmp_path / "A.mtx"
    path.write_bytes(
        b"%%MatrixMarket matrix coordinate real general\r\n% made by\r% somebody\r\n2 2 2\r\n1 1 5\r\n2 2 7\r\n"
    )
    assert np.array_equal(sparse.vstack(read_on(ranks, path)).toarray(), np.diag([5.0, 7.0]))
    assert np.array_equal(read_matrix(path).toarray(), np.diag([5.0, 7.0]))


def test_what_was_read_is_solved(tmp_path: Path) -> None:
    A, b = flow(12), vector(144)
    scipy.io.mmwrite(tmp_path / "A.mtx", sparse.coo_array(A), precision=17)

    def body(comm: Any) -> Any:
        rows = mx.rows_from_file(tmp_path / "A.mtx", comm=comm)
        first = even(144, 3)[comm.rank]
        return mx.gmres(rows, b[first : first + rows.shape[0]], comm=comm, threads=1)[0]

    assert reached(A, np.concatenate(run_ranks(3, body)), b, 1e-9)


#: Errors in a file, and the messages on all ranks.
BAD = {
    "nan.mtx": ("real general\n2 2 2\n1 1 5\n2 2 nan\n", "row 2, column 2 is nan"),
    "A.mtx.gz": ("", "gunzip"),
    "missing.mtx": (None, "does not exist"),
    "line.mtx": ("real general\n2 2 2\n1 1 5\n2 x 5\n", r"line 4: .*2 x 5.* has a column that is not an integer"),
    "column.mtx": (
        "real general\n2 2 2\n1 1 5\n2 3 5\n",
        "line 4: .* is in column 3, but the columns are numbered from 1 to 2",
    ),
    "short.mtx": ("real general\n2 2 3\n1 1 5\n2 2 5\n", "ends after 2 of the 3 entries"),
    "long.mtx": ("real general\n2 2 1\n1 1 5\n2 2 5\n", "line 4: .* is entry 2, but line 2 declares only 1"),
    "rectangle.mtx": ("real general\n2 3 1\n1 1 5\n", "the matrix is 2x3"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_with_a_file_is_the_same_error_on_all_ranks(name: str, tmp_path: Path) -> None:
    text, message = BAD[name]
    if text is not None:
        (tmp_path / name).write_text(f"%%MatrixMarket matrix coordinate {text}")

    def body(comm: Any) -> str:
        with pytest.raises(UsageError, match=message) as error:
            mx.rows_from_file(tmp_path / name, comm=comm)
        return str(error.value)

    assert len(set(run_ranks(3, body))) == 1

"""Test the sources of a DistributedMatrix, and that a mistake raises the same error on all ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mxpeak as mx
from mxpeak.comm.transports.solo import Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.errors import UsageError
from mxpeak.layout.grid import ProcessGrid
from mxpeak.library.dense.matrix_source import owned
from tests.support.distributed_systems import entries, eta, raised, random
from tests.support.norm_ranks import scalapack_array, scalapack_part
from tests.support.roundoff import U

Array = Any
BFLOAT16 = ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n = 0 is not a positive integer; use an integer of 1 or more"),
        ({"n": 4.0}, "n = 4.0"),
        ({"nb": -1}, "nb = -1"),
        ({"grid": (2, 2)}, r"2\*2 = 4 ranks, but there are 1; use grid=\(1, 1\)"),
        ({"fn": np.eye(4)}, "not a function"),
        ({"comm": 7}, "not a communicator"),
    ],
)
def test_a_matrix_that_cannot_be_made_is_refused(arguments: dict[str, Any], message: str) -> None:
    asked: dict[str, Any] = {"fn": lambda i, j: i + j, "n": 4, **arguments}
    with pytest.raises(UsageError, match=message):
        mx.DistributedMatrix.from_function(asked.pop("fn"), asked.pop("n"), **asked)


@pytest.mark.parametrize(("ranks", "split"), [(1, [23]), (3, [5, 0, 18]), (4, [1, 2, 17, 3])])
def test_rows_wherever_they_lie_and_files_make_the_same_system(ranks: int, split: list[int], tmp_path: Path) -> None:
    n = sum(split)
    A, b = random(n), random(n, 3)
    np.save(tmp_path / "A.npy", np.asfortranarray(A))
    ends = np.cumsum(split)

    def body(comm: Any) -> tuple[list[Array], Any]:
        rows = A[ends[comm.rank] - split[comm.rank] : ends[comm.rank]]
        matrices = [
            mx.DistributedMatrix.from_function(lambda i, j: np.asfortranarray(A[i, j]), n, nb=4, comm=comm),
            mx.DistributedMatrix.from_rows(rows, nb=4, comm=comm),
            mx.DistributedMatrix.from_root(A if comm.rank == 0 else None, nb=4, comm=comm),
            mx.DistributedMatrix.from_file(tmp_path / "A.npy", nb=4, comm=comm),
        ]
        answers = [mx.solve(M, b) for M in matrices]
        assert all(info.solved for _, info in answers)
        return [x for x, _ in answers], answers[1][1]

    for (x, *others), info in run_ranks(ranks, body):
        assert eta(A, x[:, 1], b[:, 1]) <= 2
        assert all(np.array_equal(x, other) for other in others)
        assert info.bytes_a_rank > 2 * 8 * n * n / ranks


@pytest.mark.parametrize(("dtype", "writable"), [(np.float64, True), (np.float64, False), (np.float32, True)])
def test_scalapacks_arrays_are_used_where_they_lie_and_are_not_written_to(dtype: type, writable: bool) -> None:
    n, nb, (P, Q) = 21, 4, (1, 2)
    A, b, desc = np.round(8 * random(n)), random(n, 2), [1, 0, n, n, nb, nb, 0, 0, 23]

    def body(comm: Any) -> list[Array]:
        at = ProcessGrid(P, Q).coords(comm.rank)
        local = np.nan_to_num(scalapack_array(scalapack_part(A, desc, (P, Q), *at), 23, flat=False)).astype(dtype, "F")
        before = local.copy()
        local.flags.writeable = writable
        M = mx.DistributedMatrix.from_blocks(mx.from_scalapack(local, desc, grid=(P, Q), comm=comm))
        assert np.shares_memory(M.source.part, local)
        assert np.shares_memory(M.blocks().local, local) == (dtype is np.float64)
        F = mx.lu_factor(M, precision="fp32")
        found = [F.solve(b)[0], F.solve(b, transposed=True)[0]]
        assert np.array_equal(local, before)
        return found

    for x, y in run_ranks(P * Q, body):
        assert eta(A, x, b) <= 2
        assert eta(A.T, y, b) <= 2


def test_blocks_may_lie_in_any_direction() -> None:
    n, desc = 24, [1, 0, 24, 24, 4, 4, 0, 0, 24]
    A, b = random(n), random(n)
    for view in (A[::-1], A[:, ::-1], A.T[::-1], A.T[:, ::-1], A[::-1, ::-1]):
        M = mx.DistributedMatrix.from_blocks(mx.from_scalapack(view, desc, grid=(1, 1)))
        assert eta(view, mx.solve(M, b)[0], b) <= 2


@pytest.mark.parametrize("order", ["row", "column"])
def test_blocks_go_to_norms_and_come_from_scalapack(order: str) -> None:
    n, nb, (P, Q) = 21, 4, (2, 2)
    A, b = random(n), random(n, 2)
    desc = [1, 0, n, n, nb, nb, 0, 0, 13]

    def body(comm: Any) -> tuple[float, Array]:
        at = ProcessGrid(P, Q, order).coords(comm.rank)
        local = scalapack_array(scalapack_part(A, desc, (P, Q), *at), 13, flat=False)
        M = mx.from_scalapack(local, desc, grid=(P, Q), comm=comm, order=order)
        made = mx.DistributedMatrix.from_function(entries(A), n, nb=30, comm=comm)
        assert mx.norms(made) == mx.norms(made.blocks())
        return mx.norm(made, "max"), mx.solve(mx.DistributedMatrix.from_blocks(M), b)[0]

    for largest, x in run_ranks(P * Q, body):
        assert largest == np.abs(A).max()
        assert eta(A, x[:, 0], b[:, 0]) <= 2


def test_blocks_that_lu_does_not_take_are_refused() -> None:
    for desc, told in (([1, 0, 4, 4, 2, 3, 0, 0, 4], "2x3"), ([1, 0, 4, 3, 2, 2, 0, 0, 4], r"\(4, 3\)")):
        with pytest.raises(UsageError, match=told):
            mx.DistributedMatrix.from_blocks(mx.from_scalapack(np.ones((4, desc[3]), order="F"), desc))
    with pytest.raises(UsageError, match="of type ndarray"):
        mx.DistributedMatrix.from_blocks(np.eye(3))


def test_integers_and_narrow_numbers_become_fp64() -> None:
    A = np.array([[2, 1], [1, 3]])
    for dtype in (np.int8, np.float16, np.float32):
        x, _ = mx.solve(mx.DistributedMatrix.from_root(A.astype(dtype)), [3, 4])
        np.testing.assert_allclose(x, [1, 1], rtol=8 * U)


MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an order of its own": (
        lambda comm: mx.DistributedMatrix.from_function(entries(np.eye(9)), 4 + comm.rank // 2, nb=2, comm=comm),
        "UsageError: rank 2: this rank uses n = 5, nb = 2, grid = 2x2, but rank 0 uses n = 4",
    ),
    "no function": (
        lambda comm: mx.DistributedMatrix.from_function(None if comm.rank == 1 else min, 4, comm=comm),
        "UsageError: rank 1: fn = None is not a function",
    ),
    "complex numbers on one rank": (
        lambda comm: mx.DistributedMatrix.from_function(
            lambda i, j: (1j if comm.rank == 1 else 1.0) * (i == j), 8, nb=2, comm=comm
        ),
        "UsageError: rank 1: this rank uses fn(0, 0) of complex128, but rank 0 uses fn(0, 0) of float64",
    ),
    "bfloat16 of a function": (
        lambda comm: mx.DistributedMatrix.from_function(lambda i, j: (i + j).astype(BFLOAT16), 4, comm=comm),
        "UsageError: rank 0: fn(i, j) has dtype bfloat16, but distributed systems need",
    ),
    "bfloat16 in rows": (
        lambda comm: mx.DistributedMatrix.from_rows(np.ones((1, 4), BFLOAT16), comm=comm),
        "UsageError: rank 0: local_rows has dtype bfloat16, but distributed systems need",
    ),
    "bfloat16 in pieces": (
        lambda comm: mx.DistributedMatrix.from_pieces({(comm.rank, 0): np.ones((1, 4), BFLOAT16)}, 4, comm=comm),
        "UsageError: rank 0: A[0:, 0:] has dtype bfloat16, but distributed systems need",
    ),
    "bfloat16 in b": (
        lambda comm: mx.solve(
            mx.DistributedMatrix.from_function(lambda i, j: 1.0 * (i == j), 4, comm=comm), np.ones(4, BFLOAT16)
        ),
        "UsageError: rank 0: b has dtype bfloat16, but distributed systems need",
    ),
    "rows that are too few": (
        lambda comm: mx.DistributedMatrix.from_rows(np.ones((comm.rank, 7)), comm=comm),
        "UsageError: the ranks have 0 + 1 + 2 + 3 = 6 rows of 7 entries",
    ),
    "no rows": (
        lambda comm: mx.DistributedMatrix.from_rows(np.ones((0, 0)), comm=comm),
        "UsageError: A is 0x0, but a DistributedMatrix needs at least one row; use an array on one process",
    ),
    "an empty array": (
        lambda comm: mx.DistributedMatrix.from_root(np.ones((0, 0)) if comm.rank == 0 else None, comm=comm),
        "UsageError: A is 0x0, but a DistributedMatrix needs at least one row",
    ),
    "rows without entries": (
        lambda comm: mx.DistributedMatrix.from_rows(np.ones((1, 0)), comm=comm),
        "UsageError: the ranks have 1 + 1 + 1 + 1 = 4 rows of 0 entries",
    ),
    "rows of another length": (
        lambda comm: mx.DistributedMatrix.from_rows(np.ones((1, 4 + comm.rank // 3)), comm=comm),
        "UsageError: rank 3: this rank uses rows of 5 entries, but rank 0 uses rows of 4 entries",
    ),
    "NaN in the rows of one": (
        lambda comm: mx.DistributedMatrix.from_rows(np.full((1, 4), np.nan if comm.rank == 2 else 1.0), comm=comm),
        "UsageError: rank 2: local_rows[0, 0] is nan",
    ),
    "rows of text": (
        lambda comm: mx.DistributedMatrix.from_rows(np.full((1, 4), "1" if comm.rank == 1 else 1.0), comm=comm),
        "UnknownTypeError: rank 1: local_rows has dtype <U1",
    ),
    "an array where none belongs": (
        lambda comm: mx.DistributedMatrix.from_root(np.eye(4), comm=comm),
        "UsageError: rank 1: from_root reads A only from rank 0",
    ),
    "no array anywhere": (
        lambda comm: mx.DistributedMatrix.from_root(None, comm=comm),
        "UsageError: rank 0: from_root reads A from this rank",
    ),
    "pieces without a place": (
        lambda comm: mx.DistributedMatrix.from_pieces([np.eye(4)] if comm.rank == 1 else {}, 4, comm=comm),
        "UsageError: rank 1: pieces: use a dictionary",
    ),
    "pieces at fractions": (
        lambda comm: mx.DistributedMatrix.from_pieces({(0.0, 0): np.eye(4)} if comm.rank == 1 else {}, 4, comm=comm),
        "UsageError: rank 1: pieces: use a dictionary",
    ),
    "x of another length": (
        lambda comm: mx.DistributedMatrix.from_function(lambda i, j: 1.0 * (i == j), 8, comm=comm).multiply(
            np.ones(1 if comm.rank == 2 else 2)
        ),
        "UsageError: rank 2: this rank has rows 4 to 6 of A, but x has shape (1,); use shape (2,)",
    ),
    "x of another type": (
        lambda comm: mx.DistributedMatrix.from_function(lambda i, j: 1.0 * (i == j), 8, comm=comm).multiply(
            np.ones(2, complex if comm.rank == 2 else float)
        ),
        "UsageError: rank 2: this rank uses x of complex128, but rank 0 uses x of float64",
    ),
    "no file": (
        lambda comm: mx.DistributedMatrix.from_file("nowhere.npy", comm=comm),
        "UsageError: rank 0: nowhere.npy is not a readable .npy file: No such file or directory",
    ),
    "NaN of the function": (
        lambda comm: mx.lu_factor(
            mx.DistributedMatrix.from_function(
                lambda i, j: np.where((i == 5) & (j == 2), np.nan, i + j), 8, nb=2, comm=comm
            )
        ),
        "UsageError: rank 1: A[5, 2] is nan",
    ),
    "a function that fails": (
        lambda comm: mx.lu_factor(
            mx.DistributedMatrix.from_function(lambda i, j: (i + j) * (1 // (comm.rank - 3)), 8, nb=2, comm=comm)
        ),
        "UsageError: rank 3: fn(i, j) raised ZeroDivisionError",
    ),
    "a function of single numbers": (
        lambda comm: mx.lu_factor(mx.DistributedMatrix.from_function(lambda i, j: 1.0, 8, nb=2, comm=comm)),
        "UsageError: rank 0: fn(i, j) returned shape () instead of (4, 4) for i of shape (4, 1) and j of shape (1, 4)",
    ),
    "a b of its own": (
        lambda comm: mx.solve(
            mx.DistributedMatrix.from_function(lambda i, j: 1.0 * (i == j), 8, comm=comm), np.full(8, comm.rank // 3)
        ),
        "UsageError: rank 3: this rank uses b of float64, shape (8,), checksum",
    ),
    "all of b where its rows belong": (
        lambda comm: mx.solve(
            mx.DistributedMatrix.from_function(lambda i, j: 1.0 * (i == j), 8, comm=comm),
            np.ones(8 if comm.rank == 2 else 2),
            local=True,
        ),
        (
            "UsageError: rank 2: this rank has rows 4 to 6 of A, but b has shape (8,); use shape (2,) or (2, "
            "k) with local=True"
        ),
    ),
    "rows of b where all belong": (
        lambda comm: mx.solve(
            mx.DistributedMatrix.from_function(lambda i, j: 1.0 * (i == j), 8, comm=comm), np.ones(2)
        ),
        "UsageError: rank 0: A is 8x8, but b has shape (2,); use all 8 rows on every rank, or local=True",
    ),
    "the transpose on one rank": (
        lambda comm: mx.solve(
            mx.DistributedMatrix.from_function(lambda i, j: 1.0 * (i == j), 8, comm=comm),
            np.ones(8),
            transposed=comm.rank == 1,
        ),
        'UsageError: rank 1: this rank uses transposed="T", local=False, but rank 0 uses transposed="N", local=',
    ),
    "a precision of its own": (
        lambda comm: mx.solve(
            mx.DistributedMatrix.from_function(lambda i, j: 1.0 * (i == j), 8, comm=comm),
            np.ones(8),
            precision="fp32" if comm.rank == 1 else "auto",
        ),
        "UsageError: rank 1: this rank uses precision='fp32', but rank 0 uses precision='auto'",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_one_rank_is_raised_on_all(name: str) -> None:
    body, message = MISTAKES[name]
    texts = raised(4, body)
    assert len(set(texts)) == 1
    assert texts[0].startswith(message)


def test_a_file_of_complex_numbers_on_one_rank_is_refused_on_all(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", np.eye(8))
    np.save(tmp_path / "1.npy", 1j * np.eye(8))
    texts = raised(
        2, lambda comm: mx.DistributedMatrix.from_file(tmp_path / f"{comm.rank}.npy", nb=2, grid=(1, 2), comm=comm)
    )
    told = "UsageError: rank 1: this rank uses a file of complex128, but rank 0 uses a file of float64"
    assert all(text.startswith(told) for text in texts)


def test_a_function_error_in_the_refinement_is_raised_on_all_ranks() -> None:
    def body(comm: Any) -> None:
        calls: list[int] = []

        def fn(i: Array, j: Array) -> Array:
            calls.append(1)
            if comm.rank == 1 and len(calls) > 2:  # entry (0, 0), and A for its LU
                raise KeyError("lost")
            return 1.0 * (i == j)

        F = mx.lu_factor(mx.DistributedMatrix.from_function(fn, 8, nb=2, comm=comm))
        F.solve(np.ones(8))

    texts = raised(2, body)
    assert texts == ["UsageError: rank 1: fn(i, j) raised KeyError: 'lost'"] * 2


def stored(folder: Path, name: str, **arrays: Array) -> Path:
    """A file of HDF5 or Zarr."""
    library = pytest.importorskip("zarr" if name.endswith(".zarr") else "h5py")
    path = folder / name
    store = library.open_group(str(path), mode="w") if name.endswith(".zarr") else library.File(path, "w")
    for key, array in arrays.items():
        made = store.create_array if name.endswith(".zarr") else store.create_dataset
        made(key, data=array, chunks=tuple(max(1, side // 3) for side in array.shape))
    if not name.endswith(".zarr"):
        store.close()
    return path


@pytest.mark.parametrize("name", ["A.h5", "A.hdf5", "A.zarr"])
def test_datasets_are_read_block_by_block(name: str, tmp_path: Path) -> None:
    A, b = random(41).astype(np.float32), random(41, 1)[:, 0]
    path = stored(tmp_path, name, A=A, b=b)

    def body(comm: Any) -> Array:
        M = mx.DistributedMatrix.from_file(path, dataset="A", nb=6, comm=comm)
        assert np.array_equal(M.blocks().local, A[np.ix_(owned(M.blocks().rows), owned(M.blocks().cols))])
        return mx.solve(M, b)[0]

    for x in run_ranks(4, body):
        assert eta(A.astype(np.float64), x, b) <= 2


@pytest.mark.parametrize("name", ["A.h5", "A.zarr"])
def test_datasets_that_are_not_there_are_refused(name: str, tmp_path: Path) -> None:
    path = stored(tmp_path, name, A=np.eye(3), B=np.eye(4))
    for asked, told in (({}, "contains 2 datasets .A, B"), ({"dataset": "C"}, "has no dataset 'C'; use one of A, B")):
        with pytest.raises(UsageError, match=told):
            mx.DistributedMatrix.from_file(path, **asked)
    with pytest.raises(UsageError, match="No such file"):
        mx.DistributedMatrix.from_file(tmp_path / f"none{name}")


@pytest.mark.parametrize("name", ["A.h5", "A.zarr"])
def test_datasets_in_groups_are_found(name: str, tmp_path: Path) -> None:
    """The only matrix of a file is used, in whichever group; vectors and text do not count."""
    A = random(5)
    path = stored(tmp_path, name, **{"run1/A": A, "run1/b": A[0]})
    for options in ({}, {"dataset": "run1/A"}, {"dataset": "/run1/A"}):
        M = mx.DistributedMatrix.from_file(path, nb=5, comm=Solo(), **options)
        assert np.array_equal(M.blocks().local, A)
    for dataset, message in (
        ("A", "has no dataset 'A'; use one of run1/A, run1/b$"),
        ("run1", "run1 is a group; use run1/A or run1/b$"),
        ("", "has no dataset ''; use one of run1/A, run1/b$"),
    ):
        with pytest.raises(UsageError, match=message):
            mx.DistributedMatrix.from_file(path, dataset=dataset)


@pytest.mark.parametrize("name", ["A.h5", "A.zarr"])
def test_the_only_matrix_of_the_root_group_precedes_matrices_of_other_groups(name: str, tmp_path: Path) -> None:
    A = random(5)
    path = stored(tmp_path, name, **{"A": A, "old/A": 2 * A})
    M = mx.DistributedMatrix.from_file(path, nb=5, comm=Solo())
    assert np.array_equal(M.blocks().local, A)
    several = stored(tmp_path, f"B{name}", **{f"run{i}/A": A for i in range(14)})
    with pytest.raises(UsageError, match=r"contains 14 datasets \(run0/A, .*run7/A, and 2 more\); use dataset="):
        mx.DistributedMatrix.from_file(several)
    empty = stored(tmp_path, f"C{name}")
    with pytest.raises(UsageError, match="contains no datasets; use another file"):
        mx.DistributedMatrix.from_file(empty)


def test_links_of_hdf5_without_a_target_or_back_to_a_group_are_skipped(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path, A = tmp_path / "A.h5", random(5)
    with h5py.File(path, "w") as file:
        file["run1/A"] = A
        file["run1/root"] = h5py.SoftLink("/")
        file["lost"] = h5py.SoftLink("/none")
        file["elsewhere"] = h5py.ExternalLink("none.h5", "/A")
        file["nothing"] = h5py.Empty("f8")
    for name in ("lost", "elsewhere", "nothing"):
        with pytest.raises(UsageError, match=f"has no dataset '{name}'; use one of run1/A"):
            mx.DistributedMatrix.from_file(path, dataset=name)
    M = mx.DistributedMatrix.from_file(path, nb=5, comm=Solo())
    assert np.array_equal(M.blocks().local, A)


def test_a_file_whose_library_is_missing_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "A.h5").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UsageError, match="run pip install h5py"):
        mx.DistributedMatrix.from_file(tmp_path / "A.h5")
    np.save(tmp_path / "A.npy", np.eye(2))
    with pytest.raises(UsageError, match="dataset='A' applies only to files with several arrays"):
        mx.DistributedMatrix.from_file(tmp_path / "A.npy", dataset="A")


def test_files_that_hold_no_system_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "flat.npy", np.ones((2, 3)))
    np.savez(tmp_path / "two.npz", a=np.ones(1))
    (tmp_path / "text.npy").write_text("1 2 3")
    for name, told in (("flat.npy", r"shape \(2, 3\)"), ("two.npz", "magic string"), ("text.npy", "numpy.save")):
        with pytest.raises(UsageError, match=told):
            mx.DistributedMatrix.from_file(tmp_path / name)


def test_pieces_of_any_shape_make_the_matrix_and_every_entry_is_given_once() -> None:
    A, b = random(23), random(23, 1)[:, 0]
    places = [(0, 0, 9, 11), (0, 11, 9, 12), (9, 0, 14, 4), (9, 4, 5, 19), (14, 4, 9, 19)]

    def body(comm: Any, given: list[tuple[int, int, int, int]] = places) -> Array:
        mine = {(i, j): np.resize(A[i : i + m, j : j + k], (m, k)) for i, j, m, k in given[comm.rank :: comm.size]}
        return mx.solve(mx.DistributedMatrix.from_pieces(mine, 23, nb=4, comm=comm), b)[0]

    for ranks in (1, 3, 4):
        assert eta(A, run_ranks(ranks, body)[0], b) <= 2
    for given, message in (
        (places[:-1], r"A\[14, 4\] is in 0 pieces"),
        ([*places, (3, 3, 2, 2)], r"A\[3, 3\] is in 2 pieces"),
        ([*places, (23, 0, 1, 1)], r"row 0 to 24"),
    ):
        with pytest.raises(UsageError, match=message):
            run_ranks(1, lambda comm, given=given: body(comm, given))

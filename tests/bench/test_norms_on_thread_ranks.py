"""Norms on virtual ranks: every grid, distribution and structure has the norms of the whole matrix, on every rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, product
from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from mxpeak.comm import threads as thread_ranks
from mxpeak.comm.grid import make_grid
from mxpeak.comm.threads import run_ranks
from mxpeak.distributed.matrix import DistMatrix
from mxpeak.distributed.tiles import CyclicMatrix
from mxpeak.errors import UsageError
from mxpeak.kernels.reference.norms import ReferenceNorms
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.grid import ProcessGrid
from mxpeak.layout.structure import STRUCTURES, structure
from mxpeak.solvers import norms as four_stages
from mxpeak.solvers.exact_norms import reproducible_norms
from tests.solvers.test_norms import (
    KINDS,
    TYPES,
    agree,
    cases,
    exact_norms,
    expanded,
    poisoned,
    random_matrix,
    shapes,
)
from tests.support.roundoff import U

GRIDS = [(1, 1), (1, 3), (2, 2), (2, 3), (3, 5)]
#: Row blocks and column blocks: many small ones, and fewer than there are ranks.
BLOCKS = [(3, 2), (10, 7)]
Found = tuple[Any, Any, Any, Any]


def laid(A: Any, turn: int) -> Any:
    """A by rows, by columns, or as every other row of a larger array."""
    if turn % 3 < 2:
        return np.array(A, order="CF"[turn % 3])
    larger = np.full((2 * A.shape[0] + 1, A.shape[1] + 3), np.nan, A.dtype)
    larger[1::2, :-3] = A
    return larger[1::2, :-3]


def dealt_out(comm: Any, shape: tuple[int, int], A: Any, mb: int, nb: int) -> CyclicMatrix:
    """This rank's part of A, dealt in mb×nb blocks."""
    grid = make_grid(ProcessGrid(*shape), comm)
    assert grid is not None
    rows, cols = BlockCyclic(A.shape[0], mb, grid.p, grid.P), BlockCyclic(A.shape[1], nb, grid.q, grid.Q)
    mine = np.ix_([rows.to_global(k) for k in range(rows.local_size)], [cols.to_global(k) for k in
                                                                        range(cols.local_size)])  # fmt: skip
    return CyclicMatrix(grid, rows, cols, laid(A[mine], comm.rank))


def all_norms(M: Any, **asked: Any) -> Found:
    """What all public functions say of a matrix."""
    return (
        mx.norms(M, threads=1, **asked),
        mx.norms(M, threads=1, deterministic=True, **asked),
        mx.row_norms(M, "one", threads=1, **asked),
        mx.column_norms(M, "fro", threads=1, **asked),
    )


def check(found: Sequence[Found], A: Any, name: str, **options: Any) -> None:
    """All ranks have the same numbers: right ones, and reproducible ones to the last bit."""
    asked = {"structure": name, **options}
    exact, alone = exact_norms(expanded(A, name, **options)), all_norms(A, **asked)
    for norms, same, by_row, by_column in found:
        assert norms == found[0][0], "every rank gets the same number"
        for kind in KINDS:
            agree(getattr(norms, kind), exact[kind], kind, A)
        assert same == alone[1]
        assert np.array_equal(by_row, alone[2])
        assert np.array_equal(by_column, alone[3])


def size_of(name: str) -> tuple[int, int]:
    return (17, 17) if shapes(name)[0] == (11, 11) else (19, 13)


# --- distributions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("grid", GRIDS)
def test_block_cyclic_parts_have_the_norms_of_the_whole(rng: Any, grid: tuple[int, int], name: str) -> None:
    types = ("float64", "complex128", "float32", "bfloat16", "complex64", "float16")
    asked = []
    for turn, (options, blocks) in enumerate(product(cases(name, True), BLOCKS)):
        count = 3 if grid[0] * grid[1] < 6 else 1  # threads are slow to talk where there are many
        names = [types[(turn + 2 * k) % 6] for k in range(count)]
        for dtype in names:
            A = poisoned(random_matrix(rng, size_of(name), TYPES[dtype]), name, **options)
            asked.append((A, blocks, options))

    def body(comm: Any) -> list[Found]:
        return [all_norms(dealt_out(comm, grid, A, *blocks), structure=name, **options) for A, blocks, options in asked]

    for found, (A, _, options) in zip(zip(*run_ranks(grid[0] * grid[1], body)), asked):
        check(found, A, name, **options)


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("grid", [(2, 2), (3, 5)])
def test_the_algorithm_is_right_whatever_kernels_compute(rng: Any, grid: tuple[int, int], name: str) -> None:
    options = cases(name, True)[-1]
    A = poisoned(random_matrix(rng, size_of(name), TYPES["complex128"]), name, **options)

    def body(comm: Any) -> list[dict[str, float]]:
        M, S = dealt_out(comm, grid, A, 3, 2), structure(name, *A.shape, **options)
        return [compute(M, S, KINDS, ReferenceNorms()) for compute in (four_stages.norms, reproducible_norms)]

    exact = exact_norms(expanded(A, name, **options))
    for found in (one for all_found in run_ranks(grid[0] * grid[1], body) for one in all_found):
        for kind in KINDS:
            agree(found[kind], exact[kind], kind, A)


def test_each_norm_alone_is_that_of_all_four_together(rng: Any) -> None:
    A = random_matrix(rng, (19, 19), TYPES["float64"])

    def body(comm: Any) -> None:
        M = dealt_out(comm, (2, 3), A, 3, 2)
        for name in ("general", "symmetric", "trapezoid", "hessenberg"):
            for deterministic in (False, True):
                at_once = mx.norms(M, structure=name, deterministic=deterministic, threads=1)
                for kind in KINDS:
                    one = mx.norm(M, kind, structure=name, deterministic=deterministic, threads=1)
                    assert one == pytest.approx(getattr(at_once, kind), rel=50 * U)  # 19 + 19 additions, regrouped
                    assert one == getattr(at_once, kind) or not deterministic

    run_ranks(6, body)


def test_the_benchmarks_matrices_and_transposed_ones_are_taken(rng: Any) -> None:
    A = random_matrix(rng, (19, 13), TYPES["float64"])

    def body(comm: Any) -> tuple[Found, Found]:
        M = dealt_out(comm, (2, 3), A, 4, 4)
        return (
            all_norms(DistMatrix(M.grid, M.rows, M.cols, M.local), structure="trapezoid", uplo="upper"),
            all_norms(M.T, structure="trapezoid", uplo="lower"),
        )

    found = run_ranks(6, body)
    check([one for one, _ in found], A, "trapezoid", uplo="upper")
    check([turned for _, turned in found], A.T, "trapezoid", uplo="lower")


# --- ScaLAPACK's layout -----------------------------------------------------------------------------------------


def scalapack_part(A: Any, desc: Sequence[int], grid: tuple[int, int], p: int, q: int) -> Any:
    """What process (p, q) holds by ScaLAPACK's rule: block I on process row (RSRC + I) mod P."""
    _, _, m, n, mb, nb, rsrc, csrc, _ = desc
    rows = [i for i in range(m) if (rsrc + i // mb) % grid[0] == p]
    columns = [j for j in range(n) if (csrc + j // nb) % grid[1] == q]
    return A[np.ix_(rows, columns)]


def scalapack_array(part: Any, lld: int, flat: bool) -> Any:
    """The part in a column-major array of leading dimension LLD."""
    padded = np.full((lld, part.shape[1]), np.nan, part.dtype, order="F")
    padded[: part.shape[0]] = part
    return padded.ravel(order="F") if flat else padded


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize(("grid", "order"), [((2, 2), "row"), ((2, 3), "column"), ((3, 1), "row")])
def test_scalapacks_parts_have_the_norms_of_the_whole(
    rng: Any, grid: tuple[int, int], order: str, name: str
) -> None:  # fmt: skip
    P, Q = grid
    asked = []
    sources = [(P - 1, 0), (0, Q - 1), (P - 1, Q // 2)]
    for turn, options in enumerate(cases(name, True)):
        for (rsrc, csrc), (mb, nb) in zip(sources, ((3, 2), (2, 5), (10, 7))):
            dtype = list(TYPES.values())[len(asked) % 6]
            A = poisoned(random_matrix(rng, size_of(name), dtype), name, **options)
            asked.append((A, [1, 0, *A.shape, mb, nb, rsrc, csrc, 21 + turn], options))

    def body(comm: Any) -> list[Found]:
        p, q = ProcessGrid(P, Q, order).coords(comm.rank)
        found = []
        for A, desc, options in asked:
            local = scalapack_array(scalapack_part(A, desc, grid, p, q), desc[8], comm.rank % 2 == 0)
            M = mx.from_scalapack(local, desc, grid=grid, comm=comm, order=order)
            assert M.shape == A.shape
            found.append(all_norms(M, structure=name, **options))
        return found

    for found, (A, _, options) in zip(zip(*run_ranks(P * Q, body)), asked):
        check(found, A, name, **options)


# --- tiles anywhere ---------------------------------------------------------------------------------------------


def blocks(A: Any, heights: Sequence[int], widths: Sequence[int]) -> dict[tuple[int, int], Any]:
    """A in tiles."""
    downs, rights = [0, *accumulate(heights)], [0, *accumulate(widths)]
    return {
        (i, j): A[downs[i] : downs[i + 1], rights[j] : rights[j + 1]]
        for i, j in product(range(len(heights)), range(len(widths)))
    }


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("size", [2, 5])
def test_tiles_may_lie_on_any_rank(rng: Any, size: int, name: str) -> None:
    m, n = size_of(name)
    heights, widths = (5, 1, 0, m - 6), (2, n - 6, 4)
    asked = []
    for options in cases(name, True):
        for owners in (rng.integers(size, size=(4, 3)), np.full((4, 3), size - 1), np.indices((4, 3)).sum(0) % size):
            dtype = list(TYPES.values())[len(asked) % 6]
            asked.append((poisoned(random_matrix(rng, (m, n), dtype), name, **options), owners, options))

    def body(comm: Any) -> list[Found]:
        found = []
        for A, owners, options in asked:
            mine = {at: laid(tile, comm.rank + at[0]) for at, tile in blocks(A, heights, widths).items()
                    if owners[at] == comm.rank}  # fmt: skip
            M = mx.from_tiles(mine, heights, widths, comm=comm)
            found.append(all_norms(M, structure=name, **options))
        return found

    for found, (A, _, options) in zip(zip(*run_ranks(size, body)), asked):
        check(found, A, name, **options)


def test_empty_matrices_have_norm_0_on_all_ranks() -> None:
    def body(comm: Any) -> None:
        for m, n in ((0, 0), (0, 5), (5, 0)):
            for M in (dealt_out(comm, (2, 2), np.zeros((m, n)), 2, 2), mx.from_tiles({}, [m], [n], comm=comm)):
                norms, same, by_row, by_column = all_norms(M)
                assert norms == same == (0.0, 0.0, 0.0, 0.0)
                assert (by_row.tolist(), by_column.tolist()) == ([0.0] * m, [0.0] * n)

    run_ranks(4, body)


# --- numbers that are large, small, or none ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float64", "complex128"])
def test_ranks_with_large_and_with_small_numbers_agree_on_fro(name: str) -> None:
    scales = (1e-300, 3e300, 1e-310, 4e300, 1.0)
    fro = {(0, 2, 4): 1.0, (0, 1): 3e300, (1, 3): 5e300, (0, 0): math.sqrt(2.0) * 1e-300, (2, 0, 2): 1e-300}

    def body(comm: Any) -> None:
        for held, exact in fro.items():
            mine = {(comm.rank, 0): np.full((1, 1), scales[held[comm.rank]], name)} if comm.rank < len(held) else {}
            M = mx.from_tiles(mine, [1] * len(held), [1], comm=comm)
            for deterministic in (False, True):
                found = mx.norm(M, "fro", deterministic=deterministic, threads=1)
                assert found == pytest.approx(exact, rel=8 * U)  # square, sum and root of three numbers
        M = mx.from_tiles({(comm.rank, 0): np.full((1, 1), 1.7e308, name)}, [1] * comm.size, [1], comm=comm)
        assert mx.norm(M, "fro", threads=1) == mx.norm(M, "fro", deterministic=True, threads=1) == math.inf
        assert mx.norm(M, "max", threads=1) == 1.7e308

    run_ranks(3, body)


@pytest.mark.parametrize("name", TYPES)
def test_nan_on_one_rank_reaches_all_and_wins_over_inf_on_another(name: str) -> None:
    A = np.ones((4, 6), TYPES[name])

    def body(comm: Any) -> None:
        for nan_at, inf_at in product((None, (0, 0), (3, 5), (1, 3)), (None, (0, 2), (2, 5))):
            B = A.copy()
            for place, value in ((inf_at, -np.inf), (nan_at, np.nan)):
                if place is not None:
                    B[place] = value
            says: Callable[[float], bool] = math.isnan if nan_at else math.isinf if inf_at else math.isfinite
            M = dealt_out(comm, (2, 3), B, 2, 2)
            for structure_, deterministic in product(("general", "hessenberg"), (False, True)):
                found = mx.norms(M, structure=structure_, deterministic=deterministic, threads=1)
                hidden = structure_ == "hessenberg"
                assert hidden or all(map(says, found)), (nan_at, inf_at, found)
                upper = [at for at in (nan_at, inf_at) if at is not None and at[1] >= at[0] - 1]
                assert bool(upper) == (not all(map(math.isfinite, found)))

    run_ranks(6, body)


# --- mistakes ---------------------------------------------------------------------------------------------------


def test_a_mistake_on_one_rank_is_raised_on_all() -> None:
    def body(comm: Any) -> list[str]:
        def tiles() -> Any:
            height = 3 if comm.rank == 1 else 2
            return mx.from_tiles({(comm.rank, 0): np.ones((height, 2))}, [2] * comm.size, [2], comm=comm)

        def words() -> Any:
            tile = np.array([["x", "y"]]) if comm.rank == 2 else np.ones((1, 2))
            return mx.from_tiles({(comm.rank, 0): tile}, [1] * comm.size, [2], comm=comm)

        def scalapack() -> Any:
            local = np.ones((1, 1)) if comm.rank == 0 else np.ones((2, 4))
            return mx.from_scalapack(local, [1, 0, 6, 4, 2, 4, 0, 0, 2], grid=(3, 1), comm=comm)

        said = []
        for make in (tiles, words, scalapack):
            with pytest.raises(UsageError) as error:
                make()
            said.append(str(error.value))
        return said

    for culprit, said in zip((1, 2, 0), zip(*run_ranks(3, body))):
        for rank, text in enumerate(said):
            assert ("another rank" in text) == (rank != culprit), text


@pytest.mark.parametrize(
    "differ",
    [
        {"kind": "one"}, {"kind": "two"}, {"structure": "hessenberg"}, {"structure": "trapezoid", "uplo": "upper"},
        {"structure": "band", "kl": 1}, {"deterministic": True}, {"threads": 0}, {"device": "tpu"},
    ],
)  # fmt: skip
def test_a_rank_that_asks_for_something_else_stops_all(differ: dict[str, Any]) -> None:
    def body(comm: Any) -> None:
        M = mx.from_tiles({(comm.rank, 0): np.ones((2, 3))}, [2] * comm.size, [3], comm=comm)
        asked: dict[str, Any] = {"kind": "inf", "threads": 1} | (differ if comm.rank == 1 else {})
        with pytest.raises(UsageError):
            mx.norm(M, **asked)
        assert mx.norm(M, "one", threads=1) == 6.0, "and they can go on"

    run_ranks(3, body)


def test_ranks_that_see_different_matrices_are_told() -> None:
    def body(comm: Any) -> None:
        with pytest.raises(UsageError, match="different things"):
            mx.from_tiles({}, [2, 2 + comm.rank % 2], [3], comm=comm)
        with pytest.raises(UsageError, match="different things"):
            mx.from_scalapack(np.ones((9, 4)), [1, 0, 6, 4, 2, 4 - comm.rank, 0, 0, 9], grid=(3, 1), comm=comm)
        grid = (1, 3) if comm.rank else (3, 1)
        with pytest.raises(UsageError, match="different things"):
            mx.from_scalapack(np.ones((9, 9)), [1, 0, 6, 4, 2, 4, 0, 0, 9], grid=grid, comm=comm)

    run_ranks(3, body)


def test_a_tile_that_no_rank_holds_stops_all() -> None:
    def body(comm: Any) -> None:
        M = mx.from_tiles({(0, 0): np.ones((2, 3))} if comm.rank == 0 else {}, [2, 2], [3], comm=comm)
        for deterministic in (False, True):
            with pytest.raises(UsageError, match="hold 6 of the 12 entries"):
                mx.norm(M, "one", deterministic=deterministic, threads=1)

    run_ranks(3, body)


def test_a_tile_that_two_ranks_hold_stops_all() -> None:
    def body(comm: Any) -> None:
        with pytest.raises(UsageError, match=r"ranks 0 and 1 both give the tile that begins at \(0, 0\)"):
            mx.from_tiles({(0, 0): np.ones((2, 3))}, [2, 2], [3], comm=comm)

    run_ranks(2, body)


def test_tiles_of_different_types_on_different_ranks_stop_all() -> None:
    def body(comm: Any) -> None:
        tile = np.ones((2, 3), np.float32 if comm.rank else np.float64)
        with pytest.raises(UsageError, match="one dtype, but these have float64 on rank 0, float32 on rank 1"):
            mx.from_tiles({(comm.rank, 0): tile}, [2, 2], [3], comm=comm)

    run_ranks(2, body)


def test_all_ranks_hear_which_rank_asks_for_something_else() -> None:
    def body(comm: Any) -> None:
        M = mx.from_tiles({(comm.rank, 0): np.ones((2, 3))}, [2, 2, 2], [3], comm=comm)
        with pytest.raises(UsageError, match=r"rank 0 for norm one of .* rank 2 for norm inf of"):
            mx.norm(M, "inf" if comm.rank == 2 else "one", threads=1)

    run_ranks(3, body)


def test_ranks_that_see_different_source_processes_are_told() -> None:
    def body(comm: Any) -> None:
        for rsrc, csrc, grid in ((comm.rank, 0, (2, 1)), (0, comm.rank, (1, 2))):
            with pytest.raises(UsageError, match="different things"):
                mx.from_scalapack(np.ones((4, 4)), [1, 0, 4, 4, 2, 2, rsrc, csrc, 4], grid=grid, comm=comm)

    run_ranks(2, body)


def test_sizes_that_no_rank_can_know_are_asked_for_on_all() -> None:
    def body(comm: Any) -> None:
        with pytest.raises(UsageError, match="give heights and widths"):
            mx.from_tiles({(comm.rank, 0): np.ones((2, 2))}, comm=comm)
        with pytest.raises(UsageError, match=r"2\*3 = 6 ranks, but the communicator has 3"):
            mx.from_scalapack(np.ones((2, 2)), [1, 0, 2, 2, 2, 2, 0, 0, 2], grid=(2, 3), comm=comm)

    run_ranks(3, body)


def test_ranks_in_threads_of_one_process_do_not_wait_for_each_others_teams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_ranks, "PATIENCE_S", 3.0)

    def body(comm: Any) -> float:
        M = mx.from_tiles({(comm.rank, 0): np.ones((2, 3))}, [2] * comm.size, [3], comm=comm)
        return mx.norm(M, "one", threads=1)

    assert run_ranks(3, body) == [6.0, 6.0, 6.0]

"""Compare norms over virtual ranks with those of the whole matrix, for every grid, distribution and structure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from mxpeak.comm.grid import make_grid
from mxpeak.comm.transports import threads as thread_ranks
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.configs.norms import STRUCTURES
from mxpeak.distributed.dense import DistMatrix
from mxpeak.errors import UsageError
from mxpeak.kernels.reference.norms import ReferenceNorms
from mxpeak.layout.grid import ProcessGrid
from mxpeak.layout.structure import structure
from mxpeak.solvers import norms as four_stages
from mxpeak.solvers.exact_norms import reproducible_norms
from tests.support.exact_norms import KINDS, agree, cases, exact_norms, expanded, poisoned
from tests.support.norm_ranks import (
    Found,
    all_norms,
    blocks,
    check,
    distributed,
    laid,
    scalapack_array,
    scalapack_part,
    size_of,
)
from tests.support.norm_tiles import TYPES, random_values
from tests.support.notes import note_case
from tests.support.roundoff import U

GRIDS = [(1, 3), (2, 2), (2, 3), (3, 5)]
#: Row blocks and column blocks: many small ones, and fewer than there are ranks.
BLOCKS = [(3, 2), (10, 7)]


@dataclass(frozen=True)
class Call:
    """A matrix with its structure, its options and its distribution."""

    A: Any
    structure: str
    options: dict[str, Any]
    how: Any = None


def matrix(rng: Any, dtype: str, name: str, **options: Any) -> Any:
    """A random matrix with NaN wherever a structure must not be read."""
    return poisoned(random_values(rng, size_of(name), TYPES[dtype]), name, **options)


def check_calls(ranks: int, calls: Sequence[Call], body: Callable[[Any], list[Found]]) -> None:
    """Check all calls over virtual ranks; `body` returns the results of all calls on its rank."""
    for call, found in zip(calls, zip(*run_ranks(ranks, body)), strict=True):
        with note_case(structure=call.structure, options=call.options, dtype=call.A.dtype, how=call.how):
            check(found, call.A, call.structure, **call.options)


# --- distributions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", GRIDS)
def test_block_cyclic_parts_have_the_norms_of_the_whole(rng: Any, shape: tuple[int, int]) -> None:
    types = ("float64", "complex128", "float32", "bfloat16", "complex64", "float16")
    calls, at = [], GRIDS.index(shape)  # each structure meets other types on each grid
    for name in STRUCTURES:
        for turn, (options, how) in enumerate(product(cases(name), BLOCKS)):
            if (turn + turn // 2 + at) % 2 == 0:  # the ways to cut blocks alternate, shifted on the next grid
                calls.append(Call(matrix(rng, types[(turn + at) % 6], name, **options), name, options, how))
    if math.prod(shape) > 6:  # most of so many ranks have no block: every second call is enough
        calls = calls[::2]

    def body(comm: Any) -> list[Found]:
        grid = make_grid(ProcessGrid(*shape), comm)
        return [all_norms(distributed(grid, c.A, *c.how), structure=c.structure, **c.options) for c in calls]

    check_calls(math.prod(shape), calls, body)


@pytest.mark.parametrize("shape", [(2, 2), (3, 5)])
def test_the_algorithm_is_right_whatever_kernels_compute(rng: Any, shape: tuple[int, int]) -> None:
    calls = [Call(matrix(rng, "complex128", name, **cases(name)[-1]), name, cases(name)[-1]) for name in STRUCTURES]

    def body(comm: Any) -> list[list[dict[str, float]]]:
        values, grid = [], make_grid(ProcessGrid(*shape), comm)
        for c in calls:
            M, S = distributed(grid, c.A, 3, 2), structure(c.structure, *c.A.shape, **c.options)
            values.append(
                [norms(M, S, KINDS, ReferenceNorms()) for norms in (four_stages.distributed_norms, reproducible_norms)]
            )
        return values

    for call, on_ranks in zip(calls, zip(*run_ranks(math.prod(shape), body))):
        exact = exact_norms(expanded(call.A, call.structure, **call.options))
        for values, kind in product((both for rank in on_ranks for both in rank), KINDS):
            agree(values[kind], exact[kind], kind, call.A)


def test_each_norm_alone_is_that_of_all_four_together(rng: Any) -> None:
    A = random_values(rng, (19, 19), TYPES["float64"])

    def body(comm: Any) -> None:
        M = distributed(make_grid(ProcessGrid(2, 3), comm), A, 3, 2)
        for name in ("general", "symmetric", "trapezoid", "hessenberg"):
            for deterministic in (False, True):
                at_once = mx.norms(M, structure=name, deterministic=deterministic, threads=1)
                for kind in KINDS:
                    one = mx.norm(M, kind, structure=name, deterministic=deterministic, threads=1)
                    assert one == pytest.approx(getattr(at_once, kind), rel=50 * U)  # 19 + 19 additions, regrouped
                    assert one == getattr(at_once, kind) or not deterministic

    run_ranks(6, body)


def test_the_benchmarks_matrices_and_transposed_ones_are_accepted(rng: Any) -> None:
    A = random_values(rng, (19, 13), TYPES["float64"])

    def body(comm: Any) -> tuple[Found, Found]:
        M = distributed(make_grid(ProcessGrid(2, 3), comm), A, 4, 4)
        return (
            all_norms(DistMatrix(M.grid, M.rows, M.cols, M.local), structure="trapezoid", uplo="upper"),
            all_norms(M.T, structure="trapezoid", uplo="lower"),
        )

    found = run_ranks(6, body)
    check([one for one, _ in found], A, "trapezoid", uplo="upper")
    check([turned for _, turned in found], A.T, "trapezoid", uplo="lower")


# --- ScaLAPACK's layout, and tiles anywhere ---------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "order"), [((2, 2), "row"), ((2, 3), "column"), ((3, 1), "row")])
def test_scalapacks_parts_have_the_norms_of_the_whole(rng: Any, shape: tuple[int, int], order: str) -> None:
    """Each case has one of three source processes and block sizes, which differ between grids."""
    P, Q = shape
    ways = list(zip([(P - 1, 0), (0, Q - 1), (P - 1, Q // 2)], ((3, 2), (2, 5), (10, 7))))
    calls = []
    for name in STRUCTURES:
        for turn, options in enumerate(cases(name)):
            (rsrc, csrc), (mb, nb) = ways[(turn + Q) % 3]
            A = matrix(rng, list(TYPES)[(len(calls) + P) % 6], name, **options)
            calls.append(Call(A, name, options, [1, 0, *A.shape, mb, nb, rsrc, csrc, 21 + turn]))

    def body(comm: Any) -> list[Found]:
        p, q = ProcessGrid(P, Q, order).coords(comm.rank)
        values = []
        for c in calls:
            local = scalapack_array(scalapack_part(c.A, c.how, shape, p, q), c.how[8], comm.rank % 2 == 0)
            M = mx.from_scalapack(local, c.how, grid=shape, comm=comm, order=order)
            assert M.shape == c.A.shape
            values.append(all_norms(M, structure=c.structure, **c.options))
        return values

    check_calls(P * Q, calls, body)


@pytest.mark.parametrize("size", [2, 5])
def test_tiles_may_lie_on_any_rank(rng: Any, size: int) -> None:
    calls = []
    for name in STRUCTURES:
        for turn, options in enumerate(cases(name)):  # random owners, one owner, and a cyclic distribution
            anywhere, alone = rng.integers(size, size=(4, 3)), np.full((4, 3), size - 1)
            owners = (anywhere, alone, np.indices((4, 3)).sum(0) % size)[(len(calls) + turn // 3) % 3]
            A = matrix(rng, list(TYPES)[(len(calls) + size) % 6], name, **options)
            calls.append(Call(A, name, options, owners))

    def body(comm: Any) -> list[Found]:
        values = []
        for c in calls:
            m, n = c.A.shape
            heights, widths = (5, 1, 0, m - 6), (2, n - 6, 4)
            tiles = {
                at: laid(tile, comm.rank + at[0])
                for at, tile in blocks(c.A, heights, widths).items()
                if c.how[at] == comm.rank
            }
            M = mx.from_tiles(tiles, heights, widths, comm=comm)
            values.append(all_norms(M, structure=c.structure, **c.options))
        return values

    check_calls(size, calls, body)


def test_empty_matrices_have_norm_0_on_all_ranks() -> None:
    def body(comm: Any) -> None:
        grid = make_grid(ProcessGrid(2, 2), comm)
        for m, n in ((0, 0), (0, 5), (5, 0)):
            for M in (distributed(grid, np.zeros((m, n)), 2, 2), mx.from_tiles({}, [m], [n], comm=comm)):
                norms, same, by_row, by_column = all_norms(M)
                assert norms == same == (0.0, 0.0, 0.0, 0.0)
                assert (by_row.tolist(), by_column.tolist()) == ([0.0] * m, [0.0] * n)

    run_ranks(4, body)


# --- large and small numbers, infinity and NaN ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float64", "complex128"])
def test_ranks_with_large_and_with_small_numbers_agree_on_fro(name: str) -> None:
    scales = (1e-300, 3e300, 1e-310, 4e300, 1.0)
    fro = {(0, 2, 4): 1.0, (0, 1): 3e300, (1, 3): 5e300, (0, 0): math.sqrt(2.0) * 1e-300, (2, 0, 2): 1e-300}

    def body(comm: Any) -> None:
        for entries, exact in fro.items():
            tiles = {}
            if comm.rank < len(entries):
                tiles[comm.rank, 0] = np.full((1, 1), scales[entries[comm.rank]], name)
            M = mx.from_tiles(tiles, [1] * len(entries), [1], comm=comm)
            for deterministic in (False, True):
                found = mx.norm(M, "fro", deterministic=deterministic, threads=1)
                assert found == pytest.approx(exact, rel=8 * U)  # square, sum and root of three numbers
        M = mx.from_tiles({(comm.rank, 0): np.full((1, 1), 1.7e308, name)}, [1] * comm.size, [1], comm=comm)
        assert mx.norm(M, "fro", threads=1) == mx.norm(M, "fro", deterministic=True, threads=1) == math.inf
        assert mx.norm(M, "max", threads=1) == 1.7e308

    run_ranks(3, body)


def test_nan_on_one_rank_reaches_all_and_wins_over_inf_on_another() -> None:
    def body(comm: Any) -> None:
        grid = make_grid(ProcessGrid(2, 3), comm)
        types, places = list(TYPES.values()), product((None, (0, 0), (3, 5), (1, 3)), (None, (0, 2), (2, 5)))
        entries = ((turn % 3 + k, *at) for turn, at in enumerate(places) for k in (0, 3))  # a third of the types each
        for kind, nan_at, inf_at in entries:
            B = np.ones((4, 6), types[kind])
            for at, value in ((inf_at, -np.inf), (nan_at, np.nan)):
                if at is not None:
                    B[at] = value
            says: Callable[[float], bool] = math.isnan if nan_at else math.isinf if inf_at else math.isfinite
            M = distributed(grid, B, 2, 2)
            for structure_, deterministic in product(("general", "hessenberg"), (False, True)):
                values = mx.norms(M, structure=structure_, deterministic=deterministic, threads=1)
                hidden = structure_ == "hessenberg"
                assert hidden or all(map(says, values)), (nan_at, inf_at, values)
                upper = [at for at in (nan_at, inf_at) if at is not None and at[1] >= at[0] - 1]
                assert bool(upper) == (not all(map(math.isfinite, values)))

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

        errors = []
        for make in (tiles, words, scalapack):
            with pytest.raises(UsageError) as error:
                make()
            errors.append(str(error.value))
        return errors

    for culprit, errors in zip((1, 2, 0), zip(*run_ranks(3, body))):
        for rank, text in enumerate(errors):
            assert text == errors[0], rank
            assert text.startswith(f"rank {culprit}: "), text


def test_a_rank_whose_call_differs_stops_all() -> None:
    differences: list[dict[str, Any]] = [
        {"kind": "one"},
        {"kind": "two"},
        {"structure": "hessenberg"},
        {"structure": "trapezoid", "uplo": "upper"},
        {"structure": "band", "kl": 1},
        {"deterministic": True},
        {"threads": 0},
        {"device": "tpu"},
    ]

    def body(comm: Any) -> None:
        M = mx.from_tiles({(comm.rank, 0): np.ones((2, 3))}, [2] * comm.size, [3], comm=comm)
        for differ in differences:
            call: dict[str, Any] = {"kind": "inf", "threads": 1} | (differ if comm.rank == 1 else {})
            with note_case(**differ), pytest.raises(UsageError):
                mx.norm(M, **call)
            assert mx.norm(M, "one", threads=1) == 6.0, "and they can go on"

    run_ranks(3, body)


def test_ranks_that_use_different_matrices_raise_an_error() -> None:
    def body(comm: Any) -> None:
        with pytest.raises(UsageError, match=r"this rank uses .*, but rank 0 uses "):
            mx.from_tiles({}, [2, 2 + comm.rank % 2], [3], comm=comm)
        with pytest.raises(UsageError, match=r"this rank uses .*, but rank 0 uses "):
            mx.from_scalapack(np.ones((9, 4)), [1, 0, 6, 4, 2, 4 - comm.rank, 0, 0, 9], grid=(3, 1), comm=comm)
        grid = (1, 3) if comm.rank else (3, 1)
        with pytest.raises(UsageError, match=r"this rank uses .*, but rank 0 uses "):
            mx.from_scalapack(np.ones((9, 9)), [1, 0, 6, 4, 2, 4, 0, 0, 9], grid=grid, comm=comm)

    run_ranks(3, body)


def test_a_tile_that_no_rank_has_stops_all() -> None:
    def body(comm: Any) -> None:
        M = mx.from_tiles({(0, 0): np.ones((2, 3))} if comm.rank == 0 else {}, [2, 2], [3], comm=comm)
        for deterministic in (False, True):
            with pytest.raises(UsageError, match="contain 6 of the 12 entries"):
                mx.norm(M, "one", deterministic=deterministic, threads=1)

    run_ranks(3, body)


def test_a_tile_that_two_ranks_have_stops_all() -> None:
    def body(comm: Any) -> None:
        with pytest.raises(UsageError, match=r"ranks 0 and 1 both have the tile that begins at \(0, 0\)"):
            mx.from_tiles({(0, 0): np.ones((2, 3))}, [2, 2], [3], comm=comm)

    run_ranks(2, body)


def test_tiles_of_different_types_on_different_ranks_stop_all() -> None:
    def body(comm: Any) -> None:
        tile = np.ones((2, 3), np.float32 if comm.rank else np.float64)
        with pytest.raises(UsageError, match="the same dtype, but these have float64 on rank 0, float32 on rank 1"):
            mx.from_tiles({(comm.rank, 0): tile}, [2, 2], [3], comm=comm)

    run_ranks(2, body)


def test_all_ranks_hear_which_rank_calls_for_something_else() -> None:
    def body(comm: Any) -> None:
        M = mx.from_tiles({(comm.rank, 0): np.ones((2, 3))}, [2, 2, 2], [3], comm=comm)
        with pytest.raises(UsageError, match=r"rank 2: this rank uses norm inf of .*, but rank 0 uses norm one of "):
            mx.norm(M, "inf" if comm.rank == 2 else "one", threads=1)

    run_ranks(3, body)


def test_ranks_that_use_different_source_processes_raise_an_error() -> None:
    def body(comm: Any) -> None:
        for rsrc, csrc, grid in ((comm.rank, 0, (2, 1)), (0, comm.rank, (1, 2))):
            with pytest.raises(UsageError, match=r"this rank uses .*, but rank 0 uses "):
                mx.from_scalapack(np.ones((4, 4)), [1, 0, 4, 4, 2, 2, rsrc, csrc, 4], grid=grid, comm=comm)

    run_ranks(2, body)


def test_sizes_that_no_rank_can_know_are_asked_for_on_all() -> None:
    def body(comm: Any) -> None:
        with pytest.raises(UsageError, match="add heights and widths"):
            mx.from_tiles({(comm.rank, 0): np.ones((2, 2))}, comm=comm)
        with pytest.raises(UsageError, match=r"2\*3 = 6 ranks, but the communicator has 3"):
            mx.from_scalapack(np.ones((2, 2)), [1, 0, 2, 2, 2, 2, 0, 0, 2], grid=(2, 3), comm=comm)

    run_ranks(3, body)


def test_ranks_in_threads_of_one_process_do_not_wait_for_each_others_teams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_ranks, "PATIENCE_WITH_A_BUSY_RANK_S", 100.0)

    def body(comm: Any) -> float:
        M = mx.from_tiles({(comm.rank, 0): np.ones((2, 3))}, [2] * comm.size, [3], comm=comm)
        return mx.norm(M, "one", threads=1)

    assert run_ranks(3, body) == [6.0, 6.0, 6.0]

"""Test torch's dense kernels: swaps as one move, a factorization without waits, and memory."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mxpeak.errors import ResourceError
from mxpeak.kernels.torch.dense.dense import TorchDense, largest_order
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.lu import pivoted_lu
from tests.support.systems import random, solve_on

#: Columns of a panel, so that small matrices have several.
WIDTH = 16
CPU = Device(torch.device("cpu"), triton=False, poison=True)


def test_swaps_in_turn_are_one_move() -> None:
    """Test all sequences of swaps for these numbers of rows."""
    for m, count in ((1, 1), (2, 1), (2, 2), (4, 4), (6, 3), (5, 5)):
        for pivots in product(*(range(k, m) for k in range(count))):
            expected = list(range(m))
            for k, p in enumerate(pivots):
                expected[k], expected[p] = expected[p], expected[k]
            targets, sources = pivoted_lu.moves(torch.tensor(pivots, dtype=torch.int32) + 1, m)
            rows = torch.arange(m)
            assert rows.index_copy(0, targets, rows[sources]).tolist() == expected
            moved = dict(zip(targets.tolist(), sources.tolist()))
            assert all(moved[t] == s for t, s in zip(targets.tolist(), sources.tolist())), "whatever is written last"


def test_long_chains_of_swaps_are_followed() -> None:
    for n, seed in ((131, 0), (257, 1)):
        rng = np.random.default_rng(seed)
        pivots = [min(k + int(rng.integers(0, 3)), n - 1) for k in range(n)]
        expected = np.arange(n)
        for k, p in enumerate(pivots):
            expected[[k, p]] = expected[[p, k]]
        targets, sources = pivoted_lu.moves(torch.tensor(pivots, dtype=torch.int32) + 1, n)
        assert torch.arange(n).index_copy(0, targets, sources).tolist() == expected.tolist()


def test_pivots_that_a_nan_spoilt_stay_within_the_matrix() -> None:
    targets, sources = pivoted_lu.moves(torch.tensor([0, 99, -5, 7], dtype=torch.int32), 6)
    assert sorted(torch.arange(6).index_copy(0, targets, sources).tolist()) == list(range(6))


def test_the_rounded_lu_does_not_depend_on_the_panels_beyond_rounding() -> None:
    A = random((61, 61), np.float32)
    factors = []
    for width in (1, 7, 60, 61):
        W = torch.from_numpy(A.copy())
        rows, _ = pivoted_lu.factor_rounded(CPU, W, "tf32", width)
        factors.append((rows.tolist(), W.numpy()))
    assert all(rows == factors[0][0] for rows, _ in factors)
    assert all(np.abs(W - factors[0][1]).max() <= 61 * 2.0**-11 * np.abs(W).max() for _, W in factors)


class Silent(TorchDispatchMode):
    """A mode that fails if a number is copied to the host, or a shape depends on one."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "equal"), name
        return func(*args, **(kwargs or {}))


def test_a_factorization_never_waits_for_the_device() -> None:
    with pytest.raises(AssertionError, match="_local_scalar_dense"), Silent():
        torch.ones(1).item()
    with Silent():
        pivoted_lu.factor_whole(torch.randn(20, 20))
        for dtype in (torch.float32, torch.complex64):
            pivoted_lu.factor_rounded(CPU, torch.randn(50, 50, dtype=dtype), "fp16", WIDTH)


# --- memory, and settings


class Small(Device):
    """A device with little memory."""

    __slots__ = ()
    free = 1 << 30

    def memory(self) -> tuple[int, int]:
        return 2 * self.free, self.free


def test_a_matrix_that_does_not_fit_is_an_error_before_anything_is_allocated() -> None:
    small = TorchDense(Small(torch.device("cpu"), triton=False))
    n = 20011
    A = np.broadcast_to(np.float64(1.0), (n, n))  # needs no memory itself
    with pytest.raises(ResourceError) as caught:
        solve_on(small, A, np.ones(n), "fp32")
    message = str(caught.value)
    assert f"n = {n} needs 5.41 GB (a copy of A 8·n² + the factors 4·n²" in message
    assert "but cpu has only 1.07 GB of free memory" in message
    assert f"use n = {largest_order(12, 0, Small.free)} or less" in message
    assert 'device="cpu"' in message
    assert solve_on(small, np.eye(3), np.ones(3))[1].solved


def test_a_copy_counts_only_where_there_is_one() -> None:
    class Full(Device):
        __slots__ = ()

        def memory(self) -> tuple[int, int]:
            return 0, 0

    full, A = TorchDense(Full(torch.device("cpu"), triton=False)), random((8, 8))
    T = torch.from_numpy(A)
    as_they_lie = (A, A.T, T, T.T, A[:4, :4])
    others = (A[::2, ::2], T[::2, ::2], A.astype(np.float16), torch.ones(8, 8, dtype=torch.int64), A.tolist())
    for values in (*as_they_lie, *others):
        n = len(values)
        with pytest.raises(ResourceError) as caught:
            solve_on(full, values, np.ones(n), "fp32")
        assert ("a copy of A" in str(caught.value)) == any(values is one for one in others)


def test_the_largest_order_fits_and_the_next_does_not() -> None:
    for free, (per_entry, per_row) in product(
        (0, 1 << 26, 1 << 27, 1 << 30, 10**11, 140 * 10**9), ((4, 0), (12, 6000), (32, 0))
    ):

        def needed(n: int, a: int = per_entry, b: int = per_row) -> int:
            return a * n * n + b * n + 32 * min(1 << 24, n * n) + (1 << 26)

        n = largest_order(per_entry, per_row, free)
        assert n == 0 or needed(n) <= free
        assert needed(n + 1) > free


def test_products_of_fp32_are_full_whatever_was_set() -> None:
    setting, dense = torch.backends.cuda.matmul, TorchDense(CPU, WIDTH)
    before = setting.fp32_precision
    setting.fp32_precision = "tf32"
    try:
        with dense.computing():
            assert setting.fp32_precision == "ieee"
        assert solve_on(dense, random((30, 30)), random(30), "fp32")[1].solved
        assert setting.fp32_precision == "tf32"
    finally:
        setting.fp32_precision = before

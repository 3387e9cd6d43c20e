"""Compare vectors and bases of the sparse solvers with their definitions, on every backend."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxpeak.kernels.reference.sparse import BASIS_TYPES
from mxpeak.precision import PRECISIONS
from tests.support.notes import note_case
from tests.support.on_arrays import every_backend
from tests.support.sparse_matrices import DTYPES, ORACLE, VECTORS, Guarded, near, random, stored, unit, wide

#: 16-bit formats in which a basis of fp32 vectors may be stored.
HALF = ("bf16", "fp16")
SIZES = (0, 1, 5, 511, 513, 2049, 7000)


def sum_bound(vectors: str, *factors: Any) -> float:
    """Return the bound for sums of products: 512 of them are added in the vectors' type, their sums in fp64."""
    n = len(factors[0])
    return (512 * unit(vectors) + (n + 8) * unit("fp64")) * float(np.prod([np.abs(wide(x)) for x in factors], 0).sum())


@every_backend
def test_new_vectors_are_zero(kernels: Any) -> None:
    for vectors in VECTORS:
        A = stored(kernels, "a small box between others", "greedy", "fp32", vectors, "packed")
        x, Q = kernels.halo_vector(A), kernels.basis(7, 3, vectors)
        assert x.dtype == Q.dtype == DTYPES[vectors]
        assert len(x) >= A.n + A.halo
        assert Q.shape == (3, 7)
        assert not x.any()
        assert not Q.any()


@every_backend
def test_vectors_are_combined_as_their_definitions_say(kernels: Any, rng: Any) -> None:
    for vectors, n in product(VECTORS, SIZES):
        with note_case(case=(vectors, n)):
            x, y, u = random(rng, n, vectors), random(rng, n, vectors), unit(vectors)
            bound = 4 * u * (np.abs(wide(x)) + np.abs(wide(y)))  # roundings of factor, product and sum, and one more
            for operation in ("add_scaled", "scale_and_add"):
                actual, exact = Guarded(n, vectors, y), y.copy()
                getattr(kernels, operation)(actual.inner, 0.7, Guarded(n, vectors, x).inner)
                getattr(ORACLE, operation)(exact, 0.7, x)
                near(actual.checked(), exact, bound)
            actual, exact = Guarded(n, vectors, y), y.copy()
            square = kernels.subtract_from(actual.inner, Guarded(n, vectors, x).inner)
            exact_square = ORACLE.subtract_from(exact, x)
            near(actual.checked(), exact, bound)
            assert square == pytest.approx(exact_square, abs=sum_bound(vectors, exact, exact) + 4 * u * exact_square)
            assert kernels.dot(x, y) == pytest.approx(ORACLE.dot(x, y), rel=0.0, abs=sum_bound(vectors, x, y))
            kernels.scale(actual.inner, 0.5, actual.inner)
            assert (
                actual.checked().tolist() == (exact / 2).tolist()
                or n == 0
                or near(actual.inner, exact / 2, bound) is None
            )


@every_backend
def test_vectors_of_two_types_meet(kernels: Any, rng: Any) -> None:
    for n in SIZES:
        x, y = random(rng, n, "fp32"), random(rng, n, "fp64")
        actual, exact = Guarded(n, "fp64", y), y.copy()
        kernels.add_scaled(actual.inner, 0.7, x)
        ORACLE.add_scaled(exact, 0.7, x)
        near(actual.checked(), exact, 4 * unit("fp64") * 2)
        narrow, exact = Guarded(n, "fp32"), x.copy()
        kernels.scale(narrow.inner, 1 / 3, Guarded(n, "fp64", y).inner)
        ORACLE.scale(exact, 1 / 3, y)
        near(narrow.checked(), exact, 2 * unit("fp32") * np.abs(exact))
        wider = Guarded(n, "fp64")
        kernels.scale(wider.inner, 1 / 3, x)
        near(wider.checked(), wide(x) / 3, 2 * unit("fp64"))


@every_backend
def test_entries_are_gathered_from_rows_and_added_to_rows(kernels: Any, rng: Any) -> None:
    for vectors, n in product(VECTORS, SIZES):
        with note_case(case=(vectors, n)):
            x, rows = random(rng, 2 * n, vectors), rng.permutation(2 * n)[:n].astype(np.int32)
            out = Guarded(n, vectors)
            kernels.gather(Guarded(2 * n, vectors, x).inner, rows, out.inner)
            assert out.checked().tolist() == x[rows].tolist()
            actual, exact, y = Guarded(2 * n, vectors, x), x.copy(), random(rng, n, vectors)
            kernels.scatter_add(actual.inner, rows, Guarded(n, vectors, y).inner)
            ORACLE.scatter_add(exact, rows, y)
            assert actual.checked().tolist() == exact.tolist()


@every_backend
def test_all_numbers_of_16_bits_are_widened_exactly(kernels: Any) -> None:
    for half in HALF:
        q = np.arange(2**16, dtype=np.uint16).view(BASIS_TYPES[half])
        actual, exact = Guarded(q.size, "fp32"), q.astype(np.float32)
        kernels.scale(actual.inner, 1.0, q)
        numbers = ~np.isnan(exact)
        assert actual.checked()[numbers].tobytes() == exact[numbers].tobytes()
        assert np.isnan(actual.inner[~numbers]).all()


EVERY_NUMBER = """
import ml_dtypes
import numpy as np
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.engine.vector_ir import HAS_FP16
from mxpeak.kernels.host.sparse.sparse import HostSparse

assert not HAS_FP16
for half in (np.float16, ml_dtypes.bfloat16):
    q, found = np.arange(2**16, dtype=np.uint16).view(half), np.zeros(2**16, np.float32)
    HostSparse(Team(1)).scale(found, 1.0, q)
    exact = q.astype(np.float32)
    numbers = ~np.isnan(exact)
    assert found[numbers].tobytes() == exact[numbers].tobytes()
    assert np.isnan(found[~numbers]).all()
"""


def test_all_numbers_of_16_bits_are_widened_without_the_instruction(tmp_path: Path) -> None:
    generic = {**os.environ, "NUMBA_CPU_NAME": "generic", "MXPEAK_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", EVERY_NUMBER], env=generic, check=True)


@every_backend
def test_numbers_are_rounded_to_16_bits_once_and_to_even(kernels: Any, rng: Any) -> None:
    for half in HALF:
        q = np.arange(2**16, dtype=np.uint16).view(BASIS_TYPES[half]).astype(np.float32)
        finite = np.sort(q[np.isfinite(q)])
        middle = (finite[:-1].astype(np.float64) + finite[1:]) / 2  # exact in fp32, as are the neighbors
        around = [
            middle,
            np.nextafter(middle.astype(np.float32), np.inf),
            np.nextafter(middle.astype(np.float32), -np.inf),
        ]
        x = np.concatenate([*around, [np.inf, -np.inf, np.nan, 1e30, -1e30, 0.0, -0.0]]).astype(np.float32)
        actual, exact = (np.zeros(x.size, BASIS_TYPES[half]) for _ in range(2))
        kernels.scale(actual, 1.0, x)
        ORACLE.scale(exact, 1.0, x)
        numbers = ~np.isnan(exact)
        assert wide(actual)[numbers].tolist() == wide(exact)[numbers].tolist()
        assert np.isnan(wide(actual[~numbers])).all()
        y = random(rng, 3001, "fp64")
        actual, scale = np.zeros(y.size, BASIS_TYPES[half]), 2.0**15 / 3
        kernels.scale(actual, scale, y)  # rounded to fp64 or fp32, perhaps to fp32 again, and then to 16 bits
        near(actual, scale * y, (unit(half) + 3 * unit("fp32")) * np.abs(scale * y) + PRECISIONS[half].spacing / 2)


@every_backend
def test_bases_in_16_bits_are_projected_and_combined(kernels: Any, rng: Any) -> None:
    u = unit("fp32")
    for half, (n, k) in product(HALF, [(0, 3), (5, 0), (1, 1), (301, 1), (1601, 8), (2049, 3), (1601, 30), (700, 31)]):
        with note_case(case=(half, n, k)):
            Q, exact_Q = bases = [b.basis(n, 32, half) for b in (kernels, ORACLE)]
            assert Q.shape == (32, n)
            assert not wide(Q).any()
            for j, q in enumerate(random(rng, n, "fp32") for _ in range(k)):
                for b, basis in zip((kernels, ORACLE), bases):
                    b.scale(basis[j], 1.0, q)
            assert wide(Q).tolist() == wide(exact_Q).tolist()
            Q[k:] = np.nan  # the other vectors are not read
            w, h = random(rng, n, "fp32"), rng.uniform(-1.0, 1.0, k)
            near(kernels.project(Q, k, w), ORACLE.project(exact_Q, k, w), sum_bound("fp32", w, np.ones(n)))
            after, actual = w.copy(), Guarded(n, "fp32", w)
            exact_h, sums = (
                each.subtract_and_project(basis, k, x, h)
                for each, basis, x in ((ORACLE, exact_Q, after), (kernels, Q, actual.inner))
            )
            step = 2 * (k + 3) * u * (1 + np.abs(h).sum())  # per entry: k products and sums, the rounding of h
            near(actual.checked(), after, step)
            near(sums, exact_h, sum_bound("fp32", after, np.ones(n)) + n * step)
            actual = Guarded(n, "fp32", w)
            square = kernels.subtract_and_square(Q, k, actual.inner, h)
            near(actual.checked(), after, step)
            spread = sum_bound("fp32", after, after) + 2 * step * float(np.abs(wide(after)).sum()) + n * step * step
            assert square == pytest.approx(ORACLE.dot(after, after), rel=0.0, abs=spread)
            out, exact = Guarded(n, "fp32"), np.zeros(n, np.float32)
            kernels.combine(Q, h.tolist(), out.inner)
            ORACLE.combine(exact_Q, h.tolist(), exact)
            near(out.checked(), exact, 2 * (k + 3) * u * np.abs(h).sum())


@every_backend
def test_bases_are_projected_and_combined(kernels: Any, rng: Any) -> None:
    sizes = [(0, 3), (5, 0), (1, 1), (301, 1), (512, 4), (1601, 8), (2049, 3), (1601, 30), (700, 31)]
    for vectors, (n, k) in product(VECTORS, sizes):
        with note_case(case=(vectors, n, k)):
            u = unit(vectors)
            bases = [b.basis(n, 32, vectors) for b in (kernels, ORACLE)]
            for j, q in enumerate(random(rng, n, vectors) for _ in range(k)):
                for Q in bases:
                    Q[j] = q
            Q, exact_Q = bases
            Q[k:] = np.nan  # the other vectors are not read
            w, h = random(rng, n, vectors), rng.uniform(-1.0, 1.0, k)
            near(kernels.project(Q, k, w), ORACLE.project(exact_Q, k, w), sum_bound(vectors, w, np.ones(n)))
            after = w.copy()
            exact_h = ORACLE.subtract_and_project(exact_Q, k, after, h)
            step = 2 * (k + 3) * u * (1 + np.abs(h).sum())  # per entry: k products and sums, the rounding of h
            actual = Guarded(n, vectors, w)
            sums = kernels.subtract_and_project(Q, k, actual.inner, h)
            near(sums, exact_h, sum_bound(vectors, after, np.ones(n)) + n * step)
            near(actual.checked(), after, step)
            actual = Guarded(n, vectors, w)
            square = kernels.subtract_and_square(Q, k, actual.inner, h)
            near(actual.checked(), after, step)
            spread = sum_bound(vectors, after, after) + 2 * step * float(np.abs(wide(after)).sum()) + n * step * step
            assert square == pytest.approx(ORACLE.dot(after, after), rel=0.0, abs=spread)
            out, exact = Guarded(n, vectors), np.zeros(n, DTYPES[vectors])
            kernels.combine(Q, h.tolist(), out.inner)
            ORACLE.combine(exact_Q, h.tolist(), exact)
            near(out.checked(), exact, 2 * (k + 3) * u * np.abs(h).sum())


@every_backend
def test_many_vectors_are_projected_and_subtracted(kernels: Any, rng: Any) -> None:
    """There are more vectors than a kernel processes at a time, and than the initial number of sums."""
    n = 40
    for k in (64, 65, 150, 1100):
        Q = kernels.basis(n, k, "fp64")
        Q[:] = rng.uniform(-1.0, 1.0, (k, n))
        w, h = random(rng, n, "fp64"), rng.uniform(-1.0, 1.0, k)
        near(kernels.project(Q, k, w), ORACLE.project(Q, k, w), sum_bound("fp64", w, np.ones(n)))
        step = 2 * (k + 3) * unit("fp64") * (1 + np.abs(h).sum())  # k products and sums
        actual, exact = w.copy(), w.copy()
        sums, exact_sums = kernels.subtract_and_project(Q, k, actual, h), ORACLE.subtract_and_project(Q, k, exact, h)
        near(actual, exact, step)
        near(sums, exact_sums, 2 * n * (step + unit("fp64") * np.abs(exact).sum()))
        actual = w.copy()
        square = kernels.subtract_and_square(Q, k, actual, h)
        near(actual, exact, step)
        assert square == pytest.approx(float(exact @ exact), rel=0, abs=3 * n * step * np.abs(exact).max())

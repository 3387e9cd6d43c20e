"""Test cases of other libraries, run with mxpeak's functions, and the tables of a page that count them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse

import mxpeak as mx
from tests.support.systems import enough

Array = np.ndarray[Any, np.dtype[Any]]
Check = Callable[[], None]


@dataclass(eq=False)
class Peer:
    """The tests of one function of another library.

    function     the function of the library
    ours         the function of mxpeak that its inputs are passed to
    tests        adapted tests: a name, and the function that returns the checks of all its inputs
    differences  how mxpeak's result differs by design, by the name of the test
    reasons      why a test does not apply, by the name of the test
    """

    function: str
    ours: str
    tests: dict[str, Callable[[], Iterator[Check]]] = field(default_factory=dict)
    differences: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def test(self, name: str, difference: str = "") -> Callable[[Callable[[], Iterator[Check]]], Any]:
        """Register a function that returns the checks of a test's inputs."""

        def register(checks: Callable[[], Iterator[Check]]) -> Callable[[], Iterator[Check]]:
            self.tests[name] = checks
            if difference:
                self.differences[name] = difference
            return checks

        return register

    @property
    def names(self) -> set[str]:
        """Return the names of all tests, adapted or not."""
        return {*self.tests, *self.reasons}

    @property
    def inputs(self) -> int:
        """Return the number of inputs of the adapted tests."""
        return sum(len(list(checks())) for checks in self.tests.values())


def cases(peers: list[Peer]) -> list[Any]:
    """Return the parameters of one test per adapted test."""
    return [pytest.param(checks, id=f"{peer.function}-{name}") for peer in peers for name, checks in peer.tests.items()]


def tables(peers: list[Peer]) -> dict[str, str]:
    """Return the tables of all functions: counts, reasons why tests do not apply, and differences."""
    counts = ["| function | mxpeak | tests | pass | inputs | do not apply |", "|---|---|---|---|---|---|"]
    for peer in peers:
        counts.append(
            f"| `{peer.function}` | `{peer.ours}` | {len(peer.names)} | {len(peer.tests)} | {peer.inputs} | "
            f"{len(peer.reasons) or '–'} |"
        )
    reasons = ["| function | test | why it does not apply |", "|---|---|---|"]
    differences = ["| function | test | difference |", "|---|---|---|"]
    for peer in peers:
        reasons += [f"| `{peer.function}` | `{name}` | {reason} |" for name, reason in peer.reasons.items()]
        differences += [f"| `{peer.function}` | `{name}` | {text} |" for name, text in peer.differences.items()]
    found = {"counts": counts, "reasons": reasons, "differences": differences}
    return {name: "\n".join(rows) for name, rows in found.items()}


# --- dense systems ------------------------------------------------------------------------------------------------


def meant(A: Any, *, assume_a: str = "gen", lower: bool = False, transposed: Any = False, **_: Any) -> Array:
    """Return the full matrix of a system from the triangle that its structure reads, transposed if requested."""
    A = np.asarray(A)
    if assume_a not in ("gen", "general", "auto"):
        half = np.tril(A) if lower else np.triu(A)
        eye = np.eye(A.shape[-1], dtype=A.dtype)
        strict = half - half * eye
        across = np.swapaxes(strict, -1, -2)
        if assume_a in ("sym", "symmetric"):
            A = half + across
        else:
            A = strict + across.conj() + eye * half.real
    if transposed in (False, "N"):
        return A
    A = np.swapaxes(A, -1, -2)
    return A.conj() if transposed == "H" else A


def check_solution(A: Any, x: Any, b: Any) -> None:
    """Compare the backward error of each system of a stack with that of a stable solver."""
    A, b = np.asarray(A), np.asarray(b)
    if b.ndim == 1:
        x, b = x[..., None], b[:, None]
    wide = np.complex128 if "c" in (A.dtype.kind, b.dtype.kind) else np.float64
    n, u = A.shape[-1], np.finfo(x.dtype).eps / 2
    R = np.abs(b.astype(wide) - A.astype(wide) @ x.astype(wide))
    shape = R.shape[:-2]
    assert x.shape == (*shape, n, b.shape[-1])
    if not R.size:
        return
    sizes = np.abs(A).sum(-1).max(-1)[..., None] * np.abs(x).max(-2) + np.abs(b).max(-2)
    assert (R.max(-2) <= enough(n) * n * u * sizes).all()


def solves(
    A: Any, b: Any, expected: Any = None, atol: float = 0.0, solver: Any = None, dtype: Any = None, **options: Any
) -> Check:
    """Return the check that a system is solved, in NumPy's type and shape, without changes of A and b.

    `solver` is `mx.solve` or a function with the same arguments. `dtype` is the type of x, if it is not that of NumPy.
    """

    def check() -> None:
        before = [np.array(V) for V in (A, b)]
        x, info = (solver or mx.solve)(A, b, **options)
        assert info.solved
        for V, old in zip((A, b), before):
            assert np.array_equal(V, old)
        M = meant(A, **options)
        reference = np.linalg.solve(np.eye(M.shape[-1], dtype=M.dtype) + 0 * M, b)  # type and shape only
        assert (x.dtype, x.shape) == (dtype or reference.dtype, reference.shape)
        check_solution(M, x, b)
        if expected is not None:
            assert np.abs(x - expected).max(initial=0.0) <= atol

    return check


def raises(error: Any, match: str, call: Callable[[], Any]) -> Check:
    """Return the check that a call raises an error with this text."""

    def check() -> None:
        with pytest.raises(error, match=match):
            call()

    return check


def random(rng: np.random.Generator, shape: Any, dtype: Any) -> Array:
    """Return normally distributed real or complex numbers."""
    values = rng.standard_normal(shape)
    return (values + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else values).astype(dtype)


# --- least squares ------------------------------------------------------------------------------------------------


def least_squares(A: Any, b: Any, rank: int, expected: Any = None, atol: float = 0.0) -> Check:
    """Return the check of a least-squares solution: rank, type, shape, distance to LAPACK's solution in fp64."""

    def check() -> None:
        M, c = np.asarray(A), np.asarray(b)
        before = M.copy(), c.copy()
        x, info = mx.lstsq(A, b)
        assert np.array_equal(M, before[0])
        assert np.array_equal(c, before[1])
        assert info.solved
        assert info.rank == rank
        m, n = M.shape
        types = [V.dtype if V.dtype.kind in "fc" else np.dtype(float) for V in (M, c)]
        assert x.dtype == np.result_type(*types)
        assert x.shape == (n, *c.shape[1:])
        assert info.residual.shape == c.shape
        if not x.size:
            return
        if not rank:
            assert not x.any()
            return
        wide = M.astype(np.complex128 if M.dtype.kind == "c" else float)
        P, s, Q = np.linalg.svd(wide, full_matrices=False)
        P, s, Q = P[:, :rank], s[:rank], Q[:rank]
        y = Q.conj().T @ ((P.conj().T @ c).T / s).T
        condition, residual = s[0] / s[-1], np.linalg.norm(c - wide @ y)
        # The perturbation of a least-squares solution by roundings of A and b (Higham 2002, section 20.1).
        u = np.finfo(x.dtype).eps / 2
        size = condition * np.linalg.norm(y) + condition**2 * residual / s[0] + np.linalg.norm(c) / s[-1]
        assert np.linalg.norm(x - y) <= 20 * max(m, n) * u * size
        if expected is not None:
            assert np.abs(x - expected).max() <= atol

    return check


# --- iterative solvers --------------------------------------------------------------------------------------------


def csr(A: Any) -> Any:
    """Return the matrix in CSR format, because mxpeak's iterative solvers refuse the dense arrays of SciPy's tests."""
    return sparse.csr_array(A)


def residual_norm(A: Any, x: Any, b: Any) -> float:
    return float(np.linalg.norm(A @ x - b))


def rounding(A: Any, x: Any, b: Any) -> float:
    """Return a bound of the difference of two fp64 residuals: n + 1 roundings of each term of each row."""
    n = A.shape[0]
    sizes = abs(csr(A)) @ np.abs(x) + np.abs(b)
    return float((n + 1) * 2.0**-53 * np.linalg.norm(sizes))


def converges(solver: Any, A: Any, b: Any, **options: Any) -> Check:
    """Return the check that the residual of a converged solution meets its tolerances."""

    def check() -> None:
        x0 = options.get("x0")
        before = None if x0 is None else x0.copy()
        with np.errstate(all="ignore"):
            x, info = solver(csr(A), b, **options)
        assert info.converged, info
        assert before is None or np.array_equal(x0, before)
        allowed = max(options.get("rtol", 1e-9) * np.linalg.norm(b), options.get("atol", 0.0))
        assert residual_norm(A, x, b) <= allowed + rounding(A, x, b)

    return check

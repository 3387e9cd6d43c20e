"""The configuration of the norms benchmark, and the cases of its lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from mxpeak.configs.grid import GridCase, GridConfig, cases_of, each
from mxpeak.configs.norms import (
    DIAGS,
    DTYPE_NAMES,
    DTYPES,
    KIND_NAMES,
    KINDS,
    LAYOUTS,
    OF_STRUCTURES,
    SCOPES,
    STRUCTURES,
    TRANS,
    UPLOS,
    VECTOR_KINDS,
)
from mxpeak.errors import UsageError
from mxpeak.options import alternatives, boolean, count, integer, listed, one_of, option, path_name, real
from mxpeak.precision import PRECISIONS, Precision


def tile_sizes(text: str) -> tuple[int, ...]:
    """Parse the repeated sizes of block rows and block columns, such as 512+256."""
    return tuple(map(integer(1).parse, text.split("+")))


def _name_in(names: Mapping[str, str]) -> Callable[[str], str]:
    """Return a parser that replaces a name or alias with its standard name, and raises a UsageError for other words."""

    def parse(text: str) -> str:
        if text not in names:
            raise UsageError(f"{text!r} is unknown; use one of {', '.join(dict.fromkeys(names.values()))}")
        return names[text]

    return parse


@dataclass(frozen=True, slots=True, kw_only=True)
class NormsCase(GridCase):
    """The settings of one measured norm. Options that the structure does not use are None."""

    m: int
    seed: int = 100
    dtype: str = "float64"
    layout: str = "C"
    structure: str = "general"
    uplo: str | None = None
    diag: str | None = None
    kl: int | None = None
    ku: int | None = None
    trans: str = "n"
    scope: str = "matrix"
    kind: str = "one"
    deterministic: bool = False
    extended: bool = False
    tiles: tuple[int, ...] | None = None
    devices_per_rank: int = 1

    @property
    def blocks(self) -> str:
        """Return the block size, or the repeated sizes of the tiles, as text."""
        return str(self.nb) if self.tiles is None else "+".join(map(str, self.tiles))

    @property
    def transposed(self) -> bool:
        """Return whether op(A) is the transpose of A. Conjugation does not change a norm."""
        return self.trans != "n"

    @property
    def op_shape(self) -> dict[str, int]:
        """Return the numbers of rows and columns of op(A), as m and n."""
        return {"m": self.n, "n": self.m} if self.transposed else {"m": self.m, "n": self.n}

    @property
    def vectors(self) -> bool:
        """Return whether the case computes a norm of every row or column."""
        return self.scope != "matrix"

    @property
    def vectors_of_A(self) -> str:
        """Return the vectors of A that form the requested vectors of op(A): rows or columns."""
        return {"rows": "columns", "columns": "rows"}[self.scope] if self.transposed else self.scope

    @property
    def reproducible(self) -> bool:
        """Return whether the norms are bitwise independent of grid, layout and threads; vector norms always are."""
        return self.deterministic or self.vectors

    @property
    def terms(self) -> dict[str, int]:
        """Return the number of entries that each kind of norm adds."""
        m, n = self.op_shape["m"], self.op_shape["n"]
        if self.vectors:
            length = m if self.scope == "columns" else n
            return {"max": 1, "one": length, "fro": length}
        return {name: prod(self.op_shape[dimension] for dimension in kind.terms) for name, kind in KINDS.items()}

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of norms that one pass computes."""
        return tuple(KINDS) if self.kind == "all" else (self.kind,)

    @property
    def complex(self) -> bool:
        """Return whether the entries are complex."""
        return self.dtype.startswith("complex")

    @property
    def precision(self) -> Precision:
        """Return the format of an entry, or of its real and imaginary parts if it is complex."""
        return PRECISIONS[DTYPES[self.dtype]]

    @property
    def itemsize(self) -> int:
        """Return the number of bytes of an entry."""
        return self.precision.bytes * (2 if self.complex else 1)

    @property
    def size(self) -> str:
        """Return the tag of the case with its size, block size and grid."""
        return f"{self.tag} M={self.m} N={self.n} NB={self.blocks} {self.P}x{self.Q}"

    @property
    def tag(self) -> str:
        """Return the kind, structure, type and layout of the case, for example: one general float64 C."""
        widths = [f"{name}={value}" for name, value in (("kl", self.kl), ("ku", self.ku)) if value is not None]
        words = [self.kind, self.scope if self.vectors else None, f"trans={self.trans}" if self.transposed else None]
        words += [self.structure, self.uplo, "unit" if self.diag == "unit" else None, *widths]
        words += [self.dtype, self.layout, None if self.tiles is None else f"tiles={self.blocks}"]
        words += ["deterministic" if self.deterministic else None]
        words += [f"{self.devices_per_rank} devices per rank" if self.devices_per_rank > 1 else None]
        return " ".join(word for word in words if word)


@dataclass(frozen=True, kw_only=True)
class NormsConfig(GridConfig):
    """Options of `mxpeak run norms`.

    If options are lists, mxpeak runs every combination of their values. Options that a structure does not use add no
    combinations.
    """

    n: tuple[int, ...] | None = option(
        None,
        listed(count(1)),
        "number of columns, and of rows without -m (default: 10240)",
        "problem",
        flags=("-N", "--n"),
    )
    m: tuple[int, ...] | None = option(
        None, listed(count(1)), "number of rows (default: the number of columns)", "problem", flags=("-m",)
    )
    nb: tuple[int, ...] = option((512,), listed(integer(1)), "block size of the distribution and the tiles", "problem")
    seed: tuple[int, ...] = option(
        (100,), listed(integer(0, 2**31 - 1)), "random seed of the matrix", "problem", "S,..."
    )
    kind: tuple[str, ...] = option(
        (*KINDS, "all"),
        listed(_name_in({**KIND_NAMES, "all": "all"})),
        f"norms to compute: {', '.join(KINDS)}, or all (all of them in one pass)",
        "norms",
        "NAME,...",
    )
    structure: tuple[str, ...] = option(
        ("general",),
        listed(one_of(*STRUCTURES)),
        "matrix structure, which selects the entries to read: " + ", ".join(STRUCTURES),
        "norms",
    )
    dtype: tuple[str, ...] = option(
        ("float64",),
        listed(_name_in(DTYPE_NAMES)),
        f"data type of the entries: {', '.join(DTYPES)}, or a short name such as fp64, c64 or d",
        "norms",
        "NAME,...",
    )
    layout: tuple[str, ...] = option(
        ("C",),
        listed(one_of(*LAYOUTS)),
        "local storage order: C (by rows), F (by columns) or tiles",
        "norms",
        "{C,F,tiles},...",
    )
    tiles: tuple[tuple[int, ...], ...] | None = option(
        None, listed(tile_sizes), "repeated tile sizes, such as 512+256, instead of --nb", "norms", "K+K...,..."
    )
    extended: bool = option(False, boolean, "also check that NaN and infinity reach the norm", "norms")
    uplo: tuple[str, ...] = option(("lower",), listed(one_of(*UPLOS)), "triangle to read: lower or upper", "norms")
    diag: tuple[str, ...] = option(
        ("nonunit",),
        listed(one_of(*DIAGS)),
        "diagonal of a triangular matrix: nonunit (stored) or unit (ones)",
        "norms",
    )
    kl: tuple[int, ...] = option(
        (20,), listed(integer(0)), "number of diagonals below the main diagonal of a band matrix", "norms", "K,..."
    )
    ku: tuple[int, ...] = option(
        (100,), listed(integer(0)), "number of diagonals above the main diagonal of a band matrix", "norms", "K,..."
    )
    trans: tuple[str, ...] = option(
        ("n",), listed(one_of(*TRANS)), "operation as in BLAS: n (A), t (transpose) or c (conjugate transpose)", "norms"
    )
    scope: tuple[str, ...] = option(
        ("matrix",), listed(one_of(*SCOPES)), "norm of the matrix, or of each of its columns or rows", "norms"
    )
    scalapack: str | None = option(
        None, path_name, "compare with ScaLAPACK: auto, or the path of its library (--layout F)", "norms", "{auto,PATH}"
    )
    deterministic: bool = option(
        False, boolean, "compute bitwise identical results for any grid, layout and thread count", "norms"
    )

    devices_per_rank: int = option(
        1, integer(1, 64), "number of GPUs per rank; block columns alternate between them", "hardware", "K"
    )

    # These two options have another meaning for a benchmark that is limited by memory bandwidth.
    warmup: str = option(
        "gemm",
        one_of("none", "gemm", "full"),
        "warm-up before timing; none does not measure the limit (read bandwidth)",
        "measuring",
    )
    min_gflops: float | None = option(None, real(0.0), "", "measuring")

    def cases(self, ranks: int, n: Sequence[int] | None = None) -> Iterator[NormsCase]:
        """Yield the cases: every combination of the options, ordered by matrix.

        `n` contains the numbers of columns to use without -N.
        """
        sizes = self.n if self.n is not None else n
        if sizes is None:
            raise UsageError("the size of the matrix is missing; add -N")
        if self.layout != ("tiles",) and (self.tiles is not None or self.devices_per_rank > 1):
            flag = "--tiles" if self.tiles is not None else f"--devices-per-rank {self.devices_per_rank}"
            raise UsageError(f"{flag} needs tiles, but --layout is {','.join(self.layout)}; use --layout tiles")
        shapes = [{"m": n_ if m is None else m, "n": n_} for m in self.m or (None,) for n_ in sizes]
        matrices = [each(name, getattr(self, name)) for name in ("seed", "dtype", "layout")]
        matrices.insert(
            0, each("nb", self.nb) if self.tiles is None else [{"nb": max(t), "tiles": t} for t in self.tiles]
        )
        return cases_of(NormsCase, self, self.grid_choices(ranks), shapes, *matrices, self._regions())

    def _regions(self) -> Iterator[dict[str, Any]]:
        """Yield the settings of each combination of a structure, the options that the structure uses, and a norm."""
        for structure in self.structure:
            used = STRUCTURES[structure]
            lists = {o: getattr(self, o) if o in used else (None,) for o in OF_STRUCTURES}
            for values in product(*lists.values(), self.trans, self.scope):
                region = dict(zip((*lists, "trans", "scope"), values), structure=structure)
                yield from ({**region, "kind": kind} for kind in self.kinds_of(values[-1]))

    @property
    def gpus_per_rank(self) -> int:
        """Return the number of GPUs that each rank uses."""
        return self.devices_per_rank

    def kinds_of(self, scope: str) -> list[str]:
        """Return the kinds of norms to measure for a scope, each once. A vector's `inf` is omitted: it equals `max`."""
        kinds = dict.fromkeys(self.kind)
        if scope == "matrix":
            return list(kinds)
        kept = [kind for kind in kinds if kind in VECTOR_KINDS]
        if not kept:
            raise UsageError(
                f"--kind {','.join(kinds)} does not apply to --scope {scope}; use {alternatives(VECTOR_KINDS)} "
                "(the infinity norm of a vector is its max)"
            )
        return kept

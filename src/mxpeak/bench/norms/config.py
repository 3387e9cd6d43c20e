"""The configuration of the norms benchmark, and the cases of its lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from mxpeak.configs.grid import GridCase, GridConfig, cases_of, each
from mxpeak.configs.norms import DIAGS, DTYPE_NAMES, DTYPES, KIND_NAMES, KINDS, LAYOUTS, STRUCTURES, UPLOS
from mxpeak.errors import UsageError
from mxpeak.options import boolean, count, integer, listed, one_of, option, real
from mxpeak.precision import PRECISIONS, Precision


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
    kind: str = "one"
    deterministic: bool = False

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
        return f"{self.tag} M={self.m} N={self.n} NB={self.nb} {self.P}x{self.Q}"

    @property
    def tag(self) -> str:
        """Return the kind, structure, type and layout of the case, for example: one general float64 C."""
        widths = [f"{name}={value}" for name, value in (("kl", self.kl), ("ku", self.ku)) if value is not None]
        words = [self.kind, self.structure, self.uplo, "unit" if self.diag == "unit" else None, *widths]
        words += [self.dtype, self.layout, "deterministic" if self.deterministic else None]
        return " ".join(word for word in words if word)


@dataclass(frozen=True, kw_only=True)
class NormsConfig(GridConfig):
    """Options of `mxpeak run norms`.

    If options are lists, mxpeak runs every combination of the values that a structure uses.
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
    deterministic: bool = option(
        False, boolean, "compute bitwise identical results for any grid, layout and thread count", "norms"
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
        shapes = [{"m": n_ if m is None else m, "n": n_} for m in self.m or (None,) for n_ in sizes]
        matrices = [each(name, getattr(self, name)) for name in ("nb", "seed", "dtype", "layout")]
        return cases_of(NormsCase, self, self.grid_choices(ranks), shapes, *matrices, self._regions())

    def _regions(self) -> Iterator[dict[str, Any]]:
        """Yield the settings of each combination of a structure, the options that the structure uses, and a norm."""
        for structure in self.structure:
            used = STRUCTURES[structure]
            lists = {o: getattr(self, o) if o in used else (None,) for o in ("uplo", "diag", "kl", "ku")}
            for values in product(*lists.values(), dict.fromkeys(self.kind)):  # measure a repeated kind only once
                yield dict(zip((*lists, "kind"), values), structure=structure)

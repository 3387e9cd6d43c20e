"""What the benchmark of norms is told, and the cases that its lists make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from mxpeak.configs.grid import GridCase, GridConfig
from mxpeak.configs.norms import DTYPE_NAMES, DTYPES, KIND_NAMES, LAYOUTS, NORM_KINDS, STRUCTURES
from mxpeak.errors import UsageError
from mxpeak.options import boolean, count, integer, listed, one_of, option, real
from mxpeak.precision import PRECISIONS, Precision


def _called(names: Mapping[str, str]) -> Callable[[str], str]:
    """A parser of one word out of `names`, by which it is known afterwards."""

    def parse(text: str) -> str:
        if text not in names:
            raise UsageError(f"{text!r} is unknown; use one of {', '.join(dict.fromkeys(names.values()))}")
        return names[text]

    return parse


@dataclass(frozen=True, slots=True, kw_only=True)
class NormsCase(GridCase):
    """One measured norm: one choice out of each list of its config, None where the structure has no use for it."""

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
        """The norms that one pass gives."""
        return NORM_KINDS if self.kind == "all" else (self.kind,)

    @property
    def complex(self) -> bool:
        """Whether entries have an imaginary part."""
        return self.dtype.startswith("complex")

    @property
    def precision(self) -> Precision:
        """The format of an entry, or of its real and imaginary part."""
        return PRECISIONS[DTYPES[self.dtype]]

    @property
    def itemsize(self) -> int:
        """Bytes of an entry."""
        return self.precision.bytes * (2 if self.complex else 1)

    @property
    def size(self) -> str:
        """What is measured, and the size that it takes memory for."""
        return f"{self.tag} M={self.m} N={self.n} NB={self.nb} {self.P}x{self.Q}"

    @property
    def tag(self) -> str:
        """What is measured, such as: one general float64 C, and what the structure takes beside its name."""
        named = [f"{name}={value}" for name, value in (("kl", self.kl), ("ku", self.ku)) if value is not None]
        words = [self.kind, self.structure, self.uplo, "unit" if self.diag == "unit" else None, *named]
        words += [self.dtype, self.layout, "deterministic" if self.deterministic else None]
        return " ".join(word for word in words if word)


@dataclass(frozen=True, kw_only=True)
class NormsConfig(GridConfig):
    """All that `mxpeak run norms` can be told; lists run every combination of what the structure takes."""

    n: tuple[int, ...] | None = option(
        None,
        "-N",
        "--n",
        help="number of columns, and of rows without -m (default: 10240)",
        metavar="N,...",
        parse=listed(count(1)),
        group="problem",
    )
    m: tuple[int, ...] | None = option(
        None,
        "-m",
        help="number of rows (default: the number of columns)",
        metavar="M,...",
        parse=listed(count(1)),
        group="problem",
    )
    nb: tuple[int, ...] = option(
        (512,),
        "--nb",
        help="block size of the distribution and the tiles",
        metavar="NB,...",
        parse=listed(integer(1)),
        group="problem",
    )
    seed: tuple[int, ...] = option(
        (100,),
        "--seed",
        help="random seed of the matrix",
        metavar="S,...",
        parse=listed(integer(0, 2**31 - 1)),
        group="problem",
    )
    kind: tuple[str, ...] = option(
        (*NORM_KINDS, "all"),
        "--kind",
        help="norms to compute: max, one, inf, fro, or all (all four in one pass)",
        metavar="NAME,...",
        parse=listed(_called(KIND_NAMES)),
        group="norms",
    )
    structure: tuple[str, ...] = option(
        ("general",),
        "--structure",
        help="matrix structure, which selects the entries to read: " + ", ".join(STRUCTURES),
        metavar="NAME,...",
        parse=listed(one_of(*STRUCTURES)),
        group="norms",
    )
    dtype: tuple[str, ...] = option(
        ("float64",),
        "--dtype",
        help=f"data type of the entries: {', '.join(DTYPES)}, or a short name such as fp64, c64 or d",
        metavar="NAME,...",
        parse=listed(_called(DTYPE_NAMES)),
        group="norms",
    )
    layout: tuple[str, ...] = option(
        ("C",),
        "--layout",
        help="local storage order: C (by rows), F (by columns) or tiles",
        metavar="{C,F,tiles},...",
        parse=listed(one_of(*LAYOUTS)),
        group="norms",
    )
    uplo: tuple[str, ...] = option(
        ("lower",),
        "--uplo",
        help="triangle to read: lower or upper",
        metavar="NAME,...",
        parse=listed(one_of("lower", "upper")),
        group="norms",
    )
    diag: tuple[str, ...] = option(
        ("nonunit",),
        "--diag",
        help="diagonal of a triangular matrix: nonunit (stored) or unit (ones)",
        metavar="NAME,...",
        parse=listed(one_of("nonunit", "unit")),
        group="norms",
    )
    kl: tuple[int, ...] = option(
        (20,),
        "--kl",
        help="number of diagonals below the main diagonal of a band matrix",
        metavar="K,...",
        parse=listed(integer(0)),
        group="norms",
    )
    ku: tuple[int, ...] = option(
        (100,),
        "--ku",
        help="number of diagonals above the main diagonal of a band matrix",
        metavar="K,...",
        parse=listed(integer(0)),
        group="norms",
    )
    deterministic: bool = option(
        False,
        "--deterministic",
        help="compute bitwise identical results for any grid, layout and thread count",
        parse=boolean,
        group="norms",
    )

    # What these two are of a benchmark whose rate is that of memory.
    warmup: str = option(
        "gemm",
        "--warmup",
        help="warm-up before timing; none does not measure the limit (read bandwidth)",
        metavar="{none,gemm,full}",
        parse=one_of("none", "gemm", "full"),
        group="measuring",
    )
    min_gflops: float | None = option(None, "--min-gflops", help="", metavar="X", parse=real(0.0), group="measuring")

    def cases(self, ranks: int, n: Sequence[int] | None = None) -> Iterator[NormsCase]:
        """Every combination, those of one matrix after each other; `n` stands in where the config leaves N open."""
        sizes = self.n if self.n is not None else n
        if sizes is None:
            raise UsageError("the size of the matrix is missing; add -N")
        matrices = (self.grids(ranks), self.m or (None,), sizes, self.nb, self.seed, self.dtype, self.layout)
        for (P, Q), m, n_, nb, seed, dtype, layout in product(*matrices):
            for structure, uplo, diag, kl, ku, kind in self._read():
                yield NormsCase(
                    m=n_ if m is None else m,
                    n=n_,
                    nb=nb,
                    P=P,
                    Q=Q,
                    order=self.order,
                    node_grid=self.node_grid,
                    seed=seed,
                    dtype=dtype,
                    layout=layout,
                    structure=structure,
                    uplo=uplo,
                    diag=diag,
                    kl=kl,
                    ku=ku,
                    kind=kind,
                    deterministic=self.deterministic,
                )

    def _read(self) -> Iterator[tuple[str, str | None, str | None, int | None, int | None, str]]:
        """What is read of a matrix, and which norm is taken: each structure with the options that it takes."""
        for name in self.structure:
            takes = STRUCTURES[name]
            lists = (getattr(self, one) if one in takes else (None,) for one in ("uplo", "diag", "kl", "ku"))
            yield from product((name,), *lists, dict.fromkeys(self.kind))  # a kind named twice is one

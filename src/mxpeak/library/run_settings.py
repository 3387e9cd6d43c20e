"""The settings of `mxpeak.run.hpl(...)` and the others, made by: python tools/typed_settings.py --write

`...Case` gives one result: one value of each setting.  `...Cases` gives a list: several values of some, or a study.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Required, TypedDict


class Common(TypedDict, total=False):
    """Settings of all benchmarks."""

    device: str
    kernels: Literal["auto", "reference", "host", "torch"]
    comm: Literal["auto", "solo", "mpi", "torch"]
    ranks: int | None
    threads: int | None
    mem: str
    quick: bool
    repeat: int
    warmup: Literal["none", "gemm", "full"]
    min_gflops: float | None
    min_share: float | str | None
    watchdog: str
    trace: str | None


class HplCommon(Common, total=False):
    """Settings of `mxpeak.run.hpl` with one value each."""

    order: Literal["row", "column"]
    node_grid: tuple[int, int] | str | None
    target: float | None
    baseline: str | None
    checkpoint: str | None
    every: str
    soak: str | None
    abft: bool
    seed: int
    split: float
    swap: Literal["bin", "long", "mix"]
    swap_threshold: int
    threshold: float


class HplCase(HplCommon, total=False):
    """One case."""

    P: int | None
    Q: int | None
    grid: tuple[int, int] | str | None
    n: int | None
    nb: int
    bcast: str
    depth: int
    pfact: str
    rfact: str
    nbmin: int
    ndiv: int


class HplCases(HplCommon, total=False):
    """Several cases."""

    P: int | Sequence[int] | None
    Q: int | Sequence[int] | None
    grid: tuple[int, int] | str | Sequence[tuple[int, int]] | None
    n: int | Sequence[int] | None
    nb: int | Sequence[int]
    bcast: str | Sequence[str]
    depth: int | Sequence[int]
    pfact: str | Sequence[str]
    rfact: str | Sequence[str]
    nbmin: int | Sequence[int]
    ndiv: int | Sequence[int]
    study: Literal["weak", "strong"] | None
    ranks_list: int | Sequence[int] | None


class HplMxpCommon(Common, total=False):
    """Settings of `mxpeak.run.hpl_mxp` with one value each."""

    order: Literal["row", "column"]
    node_grid: tuple[int, int] | str | None
    target: float | None
    baseline: str | None
    checkpoint: str | None
    every: str
    soak: str | None
    abft: bool
    seed: int
    condition: float
    scaling: Literal["none", "auto"]
    threshold: float
    panel_solves: Literal["low", "fp32"]
    refine: Literal["gmres", "classical"]
    restart: int
    mode: Literal["official", "explore"]
    submit: str | None


class HplMxpCase(HplMxpCommon, total=False):
    """One case."""

    P: int | None
    Q: int | None
    grid: tuple[int, int] | str | None
    n: int | None
    nb: int
    bcast: str
    depth: int
    generator: str
    diagonal_scale: float | None
    precision: str | None


class HplMxpCases(HplMxpCommon, total=False):
    """Several cases."""

    P: int | Sequence[int] | None
    Q: int | Sequence[int] | None
    grid: tuple[int, int] | str | Sequence[tuple[int, int]] | None
    n: int | Sequence[int] | None
    nb: int | Sequence[int]
    bcast: str | Sequence[str]
    depth: int | Sequence[int]
    generator: str | Sequence[str]
    diagonal_scale: float | Sequence[float] | None
    precision: str | Sequence[str] | None
    study: Literal["weak", "strong"] | None
    ranks_list: int | Sequence[int] | None


class HpgMxpCommon(Common, total=False):
    """Settings of `mxpeak.run.hpg_mxp` with one value each."""

    nx: int | None
    ny: int | None
    nz: int | None
    npx: int | None
    npy: int | None
    npz: int | None
    storage: Literal["auto", "rows", "ell", "sell", "packed"]
    smoother: Literal["auto", "natural", "reference", "coloured"]
    colouring: Literal["greedy", "jpl"]
    mode: Literal["official", "explore"]
    rt: float | str | None
    abft: bool
    nonsymmetric: bool
    matrix: str | None
    threshold: float
    iterations: int
    precision: str
    mg_precision: str | Sequence[str] | None
    krylov_precision: str
    value_tolerance: float
    restart: int
    validation: Literal["standard", "fullscale"]


class HpgMxpCase(HpgMxpCommon, total=False):
    """One case."""


class HpgMxpCases(HpgMxpCommon, total=False):
    """Several cases."""

    study: Literal["weak", "strong"] | None
    ranks_list: int | Sequence[int] | None


class HpcgCommon(Common, total=False):
    """Settings of `mxpeak.run.hpcg` with one value each."""

    nx: int | None
    ny: int | None
    nz: int | None
    npx: int | None
    npy: int | None
    npz: int | None
    storage: Literal["auto", "rows", "ell", "sell", "packed"]
    smoother: Literal["auto", "natural", "reference", "coloured"]
    colouring: Literal["greedy", "jpl"]
    mode: Literal["official", "explore"]
    rt: float | str | None
    abft: bool


class HpcgCase(HpcgCommon, total=False):
    """One case."""


class HpcgCases(HpcgCommon, total=False):
    """Several cases."""

    study: Literal["weak", "strong"] | None
    ranks_list: int | Sequence[int] | None


class NormsCommon(Common, total=False):
    """Settings of `mxpeak.run.norms` with one value each."""

    order: Literal["row", "column"]
    node_grid: tuple[int, int] | str | None
    deterministic: bool


class NormsCase(NormsCommon, total=False):
    """One case."""

    P: int | None
    Q: int | None
    grid: tuple[int, int] | str | None
    n: int | None
    m: int | None
    nb: int
    seed: int
    kind: Required[str]
    structure: str
    dtype: str
    layout: str
    uplo: str
    diag: str
    kl: int
    ku: int


class NormsCases(NormsCommon, total=False):
    """Several cases."""

    P: int | Sequence[int] | None
    Q: int | Sequence[int] | None
    grid: tuple[int, int] | str | Sequence[tuple[int, int]] | None
    n: int | Sequence[int] | None
    m: int | Sequence[int] | None
    nb: int | Sequence[int]
    seed: int | Sequence[int]
    kind: str | Sequence[str]
    structure: str | Sequence[str]
    dtype: str | Sequence[str]
    layout: str | Sequence[str]
    uplo: str | Sequence[str]
    diag: str | Sequence[str]
    kl: int | Sequence[int]
    ku: int | Sequence[int]
    study: Literal["weak", "strong"] | None
    ranks_list: int | Sequence[int] | None

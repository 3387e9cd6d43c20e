"""Scaling studies: the size of a benchmark on each rank count, and its efficiency.

weak     constant memory per rank: N grows with sqrt(R); the box per rank of a sparse problem is constant
strong   constant problem
efficiency(R) = (rate(R) / R) / (rate(R0) / R0), where R0 is the smallest rank count
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mxpeak.bench.stencil_sizes import DEFAULT_NX, GPU_NX, GPU_QUICK_NX, QUICK_NX
from mxpeak.configs.grid import GridConfig
from mxpeak.configs.run import RunConfig
from mxpeak.configs.sparse import SparseConfig
from mxpeak.errors import UsageError
from mxpeak.layout.stencil import LEVELS, MIN_SIDE, Box, Triple, check_box, flag_of_cube, process_grid, times
from mxpeak.options import count_text, memory_bytes
from mxpeak.records import Result
from mxpeak.runtime.placement import ranks_here

#: Options that a study does not allow: a process grid, a file of cases, or a comparison of one size.
REFUSED = ("grid", "node_grid", "npx", "npy", "npz", "min_gflops", "target", "baseline", "max_slowdown", "submit")
#: The sides of all boxes are multiples of this number, because multigrid halves them.
STEP = 2 ** (LEVELS - 1)
#: The largest side that the search for a box tries.
LARGEST_SIDE = 1024


def series_settings(name: str, config: RunConfig) -> dict[str, Any]:
    """Check a scaling study, and return its rank counts and the number of ranks to start as settings.

    Errors are raised on all ranks.
    """
    from mxpeak.runtime.launcher import launched, launcher

    started = launcher() if launched() else None
    requested = started[2] if started else config.ranks
    origin = f"{requested} ranks were started" if started else f"--ranks is {requested}"
    largest, of_what = ranks_here(config) if requested is None else (requested, origin)
    rank_counts = rank_counts_of(config.ranks_list, largest, of_what)
    if requested is not None and rank_counts[-1] > requested:
        raise UsageError(
            f"--ranks-list {','.join(map(str, rank_counts))} needs {rank_counts[-1]} ranks, but {of_what}; remove "
            f"{rank_counts[-1]}, or start {rank_counts[-1]} ranks"
        )
    check_study(name, config, rank_counts)
    return {"ranks_list": rank_counts} | ({} if started else {"ranks": requested or rank_counts[-1]})


def rank_counts_of(given: Sequence[int] | None, largest: int, of_what: str) -> tuple[int, ...]:
    """Return the given rank counts in ascending order, or by default `largest` and the powers of two below it.

    Raises a UsageError for repeated counts, or fewer than two.
    """
    if given is None:
        given = sorted({largest, *(2**k for k in range(largest.bit_length()) if 2**k <= largest)})
    text = ",".join(map(str, given))
    if len(set(given)) < len(given):
        twice = next(count for count in given if list(given).count(count) > 1)
        raise UsageError(f"--ranks-list {text} contains {twice} twice; use each rank count once")
    if len(given) < 2:
        raise UsageError(
            f"a scaling study needs at least two rank counts, but --ranks-list {text} has one ({of_what}); use "
            f"--ranks-list 1,2"
        )
    return tuple(sorted(given))


def check_study(name: str, config: RunConfig, counts: Sequence[int]) -> None:
    """Raise a UsageError if the configuration does not allow a scaling study."""
    if not isinstance(config, GridConfig | SparseConfig):
        raise UsageError(
            f"--scaling-study does not support {name} because its sizes do not grow with the ranks; remove "
            "--scaling-study"
        )
    for option in REFUSED:
        if getattr(config, option, None) is not None:
            flag = "--" + option.replace("_", "-")
            raise UsageError(
                f"--scaling-study runs several rank counts and sizes, but {flag} applies to a single run; "
                "remove one of the two flags"
            )
    if isinstance(config, SparseConfig) and config.process_grid == "auto":
        raise UsageError(
            "--scaling-study compares runs on the reference's process grids, but --grid auto selects others; remove "
            "--grid auto"
        )
    if isinstance(config, GridConfig):
        _check_grid(config, counts)
    elif getattr(config, "matrix", None) is None:
        boxes(config, counts)
    elif config.study == "weak":
        raise UsageError(
            "--scaling-study weak changes the problem size, but --matrix fixes it; use --scaling-study strong"
        )


def _check_grid(config: GridConfig, counts: Sequence[int]) -> None:
    """Raise a UsageError if a benchmark on a process grid does not allow a study."""
    if config.P is not None and config.Q is not None:
        raise UsageError("--scaling-study chooses a process grid for each rank count; remove -P or -Q, or both")
    if config.study == "weak" and getattr(config, "m", None) is not None:
        raise UsageError("--scaling-study weak needs square matrices, but -m sets the number of rows; remove -m")
    chosen: Any = config
    for ranks in counts:
        cases = len(list(chosen.cases(ranks, None if chosen.n else [1])))
        if cases != 1:
            raise UsageError(
                f"--scaling-study runs one case per rank count, but the lists of values define {cases} "
                "cases; use one value per option"
            )


def sized(config: RunConfig, counts: Sequence[int], ranks: int, first: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the size options for the run on `ranks` ranks, derived from `first`, the problem on the fewest ranks."""
    if isinstance(config, SparseConfig):
        if getattr(config, "matrix", None) is not None:
            return {}
        return dict(zip(("nx", "ny", "nz"), boxes(config, counts)[ranks]))
    chosen: Any = config
    if first is None:
        return {} if chosen.n else _open_size(config, counts)
    (P, Q), nb = chosen.grids(ranks)[0], first["nb"]
    n = order(first["n"], ranks / counts[0], nb * math.lcm(P, Q)) if config.study == "weak" else first["n"]
    return {"n": (n,)}


def order(n: int, growth: float, multiple: int) -> int:
    """Return N·sqrt(growth) rounded to a multiple of `multiple`, because the memory of a matrix grows with N²."""
    return max(1, round(n * math.sqrt(growth) / multiple)) * multiple


def _open_size(config: RunConfig, counts: Sequence[int]) -> dict[str, Any]:
    """Return the option `mem` for the run on the fewest ranks, with which the largest run also fits into memory."""
    if config.study == "strong" or config.on_gpu or config.quick:
        return {}
    share = counts[0] / counts[-1]
    if config.mem.endswith("%"):
        return {"mem": f"{float(config.mem[:-1]) * share:g}%"}
    return {"mem": f"{share * memory_bytes(config.mem, 0) / 2**20:g}MiB"}


def boxes(config: SparseConfig, counts: Sequence[int]) -> dict[int, Triple]:
    """Return the box per rank for every rank count; raise a UsageError if the global box cannot be divided."""
    if config.shape is not None:
        return _boxes(config, config.shape, counts)
    default, quick = (GPU_NX, GPU_QUICK_NX) if config.on_gpu else (DEFAULT_NX, QUICK_NX)
    nx = quick if config.quick else default
    for side in range(nx - nx % STEP, 0, -STEP):
        if not any(misfits(config, (side,) * 3, counts)):
            return _boxes(config, (side,) * 3, counts)
    return _boxes(config, (nx,) * 3, counts)


def _boxes(config: SparseConfig, shape: Triple, counts: Sequence[int]) -> dict[int, Triple]:
    """Return the box per rank for every rank count, given the box `shape` per rank on the fewest ranks."""
    if config.study == "weak":
        for ranks in counts:
            check_box(
                Box.of(0, shape, process_grid(ranks)), rules=config.mode == "official", by_box=config.sides_from_box
            )
        return dict.fromkeys(counts, shape)
    why = next(filter(None, misfits(config, shape, counts)), "")
    if why:
        raise UsageError(f"--scaling-study strong: {why}; {_advice(config, shape, counts)}")
    whole = _whole(shape, counts[0])
    return {ranks: _divided(whole, process_grid(ranks)) for ranks in counts}


def misfits(config: SparseConfig, shape: Triple, counts: Sequence[int]) -> list[str]:
    """Return one text per rank count: the reason why the global box cannot be divided, or an empty text."""
    whole = _whole(shape, counts[0])
    return [_misfit(whole, ranks, process_grid(ranks), rules=config.mode == "official") for ranks in counts]


def _misfit(whole: Triple, ranks: int, grid: Triple, *, rules: bool) -> str:
    """Return the reason why a global box cannot be divided among the ranks, or an empty text."""
    head = f"a box of {times(whole)} points on {count_text(ranks, 'rank')} ({times(grid)})"
    for n, p in zip(whole, grid):
        if n % p:
            return f"{head}: {n} / {p} leaves a remainder of {n % p}"
        side = f"{n} / {p} = {n // p}" if p > 1 else f"{n}"
        if n // p % STEP:
            return f"{head}: {side} is not a multiple of {STEP}, but {LEVELS} levels of multigrid need one"
        if rules and n // p < MIN_SIDE:
            return f"{head}: {side} is less than {MIN_SIDE}, the smallest side that the rules allow"
    try:
        check_box(Box.of(0, _divided(whole, grid), grid), rules=rules)
    except UsageError as error:
        return f"{head}: {error}".split(";")[0]
    return ""


def _whole(shape: Triple, fewest: int) -> Triple:
    """Return the sides of the global box if each of the fewest ranks has the box `shape`."""
    return Box.of(0, shape, process_grid(fewest)).global_shape


def _divided(whole: Triple, grid: Triple) -> Triple:
    """Return the box of one rank, the quotient of the global box and the process grid."""
    x, y, z = (n // p for n, p in zip(whole, grid))
    return x, y, z


def _advice(config: SparseConfig, shape: Triple, counts: Sequence[int]) -> str:
    """Return advice that names the closest cubic box that can be divided."""
    sides = sorted(range(STEP, LARGEST_SIDE + 1, STEP), key=lambda side: abs(side - shape[0]))
    side = next((side for side in sides if not any(misfits(config, (side,) * 3, counts))), None)
    if side is None:
        return "remove some rank counts from --ranks-list"
    return f"use {flag_of_cube(side, by_box=config.sides_from_box)}"


#: A function that returns the source, a description and the expected rates of results.
Expected = Callable[[Sequence[Result]], tuple[str, str, list[float]]]


def scaling_study(
    config: RunConfig, threads: int, runs: Sequence[tuple[int, Result | None]], expected: Expected
) -> dict[str, Any]:
    """Return the section `study` of a result file, with the measured and the expected rate for each rank count."""
    points = [_point(ranks, result) for ranks, result in runs]
    valid = [result for _, result in runs if result is not None and result.passed]
    source, description, rates = "none", "no rate on the fewest ranks", list[float]()
    if valid and points[0]["rate"]:
        source, description, rates = expected(valid)
    for point, rate in zip([p for p in points if p["rate"]], rates):
        point["expected_rate"] = rate
    for name in ("", "expected_"):
        base = points[0][f"{name}rate"]
        for point in points:
            rate = point[f"{name}rate"]
            share = None if not base or not rate else rate / point["ranks"] / (base / points[0]["ranks"])
            point[f"{name}efficiency"] = share
    return {
        "kind": config.study,
        "ranks_list": [ranks for ranks, _ in runs],
        "threads": threads,
        "unit": "byte/s" if any("rate_bytes" in result.result for result in valid) else "flop/s",
        "expected": {"source": source, "text": description},
        "points": points,
    }


def _point(ranks: int, result: Result | None) -> dict[str, Any]:
    """Return the entry of a study for one rank count; only a valid result has a rate."""
    point: dict[str, Any] = {"ranks": ranks, "status": "none" if result is None else result.status}
    figures = {} if result is None or not result.passed else result.result
    rate = figures.get("rate_flops", figures.get("rate_bytes"))
    problem = {} if result is None else result.problem
    sizes = ("n", "nb", "P", "Q", "nx", "ny", "nz", "npx", "npy", "npz")
    held = _memory_bytes(problem.get("memory_bytes") or {})
    return {
        **point,
        "problem": {name: problem[name] for name in sizes if name in problem},
        "oversubscribed": result is not None and any(warning.code == "oversubscribed" for warning in result.warnings),
        "bytes_per_rank": None if held is None else held // ranks,
        "time_s": figures.get("time_s"),
        "rate": rate,
        "rate_per_rank": rate / ranks if rate else None,
        "expected_rate": None,
        "validations": [] if result is None else _validations(result.validation),
    }


def _validations(check: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the iterations of both solvers of HPG-MxP in each validation (Kashi et al., table 2), or []."""
    names = ("type", "ranks", "double_iterations", "mixed_iterations", "ratio", "double_residual", "passed")
    both = [each for each in (check, check.get("fullscale")) if each and each.get("mixed_iterations") is not None]
    return [{name: each.get(name) for name in names} for each in both]


def _memory_bytes(memory: Mapping[str, Any]) -> int | None:
    """Return the memory of all ranks in bytes: the total, or the sum over both solvers."""
    if "total" in memory:
        return int(memory["total"])
    parts = [memory[name] for name in ("double", "mixed") if memory.get(name) is not None]
    return int(sum(parts)) if parts else None

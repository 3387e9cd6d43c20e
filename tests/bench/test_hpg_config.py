"""Test the options of `mxpeak run hpg-mxp` and `run hpcg`, the box of each rank, and its memory."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, replace
from math import prod
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mxpeak.bench.hpcg.config import HpcgConfig
from mxpeak.bench.hpcg.run import Hpcg
from mxpeak.bench.hpg_mxp.config import BASIS_PRECISIONS, SPARSE_PRECISIONS, VECTOR_PRECISIONS, HpgMxpConfig
from mxpeak.bench.hpg_mxp.rules import without_effect
from mxpeak.bench.scaling import check_study
from mxpeak.bench.sparse import hierarchies_of
from mxpeak.bench.sparse_result import mesh_section
from mxpeak.bench.stencil_sizes import (
    HierarchySize,
    box_of,
    completed_grid,
    fitted,
    largest_fitting,
    line,
    memory_need,
    points_entries,
)
from mxpeak.comm.transports.solo import Solo
from mxpeak.configs.sparse import SparseConfig
from mxpeak.distributed.stencil import Form, make_stencil, weights
from mxpeak.errors import ResourceError, UsageError
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.stencil import Box, Triple
from mxpeak.options import options, resolve
from mxpeak.precision import PRECISIONS
from mxpeak.report.sparse_text import problem_text
from mxpeak.runtime.memory import Budget
from mxpeak.spans import Spans

CONFIGS = (HpcgConfig, HpgMxpConfig)
#: Doubles with 32-bit column numbers, and HPG-MxP's second, narrow solver with its basis.
DOUBLE, MIXED = HierarchySize((8,) * 4, 8), HierarchySize((2,) * 4, 4, basis=31, index_bytes=2)


def parsed(name: str, text: str) -> Any:
    return resolve(HpgMxpConfig, {name: text}, {}, {})[name].value


def settled(flags: dict[str, str], file: dict[str, Any]) -> SparseConfig:
    settings = SparseConfig.settle(resolve(HpgMxpConfig, flags, {}, file))
    return HpgMxpConfig(**{name: setting.value for name, setting in settings.items()})


# --- parsing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("nx", "64", 64),
        ("npz", "3", 3),
        ("box", "64x32x16", (64, 32, 16)),
        ("rt", "0", 0.0),
        ("rt", "1800", 1800.0),
        ("storage", "sell", "sell"),
        ("smoother", "natural", "natural"),
        ("colouring", "jpl", "jpl"),
        ("mode", "explore", "explore"),
        ("precision", "auto", "auto"),
        ("precision", "fp8", "fp8"),
        ("mg_precision", "fp32,fp16,fp16,fp64", ("fp32", "fp16", "fp16", "fp64")),
        ("krylov_precision", "fp64", "fp64"),
        ("krylov_precision", "bf16", "bf16"),
        ("validation", "fullscale", "fullscale"),
        ("nonsymmetric", "yes", True),
        ("matrix", "west0479.mtx", "west0479.mtx"),
        ("threshold", "1e-6", 1e-6),
        ("iterations", "50", 50),
        ("value_tolerance", "0.01", 0.01),
        ("restart", "40", 40),
        ("trace", "spans.json", "spans.json"),
    ],
)
def test_texts_become_values(name: str, text: str, value: Any):
    assert parsed(name, text) == value


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("box", "64x64", "--box: '64x64' is not a box; use three sides, such as 104x104x96"),
        ("box", "64x0x64", "--box: 0 is out of range; use an integer from 1 to "),
        ("nx", "0", "--nx: 0 is out of range; use an integer from 1 to "),
        ("nx", "64,128", "--nx: '64,128' is not an integer"),
        ("rt", "-1", "--rt: -1 is out of range; use a number of at least 0"),
        ("storage", "csr", "--storage: 'csr' is unknown; use one of auto, rows, ell, sell, packed"),
        ("smoother", "red", "--smoother: 'red' is unknown; use one of auto, natural, reference, coloured"),
        ("precision", "tf32", "--precision: 'tf32' is unknown; use one of auto, fp64, fp32, bf16, fp16, fp8"),
        ("krylov_precision", "fp8", "--krylov-precision: 'fp8' is unknown; use one of fp64, fp32, bf16, fp16"),
        ("mg_precision", "fp32,int8", "--mg-precision: 'int8' is unknown"),
        ("threshold", "0", "--threshold: 0 is out of range"),
        ("restart", "0", "--restart: 0 is out of range"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_flag_and_the_choices(name: str, text: str, says: str):
    with pytest.raises(UsageError) as caught:
        parsed(name, text)
    assert says in str(caught.value)


def test_the_defaults_are_the_benchmarks():
    config = HpgMxpConfig()
    assert (config.restart, config.iterations, config.threshold, config.validation) == (30, 300, 1e-9, "standard")
    assert (config.precision, config.mode, config.smoother, config.rt) == ("auto", "official", "auto", None)
    assert config.shape is None


@pytest.mark.parametrize("config", CONFIGS)
def test_every_option_has_a_flag_a_help_and_a_place(config: type):
    for option in options(config):
        assert option.help
        assert option.group
        name = {"study": "scaling-study", "process_grid": "grid"}.get(option.name, option.name)
        assert option.flags[-1] == "--" + name.replace("_", "-")
    names = {o.name for o in options(config)}
    assert {"nx", "npx", "rt", "mode", "mem", "threads", "ranks", "repeat", "quick"} <= names
    assert names.isdisjoint({"n", "nb", "P", "Q", "grid", "bcast"})


def test_a_config_is_one_case_that_nothing_changes():
    config = HpcgConfig(nx=16)
    with pytest.raises(FrozenInstanceError):
        config.nx = 32  # type: ignore[misc]
    assert hash(config) == hash(HpcgConfig(nx=16))
    assert not {"precision", "restart", "matrix"} & {o.name for o in options(HpcgConfig)}, "these are HPG-MxP's"


def test_the_formats_are_known_ones():
    assert set(SPARSE_PRECISIONS) <= set(PRECISIONS)
    assert {*VECTOR_PRECISIONS, *BASIS_PRECISIONS} < set(SPARSE_PRECISIONS)


def test_a_basis_in_16_bits_is_that_of_fp32_vectors():
    for name in (*VECTOR_PRECISIONS, *BASIS_PRECISIONS):
        config = HpgMxpConfig(krylov_precision=name)
        narrow = PRECISIONS[name].bytes == 2
        assert config.basis_precision == (name if narrow else None)
        assert config.vector_precision == ("fp32" if narrow else name)


def test_formats_of_levels_are_one_for_all_or_one_each():
    assert HpgMxpConfig(precision="fp16").mg_precisions(4) == ("fp16",) * 4
    assert HpgMxpConfig(mg_precision=("bf16",)).mg_precisions(3) == ("bf16",) * 3
    each = ("fp32", "fp16", "fp16", "fp64")
    assert HpgMxpConfig(mg_precision=each).mg_precisions(4) == each
    assert HpgMxpConfig(mg_precision=("fp32",)).mg_precisions(1) == ("fp32",)
    with pytest.raises(
        UsageError, match="--mg-precision fp32,fp16 has 2 formats for 4 levels; use one for all levels, or 4"
    ):
        HpgMxpConfig(mg_precision=("fp32", "fp16")).mg_precisions(4)


# --- sizes ------------------------------------------------------------------------------------------------------


def test_the_box_is_a_cube_of_nx_unless_the_others_are_given():
    assert HpcgConfig(nx=64).shape == (64, 64, 64)
    assert HpcgConfig(nx=64, nz=32).shape == (64, 64, 32)
    assert HpcgConfig(nx=64, ny=16, nz=32).shape == (64, 16, 32)
    with pytest.raises(UsageError, match=r"--nz 32 needs --nx; add --nx 32"):
        _ = HpcgConfig(nz=32).shape


def test_a_typed_nx_displaces_the_other_sides_of_a_file():
    file = {"nx": 32, "ny": 32, "nz": 64}
    assert settled({}, file).shape == (32, 32, 64)
    assert settled({"nx": "48"}, file).shape == (48, 48, 48)
    assert settled({"nz": "48"}, file).shape == (32, 32, 48)
    assert settled({"nx": "48", "nz": "96"}, file).shape == (48, 48, 96)
    assert settled({"box": "48x96x16"}, file).shape == (48, 96, 16)
    assert settled({"nz": "96"}, {"box": "48x48x16"}).shape == (48, 48, 96)
    assert settled({"nx": "96"}, {"box": "48x48x16"}).shape == (96, 96, 96)
    assert settled({"box": "48x96x16"}, {}).box is None, "one representation: nx, ny and nz"


def test_errors_name_the_box_flag_only_if_it_sets_all_sides():
    assert settled({"box": "48x96x16"}, {"nx": 32}).sides_from_box
    assert settled({}, {"box": "48x96x16"}).sides_from_box
    assert not settled({"nz": "96"}, {"box": "48x48x16"}).sides_from_box
    assert not settled({"nx": "96"}, {}).sides_from_box
    assert not settled({}, {}).sides_from_box


@pytest.mark.parametrize("side", ["nx", "ny", "nz"])
def test_a_box_and_a_side_from_the_same_source_conflict(side: str):
    with pytest.raises(UsageError) as caught:
        settled({"box": "48x48x48", side: "16"}, {})
    assert f"--box 48x48x48 conflicts with --{side} 16" in str(caught.value)


def test_a_typed_side_of_the_grid_displaces_the_grid_of_a_file():
    file = {"npx": 1, "npy": 2, "npz": 4}
    assert completed_grid(settled({}, file), 8) == (1, 2, 4)
    assert completed_grid(settled({"npx": "2"}, file), 8) == (2, 2, 2)


def test_sizes_left_open_are_the_references_or_quick():
    assert box_of(HpcgConfig(), 0, 1).shape == (104, 104, 104)
    assert box_of(HpcgConfig(quick=True), 0, 1).shape == (48, 48, 48)
    assert box_of(HpcgConfig(quick=True, nx=16), 0, 1).shape == (16, 16, 16)


@pytest.mark.parametrize("config", [HpcgConfig, HpgMxpConfig])
def test_the_process_grid_of_devices_is_that_of_the_reference_unless_another_is_typed(config: Any) -> None:
    for ranks, grid in ((8, (2, 2, 2)), (64, (4, 4, 4)), (512, (8, 8, 8)), (6, (1, 2, 3))):
        assert box_of(config(device="cuda"), 0, ranks).grid == box_of(config(), 0, ranks).grid == grid
    assert box_of(config(device="cuda", npx=1, npy=1, npz=8), 0, 8).grid == (1, 1, 8)


@pytest.mark.parametrize(
    ("ranks", "grid"),
    [
        (1, (1, 1, 1)),
        (2, (1, 1, 2)),
        (6, (1, 1, 6)),
        (8, (1, 1, 8)),
        (11, (1, 1, 11)),
        (16, (1, 2, 8)),
        (64, (1, 8, 8)),
        (512, (2, 16, 16)),
    ],
)
def test_grid_auto_has_the_fewest_faces_on_devices_and_is_the_cube_elsewhere(ranks: int, grid: Triple) -> None:
    assert completed_grid(HpgMxpConfig(device="cuda", process_grid="auto"), ranks) == grid
    assert completed_grid(HpgMxpConfig(process_grid="auto"), ranks) == completed_grid(HpgMxpConfig(), ranks)


def test_grid_auto_conflicts_with_given_sides_and_with_scaling_studies() -> None:
    with pytest.raises(UsageError, match="--grid auto chooses all sides of the grid, but --npx 2 also sets it"):
        completed_grid(HpgMxpConfig(process_grid="auto", npx=2), 8)
    with pytest.raises(UsageError, match="remove --grid auto"):
        check_study("hpg-mxp", HpgMxpConfig(process_grid="auto", study="weak"), [1, 2])


def test_another_grid_than_the_references_is_labeled() -> None:
    for grid, label in (((1, 1, 8), True), ((2, 2, 2), False)):
        section = mesh_section(Box.of(0, (16, 16, 16), grid))
        assert ("not the reference's grid" in problem_text(section, None)) is label


def test_every_rank_has_its_own_box_of_the_same_problem():
    boxes = [box_of(HpgMxpConfig(nx=16, nz=24), rank, 12) for rank in range(12)]
    assert [box.rank for box in boxes] == list(range(12))
    assert {box.global_shape for box in boxes} == {(32, 32, 72)}
    assert len({box.origin for box in boxes}) == 12
    assert sum(box.rows for box in boxes) == boxes[0].global_rows


@pytest.mark.parametrize(
    ("asked", "ranks", "grid"),
    [
        ({}, 1, (1, 1, 1)),
        ({}, 12, (2, 2, 3)),
        ({"npx": 4}, 8, (4, 1, 2)),
        ({"npz": 1}, 6, (2, 3, 1)),
        ({"npy": 3, "npz": 2}, 12, (2, 3, 2)),
        ({"npx": 2, "npy": 1, "npz": 2}, 4, (2, 1, 2)),
    ],
)
def test_a_grid_partly_given_is_completed(asked: dict[str, int], ranks: int, grid: tuple[int, int, int]):
    assert completed_grid(HpcgConfig(**asked), ranks) == grid
    assert prod(grid) == ranks


@pytest.mark.parametrize(
    ("asked", "ranks", "says"),
    [
        (
            {"npx": 3},
            8,
            "--npx 3 does not divide the number of ranks: 8 / 3 leaves a remainder of 2; start 9 ranks (--ranks 9, "
            "or mpiexec -n 9), or remove --npx 3 for the grid 2x2x2",
        ),
        (
            {"npx": 2, "npz": 3},
            8,
            "--npx 2 --npz 3 does not divide the number of ranks: 2*3 = 6, and 8 / 6 leaves a remainder of 2; "
            "start 6 ranks (--ranks 6, or mpiexec -n 6), or remove --npx 2 --npz 3 for the "
            "grid 2x2x2",
        ),
        (
            {"npx": 2, "npy": 2, "npz": 2},
            16,
            "--npx 2 --npy 2 --npz 2 needs 2*2*2 = 8 ranks, but there are 16; start 8 "
            "ranks (--ranks 8, or mpiexec -n 8), or remove --npx 2 --npy 2 --npz 2 "
            "for the grid 2x2x4",
        ),
        (
            {"npx": 2},
            1,
            "--npx 2 does not divide the number of ranks: 1 / 2 leaves a remainder of 1; start 2 ranks (--ranks 2, "
            "or mpiexec -n 2), or remove --npx 2 for the grid 1x1x1",
        ),
        (
            {"npx": 2, "npy": 1, "npz": 1},
            1,
            "--npx 2 --npy 1 --npz 1 needs 2*1*1 = 2 ranks, but there is 1; start 2 "
            "ranks (--ranks 2, or mpiexec -n 2), or remove --npx 2 --npy 1 --npz 1 "
            "for the grid 1x1x1",
        ),
    ],
)
def test_a_grid_that_is_not_of_all_ranks_is_refused(asked: dict[str, int], ranks: int, says: str):
    with pytest.raises(UsageError, match=f"^{re.escape(says)}$"):
        completed_grid(HpcgConfig(**asked), ranks)


@pytest.mark.parametrize(
    ("values", "ranks", "says"),
    [
        ({"nx": 100}, 1, "100 / 8 leaves a remainder of 4); use --nx 96 or --nx 104"),
        ({"nx": 8}, 1, "--nx 8 is less than 16"),
        ({"nx": 16, "nz": 136}, 1, "16/136 = 0.118, but the rules need at least 0.125"),
        ({"nx": 16}, 11, "start 10 (1x2x5) or 12 (2x2x3) ranks"),
        ({"nx": 16, "npx": 9}, 9, "use --npx 1 --npy 3 --npz 3"),
        ({"nx": 432}, 1, "27*432*432*432 = 2176782336"),
    ],
)
def test_a_box_against_the_rules_is_refused_before_anything_is_made(values: dict[str, int], ranks: int, says: str):
    for rank in (0, ranks - 1):
        with pytest.raises(UsageError, match=re.escape(says)):
            box_of(HpcgConfig(**values), rank, ranks)


def test_explore_takes_boxes_that_the_rules_do_not():
    assert box_of(HpgMxpConfig(nx=8, mode="explore"), 10, 11).grid == (1, 1, 11)
    with pytest.raises(UsageError, match="12 / 8 leaves a remainder of 4"):
        box_of(HpgMxpConfig(nx=12, mode="explore"), 0, 1)


# --- memory -----------------------------------------------------------------------------------------------------


def test_memory_is_the_formula():
    box, rows = Box(16, 16, 16), 16**3
    hierarchy = HierarchySize((8, 4), 8, basis=3)
    parts = memory_need(box, [hierarchy])
    assert parts["matrix"] == 27 * (rows * 12 + rows // 8 * 8)
    assert parts["vectors"] == 3 * 8 * (rows + rows // 8) + 5 * 8 * rows
    assert parts["halo"] == 0
    assert parts["basis"] == 3 * 8 * rows
    assert parts["setup"] == 12 * 27 * rows
    assert parts["total"] == parts["matrix"] + parts["vectors"] + parts["setup"]
    assert memory_need(box, [replace(hierarchy, basis_bytes=2)])["basis"] == (3 * 2 + 8) * rows, "and one vector more"
    apart = memory_need(box, [replace(hierarchy, points_apart=True)])
    assert 27 * apart["matrix"] == 29 * parts["matrix"]
    joined = memory_need(box, [replace(hierarchy, joined=True)])
    assert joined["setup"] == (12 + 132) * 27 * rows, "in one piece"
    large = memory_need(Box(256, 256, 256), [replace(hierarchy, joined=True)])
    assert large["setup"] == (12 + 8 + 4) * 27 * 256**3


@pytest.mark.parametrize("storage", ["packed", "rows"])
@pytest.mark.parametrize("shape", [(16, 16, 16), (24, 16, 16), (40, 16, 16), (72, 16, 16)])
def test_copies_of_the_coarser_points_have_no_more_entries_than_the_formula(shape: Triple, storage: str) -> None:
    kernels, box = HostKernels(1).sparse, Box(*shape)
    form = Form(("fp64", "fp64"), "fp64", storage, symmetric=True)
    made = make_stencil(kernels, Solo(), box.levels(2), [form], "surface_last", weights(), Spans())
    (coarse,) = made.levels(0)[0].A.A.coarse
    stored = sum(copy.values.size for copy in coarse.copies.values())
    (one,) = hierarchies_of([form], 0, "surface_last")
    assert one.points_apart
    assert points_entries(box, one) / 2 < stored <= points_entries(box, one)


def test_memory_is_that_of_the_rank_with_neighbours_all_around():
    corner, centre = Box(16, 16, 16, 3, 3, 3), Box(16, 16, 16, 3, 3, 3, 1, 1, 1)
    assert memory_need(corner, [DOUBLE]) == memory_need(centre, [DOUBLE])
    halo = sum((n + 2) ** 3 - n**3 for n in (16, 8, 4, 2))
    assert memory_need(corner, [DOUBLE])["halo"] == 2 * 8 * halo


def test_a_second_solver_adds_its_matrices_and_the_larger_basis_counts():
    box = Box(64, 64, 64)
    double = HierarchySize((8,) * 4, 8, basis=31)
    both, first, second = (memory_need(box, some) for some in ([double, MIXED], [double], [MIXED]))
    assert both["matrix"] == first["matrix"] + second["matrix"]
    assert both["basis"] == first["basis"] == 2 * second["basis"]
    assert both["setup"] == first["setup"]
    assert both["total"] == sum(both[part] for part in ("matrix", "vectors", "halo", "setup"))


def test_memory_of_the_hierarchy_is_that_of_the_literature():
    # 320 cubed with 27 entries of 12 bytes per row and an eighth more per level: 12.13 GB.
    assert memory_need(Box(320, 320, 320), [DOUBLE])["matrix"] == pytest.approx(12.13e9, rel=0.001)
    assert memory_need(Box(320, 320, 320), [MIXED])["basis"] == pytest.approx(4.06e9, rel=0.002)


def test_a_box_that_fits_is_kept():
    box, roomy = Box(104, 104, 104), Budget(limit=2**40, default=2**40, ranks_a_node=1)
    assert fitted(box, HpgMxpConfig(nx=104), [DOUBLE, MIXED], roomy) == (box, None)
    assert fitted(box, HpgMxpConfig(), [DOUBLE, MIXED], roomy) == (box, None)
    assert "NOT" not in line(box, [DOUBLE, MIXED], roomy)


def test_a_size_that_was_typed_and_does_not_fit_is_refused_with_the_largest_that_does():
    box, budget = Box(104, 104, 104, 2, 2, 2), Budget(limit=2**31, default=2**31, ranks_a_node=8)
    with pytest.raises(ResourceError) as caught:
        fitted(box, HpgMxpConfig(nx=104), [DOUBLE, MIXED], budget)
    text = str(caught.value)
    nx = largest_fitting(box, [DOUBLE, MIXED], budget, budget.limit)
    assert "a local box of 104x104x104 needs matrix " in text
    assert f"use --nx {nx}, the largest cube that fits" in text
    assert "2 GiB per node is available" in text
    need = 8 * memory_need(Box(nx, nx, nx, 2, 2, 2), [DOUBLE, MIXED])["total"]
    more = 8 * memory_need(Box(nx + 8, nx + 8, nx + 8, 2, 2, 2), [DOUBLE, MIXED])["total"]
    assert need <= budget.limit < more
    assert "does not fit: only 2 GiB per node is available" in line(box, [DOUBLE, MIXED], budget)


def test_a_size_left_open_shrinks_to_what_fits_and_says_so():
    box, budget = box_of(HpgMxpConfig(), 3, 4), Budget(limit=2**40, default=2**30, ranks_a_node=4)
    smaller, caution = fitted(box, HpgMxpConfig(), [DOUBLE, MIXED], budget)
    assert caution is not None
    assert caution.code == "size"
    assert "local boxes of 104x104x104 need" in caution.text
    assert smaller.shape == (smaller.nx,) * 3
    assert smaller.nx == largest_fitting(box, [DOUBLE, MIXED], budget, 2**30) < 104
    assert (smaller.coords, smaller.grid) == (box.coords, box.grid)


@pytest.mark.parametrize("config", [HpgMxpConfig(), HpgMxpConfig(nx=104)])
def test_a_budget_for_nothing_says_so(config: HpgMxpConfig):
    budget = Budget(limit=10**6, default=10**6, ranks_a_node=1)
    with pytest.raises(ResourceError, match=r"0\.954 MiB per node is available .*; even --nx 16 does not fit"):
        fitted(Box(104, 104, 104), config, [DOUBLE, MIXED], budget)


def test_nodes_with_more_ranks_hold_smaller_boxes():
    few, many = (largest_fitting(Box(16, 16, 16, 2, 2, 2), [DOUBLE], Budget(0, 0, ranks), 2**34) for ranks in (1, 8))
    assert few > many > 0


@pytest.mark.parametrize("smoother", ["coloured", "natural"])
def test_the_reference_iterations_copy_points_whatever_order_the_sweeps_are_asked_for(smoother: str):
    """The reference iterations keep the natural order of rows."""
    requests = list[Any]()

    def box(kinds: Any) -> Box:
        requests.extend(kinds)
        return Box(16, 16, 16)

    config = HpcgConfig(nx=16, smoother=smoother, storage="packed", quick=True)
    Hpcg(cast(Any, SimpleNamespace(config=config, comm=Solo(), kernels=SimpleNamespace(sparse=None), box=box)))
    assert [{one.points_apart for one in kind} for kind in requests] == [{True}, {smoother == "natural"}]


@pytest.mark.parametrize(
    ("values", "notes"),
    [
        ({"precision": "fp32", "validation": "both", "validation_ranks": 2}, []),
        ({"run_type": "double", "precision": "fp64"}, []),
        (
            {"run_type": "double", "precision": "bf16", "krylov_precision": "fp64"},
            ["--precision bf16 has no effect: --run-type double computes in fp64",
             "--krylov-precision fp64 has no effect: --run-type double computes in fp64"],
        ),
        (
            {"precision": "fp32", "mg_precision": ("fp32", "fp64", "fp64", "fp64")},
            ["--precision fp32 has no effect: --mg-precision sets all formats"],
        ),
        (
            {"validation": "fullscale", "validation_ranks": "node"},
            ["--validation-ranks node has no effect: --validation fullscale uses all ranks"],
        ),
    ],
)  # fmt: skip
def test_a_note_names_each_flag_without_effect(values: dict[str, Any], notes: list[str]) -> None:
    assert without_effect(HpgMxpConfig(**values)) == notes

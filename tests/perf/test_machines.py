"""Test machines from tables: numbers with their sources, and the place of every mistake."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mxpeak.errors import UsageError
from mxpeak.perf.simulation.lu import LuRun
from mxpeak.perf.simulation.machines import INHERITED_SPREAD, Curve, Machine, find_machine, known_machines
from mxpeak.perf.simulation.predict import predict, simulate_lu

WHOLE = """
[mine]
ranks_per_node = 4
cores = 8
memory_bytes = 80e9
memory_rate = 2e12
[mine.network]
nics = 2
nic_rate = 25e9
latency_s = 2e-6
local_rate = 100e9
[mine.gemm]
fp16 = [[512, 100e12], [2048, 200e12]]
fp64 = { value = 1, points = [[512, 20e12]], source = "measured" }
"""


def written(folder: Path, text: str) -> str:
    file = folder / "mine.toml"
    file.write_text(text)
    return str(file)


def test_a_curve_is_linear_between_the_logarithms_of_sizes_and_constant_outside() -> None:
    curve = Curve(((512, 100.0), (2048, 200.0)))
    assert [curve(size) for size in (1, 512, 1024, 2048, 10**6)] == [100.0, 100.0, 150.0, 200.0, 200.0]
    assert curve.times(2.0)(1024) == 300.0


@pytest.mark.parametrize("name", known_machines())
def test_every_number_of_a_known_machine_says_where_it_is_from(name: str) -> None:
    machine = find_machine(name)
    assert machine.sources
    assert all(len(source) >= 4 and source != "not stated" for source in machine.sources.values())


def test_a_file_describes_a_machine_alone_or_on_top_of_a_known_one(tmp_path: Path) -> None:
    machine = find_machine(written(tmp_path, WHOLE))
    assert (machine.name, machine.ranks_per_node, machine.network.nics, machine.gemm["fp16"](1024)) == (
        "mine",
        4,
        2,
        150e12,
    )
    assert machine.network.host_rate == machine.network.local_rate, "where nothing else is said"
    assert machine.sources["gemm.fp64"] == "measured"
    based = find_machine(written(tmp_path, '[mine]\nbased_on = "frontier"\n[mine.network]\nnics = 8\n'))
    frontier = find_machine("frontier")
    assert (based.network.nics, based.title) == (8, "mine"), "not Frontier's"
    assert based.network.nic_rate == frontier.network.nic_rate
    assert based.gemm == frontier.gemm


def test_ports_are_shared_by_those_that_send_and_one_rank_reaches_one() -> None:
    network = find_machine("frontier").network
    assert network.rate(1) == network.rate(4) == network.nic_rate
    assert network.rate(8) == network.nic_rate / 2


def test_a_gcd_has_64_gib_and_a_v100_16_of_which_the_system_keeps_some() -> None:
    # A GCD has 68,702,699,520 bytes in OpenMxP's log; a V100-SXM2-16GB has 16,160 MiB.
    memory = {name: find_machine(name).memory_bytes for name in known_machines()}
    assert memory["summit"] == pytest.approx(16160 * 2**20, rel=1e-3)
    assert {memory[name] for name in ("frontier", "crusher", "frontier-2022")} == {68702699520}
    assert all(0.98 < memory[name] / whole <= 1 for name, whole in (("summit", 16 * 2**30), ("frontier", 64 * 2**30)))


def test_products_have_a_rate_by_inner_size_and_by_the_side_of_what_they_update(tmp_path: Path) -> None:
    shares = "[mine.gemm_share]\nfp16 = [[1000, 0.5], [4000, 0.8]]\n"
    machine = find_machine(written(tmp_path, WHOLE + shares))
    assert [machine.gemm_rate("fp16", 2048, side) for side in (10, 2000, 8000)] == pytest.approx([1e14, 1.3e14, 1.6e14])
    assert machine.gemm_rate("fp64", 512, 10) == 20e12, "of which no share is known"
    assert machine.varied(0.5, 1.0).gemm_rate("fp16", 2048, 10) == 0.5e14


def test_shares_of_a_base_s_rates_are_not_those_of_other_rates(tmp_path: Path) -> None:
    frontier = find_machine("frontier")
    assert set(frontier.gemm_share) == {"fp16"}
    text = '[mine]\nbased_on = "frontier"\n[mine.gemm]\n'
    assert find_machine(written(tmp_path, text + "fp16 = [[512, 90e12]]\n")).gemm_share == {}
    assert find_machine(written(tmp_path, text + "fp64 = [[512, 9e12]]\n")).gemm_share == frontier.gemm_share
    both = text + "fp16 = [[512, 90e12]]\n[mine.gemm_share]\nfp16 = [[512, 0.5]]\n"
    assert find_machine(written(tmp_path, both)).gemm_share["fp16"](1) == 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("cores = 8\n", ""), r"\[mine\] 1 missing key: add cores; docs/reference"),
        (("cores = 8", "cores = 2"), "2 is less than ranks_per_node = 4"),
        (("cores = 8", "cores = 8.5"), "8.5 is not an integer"),
        (("cores = 8", 'cores = "many"'), "'many' is not valid"),
        (("nic_rate = 25e9", "nic_rate = -1"), "network.nic_rate: -1 is not valid"),
        (("nic_rate = 25e9", "nic_rat = 25e9"), "did you mean network.nic_rate"),
        (("latency_s = 2e-6", "latency_s = nan"), "latency_s: nan is not valid"),
        (("[512, 100e12], [2048", "[2048, 100e12], [512"), "are not in increasing order; use points sorted"),
        (("[512, 100e12]", "[512, -1]"), "is not a curve"),
        (("200e12", "200e24"), "use FLOP/s, not TFLOP/s"),
        (("fp16 =", "fp12 ="), "gemm.fp12: the key is unknown; did you mean"),
        (("[mine.gemm]", "[mine.gemm_share]\nfp16 = [[512, 97]]\n[mine.gemm]"), "gemm_share.fp16: .* a share above 1"),
        (("[mine]", "[mine]\nbased_on = 'atlantis'"), "'atlantis', which is not a complete machine"),
        (("[mine]", "[other]\ncores = 1\n[mine]"), r"describes 2 machines; use .*mine.toml:other or .*mine.toml:mine"),
        (("[mine]", "cores = 1\n[mine]"), "cores is outside a table"),
        (("cores = 8", "cores ="), "is not valid TOML"),
    ],
)
def test_an_invalid_value_is_reported_with_its_place(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    assert change[0] in WHOLE
    with pytest.raises(UsageError, match=message):
        find_machine(written(tmp_path, WHOLE.replace(*change)))


def test_the_error_about_an_unknown_machine_names_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="did you mean frontier"):
        find_machine("frontire")
    with pytest.raises(UsageError, match="use one of summit, frontier, crusher, frontier-2022"):
        find_machine("xyzzy")
    with pytest.raises(UsageError, match=r"no gemm rate in fp64 \(it has fp16\)"):
        find_machine("summit").curve("gemm", "fp64")


def test_an_error_lists_all_rates_that_a_benchmark_lacks(tmp_path: Path) -> None:
    machine = find_machine(written(tmp_path, WHOLE))
    keys = "; docs/reference/machine-files.md describes the keys"
    for benchmark, precision, message in (
        ("hpl-mxp", "fp16", "add fp32 to [mine.trsm], fp32 to [mine.factor]"),
        ("hpl-mxp", "bf16", "add bf16 to [mine.gemm], fp32 to [mine.trsm], fp32 to [mine.factor]"),
        ("hpl", "fp64", "add fp64 to [mine.trsm], core_rate and sync_s to [mine.panel]"),
    ):
        with pytest.raises(UsageError) as refused:
            machine.check_rates(benchmark, precision)
        assert str(refused.value) == f"the machine mine lacks values for {benchmark} in {precision}; {message}{keys}"
    with pytest.raises(UsageError, match=r"mine has no trsm rate in fp32; add fp32 to \[mine.trsm\]$"):
        machine.curve("trsm", "fp32")


def test_a_precision_with_all_rates_is_proposed_and_the_added_keys_suffice(tmp_path: Path) -> None:
    rates = "[mine.trsm]\nfp32 = 1e12\n[mine.factor]\nfp32 = 1e11\n"
    machine = find_machine(written(tmp_path, WHOLE + rates))
    machine.check_rates("hpl-mxp", "fp16")
    with pytest.raises(UsageError, match=r"in bf16; use --precision fp16, or add bf16 to \[mine.gemm\]; docs"):
        machine.check_rates("hpl-mxp", "bf16")
    known = r'FILE whose table \[mycluster\] contains based_on = "summit", and add fp64 to \[mycluster.gemm\]'
    with pytest.raises(UsageError, match=known):
        find_machine("summit").check_rates("hpl", "fp64")


def test_all_missing_keys_are_listed_at_once_and_mem_can_replace_one(tmp_path: Path) -> None:
    text = "[mine]\nranks_per_node = 4\nmemory_rate = 1e12\n[mine.network]\nnics = 1\nlocal_rate = 1e9\n"
    with pytest.raises(UsageError) as refused:
        find_machine(written(tmp_path, text))
    assert str(refused.value).endswith(
        "[mine] 5 missing keys: add cores, memory_bytes, network.nic_rate, network.latency_s, a curve of gemm, such as "
        "gemm.fp64 = [[NB, FLOP/s], ...]; docs/reference/machine-files.md describes the keys; instead of memory_bytes, "
        "you can use --mem 64GiB for the memory per rank"
    )
    file = written(tmp_path, WHOLE.replace("memory_bytes = 80e9\n", ""))
    assert find_machine(file, 64e9).memory_bytes == 64e9
    assert find_machine(file, 64e9).sources["memory_bytes"] == "--mem"
    assert find_machine(written(tmp_path, WHOLE), 64e9).memory_bytes == 80e9, "--mem is then a share of the memory"


def test_a_file_describes_several_machines(tmp_path: Path) -> None:
    more = '[old]\nbased_on = "mine"\n[old.network]\nnics = 1\n[h100]\nbased_on = "mine"\n'
    file = written(tmp_path, WHOLE + more)
    assert find_machine(f"{file}:mine").network.nics == 2
    assert (find_machine(f"{file}:old").network.nics, find_machine(f"{file}:old").cores) == (1, 8)
    assert find_machine(f"{file}:h100").cores == 8, "the file's own table, not the built-in machine"
    with pytest.raises(UsageError, match=r"describes 3 machines; use .*:mine or .*:old or .*:h100"):
        find_machine(file)
    with pytest.raises(UsageError, match=r"describes no machine 'new'; use .*:mine or"):
        find_machine(f"{file}:new")
    with pytest.raises(UsageError, match="is neither a known machine nor a file"):
        find_machine(f"{tmp_path}/none.toml:mine")
    with pytest.raises(UsageError, match="describes no machine; add a table"):
        find_machine(written(tmp_path, ""))


def test_inherited_values_are_marked_and_widen_the_interval(tmp_path: Path) -> None:
    base = find_machine("frontier")

    def based(own: str) -> Machine:
        return find_machine(written(tmp_path, f'[mine]\nbased_on = "frontier"\n{own}'))

    machine = based("cores = 56\n[mine.gemm]\nfp64 = 20e12\n")
    assert machine.base == "frontier"
    assert {"memory_bytes", "gemm.fp16", "network.nics", "panel.sync_s"} <= set(machine.inherited)
    assert not {"cores", "gemm.fp64"} & set(machine.inherited)
    assert machine.sources["network.nics"] == f"inherited from frontier: {base.sources['network.nics']}"
    assert machine.spread == pytest.approx((base.spread[0] + INHERITED_SPREAD, base.spread[1] + INHERITED_SPREAD))
    assert based("spread_compute = 0.1\n").spread == pytest.approx((0.1, base.spread[1] + INHERITED_SPREAD))
    run = LuRun(n=40960, nb=512, P=2, Q=4, split=0.5)
    narrow, wide = (predict(lambda varied: simulate_lu("hpl", run, varied), each) for each in (base, machine))
    assert wide.low / wide.forecast.rate_flops < narrow.low / narrow.forecast.rate_flops
    assert wide.high / wide.forecast.rate_flops > narrow.high / narrow.forecast.rate_flops
    assert not base.inherited
    assert find_machine("crusher").spread == base.spread, "the same nodes"


@pytest.mark.parametrize(
    ("name", "run", "measured"),
    [
        ("h100", LuRun(n=89088, nb=1024, P=1, Q=1, split=0.5), 39.6e12),
        ("h200", LuRun(n=119808, nb=1024, P=1, Q=1, split=0.5), 41.9e12),
        ("h200", LuRun(n=168960, nb=1024, P=1, Q=1, precision="fp16"), 405e12),
    ],
)
def test_predictions_for_one_gpu_are_near_the_results_of_this_project(name: str, run: LuRun, measured: float) -> None:
    """The rates of benchmarks/results/gpu-h100-hpl.json, gpu-h200-hpl.json and gpu-h200-hpl-mxp.json."""
    machine = replace(find_machine(name), ranks_per_node=1)
    benchmark = "hpl" if run.precision == "fp64" else "hpl-mxp"
    assert simulate_lu(benchmark, run, machine).rate_flops == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(
    ("name", "benchmark", "run", "listed"),
    [
        ("b200", "hpl", LuRun(n=557056, nb=1024, P=4, Q=4, split=0.5), 33.1e12),
        ("b200", "hpl-mxp", LuRun(n=748544, nb=5504, P=4, Q=4, precision="fp16"), 808e12),
        ("mi300a", "hpl", LuRun(n=473088, nb=512, P=4, Q=4, split=0.5), 40.2e12),
        ("mi300a", "hpl-mxp", LuRun(n=645120, nb=2880, P=4, Q=4, precision="fp16"), 381e12),
        ("gh200", "hpl", LuRun(n=405504, nb=1024, P=4, Q=4, split=0.5), 42.5e12),
        ("a64fx", "hpl", LuRun(n=233472, nb=256, P=8, Q=8, split=0.5), 442.01e15 / 158976 / 4),
        ("a64fx", "hpl-mxp", LuRun(n=331776, nb=384, P=8, Q=8, precision="fp16"), 2.004e18 / 158976 / 4),
    ],
)
def test_a_rank_on_a_few_nodes_is_predicted_within_a_quarter_of_the_lists(
    name: str, benchmark: str, run: LuRun, listed: float
) -> None:
    """Rates per device in the lists of 2020 to 2026: CHIE-4, El Capitan, JUPITER and Fugaku."""
    assert simulate_lu(benchmark, run, find_machine(name)).rate_flops / run.ranks == pytest.approx(listed, rel=0.25)

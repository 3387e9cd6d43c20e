"""Run the same small benchmark on every rank at the same time to find slow and faulty ranks.

in each unit   HPL or the LU of HPL-MxP of order N, products in the same precision with the same number of flops, and 32
               reads of the matrix; all units have the same inputs, and all ranks start each measure together
rounds         --rounds, after a warm-up that is not counted
rates          flops or bytes divided by the unit's own seconds
bits           digests of the factors and of the product in every round
residuals      scaled residual of HPL's check in every round
slow, wrong    as defined in `decide`
links          with --links: see `links`, and `host_copies` for devices
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from platform import machine
from statistics import median
from typing import Any, Unpack

from mxpeak.bench.harness import Bench, RunHooks, open_bench
from mxpeak.bench.hpl.config import THRESHOLD
from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalar
from mxpeak.comm.transports.solo import Solo
from mxpeak.errors import ResourceError, UsageError
from mxpeak.kernels.contract import Kernels
from mxpeak.layout.cores import short_list
from mxpeak.layout.host_list import host_list
from mxpeak.options import Run, count_text
from mxpeak.perf.adapters import adapter_changes, adapter_counters
from mxpeak.perf.health import summary
from mxpeak.perf.host import core_groups, host_facts, text_in
from mxpeak.perf.sensors.choose import sensors
from mxpeak.perf.sensors.contract import Sensors
from mxpeak.precision import precision as format_of
from mxpeak.records import Caution, size_text, three_digits
from mxpeak.report.scan_text import measure_title
from mxpeak.report.scans import SCHEMA_SCAN
from mxpeak.runtime.compile import compile_in_turn
from mxpeak.runtime.nodes import node_name
from mxpeak.runtime.placement import has_slow_fp64
from mxpeak.spans import Spans
from mxpeak.verbs.scan.actions import actions
from mxpeak.verbs.scan.baseline import expected_of, models_text
from mxpeak.verbs.scan.config import ScanConfig
from mxpeak.verbs.scan.decide import Expected, RankRates, WrongBits, decide
from mxpeak.verbs.scan.host_copies import HostCopies
from mxpeak.verbs.scan.links import (
    BANDWIDTH,
    LATENCY,
    LinkRates,
    Meeting,
    decide_links,
    link_sections,
    links_of,
    measure_links,
    meetings,
    positions,
)
from mxpeak.verbs.scan.probes import FACTORS, READS, Probe, Size, footprint, probes
from mxpeak.verbs.scan.units import Unit, agreement, check_group_sizes, schedule, unit_of

#: File with an identifier of the boot of a host, which distinguishes hosts with equal names.
BOOT = Path("/proc/sys/kernel/random/boot_id")
#: Default orders: for one thread, for a processor with native 16-bit products, and for HPL on one thread.
DEFAULT_N, NATIVE_DEFAULT_N, HPL_DEFAULT_N = 4096, 6144, 3264
#: Default orders for a GPU, and for HPL on a GPU with slow fp64.
GPU_DEFAULT_N, SLOW_FP64_DEFAULT_N = 32768, 8192
#: Order and block size of the problem that compiles and loads all kernels before the measurements.
TINY = 48, 16
#: Typical interruption of a rank by another program, and smallest tolerance for which a scan requires longer rounds.
INTERRUPTION_S, LEAST_TOLERANCE = 1e-3, 0.01
#: Largest number of links in a result; of more links, only the slow and wrong ones are stored.
MAX_LINKS = 4096


@dataclass(slots=True)
class Record:
    """The measurements of a rank, which it sends to rank 0: location, values by round, health and links.

    amounts     flops or bytes per round of the measures whose size follows from N
    bits        digests of the results of the unit
    own_bits    different digests of this rank's part of the results of its unit, if the unit has several ranks
    adapters    changes of the counters of the node's network adapters, on one rank per node
    """

    where: dict[str, Any]
    kind: str
    rates: dict[str, list[float]] = field(default_factory=dict)
    amounts: dict[str, float] = field(default_factory=dict)
    bits: dict[str, list[str]] = field(default_factory=dict)
    own_bits: dict[str, set[str]] = field(default_factory=dict)
    residuals: dict[str, list[float]] = field(default_factory=dict)
    health: dict[str, Any] = field(default_factory=dict)
    links: dict[int, LinkRates] = field(default_factory=dict)
    adapters: list[dict[str, object]] = field(default_factory=list)


class CompleteRounds:
    """Collects the values of all ranks on rank 0 after each round, so that an interrupted scan has a result."""

    def __init__(self, comm: Communicator, record: Record):
        self.count = 0
        self._comm = comm
        self._records = comm.gather_objects(replace(record, rates={}, bits={}, residuals={})) or []

    def add(self, record: Record) -> None:
        """Add the last values of this rank. Collective."""
        last = [{name: each[-1] for name, each in values.items()} for values in _by_round(record)]
        own_bits = {name: set(bits) for name, bits in record.own_bits.items()}  # the next round adds to the sets
        gathered = self._comm.gather_objects((record.amounts, own_bits, record.health, last)) or []
        for kept, (amounts, own_bits, health, values) in zip(self._records, gathered):
            kept.amounts, kept.own_bits, kept.health = amounts, own_bits, health
            for rounds, new in zip(_by_round(kept), values):
                for name, value in new.items():
                    rounds.setdefault(name, []).append(value)
        self.count += 1

    def records(self) -> list[Record]:
        """Return the records of all ranks on rank 0, without the values of a round that was not added completely."""
        for record in self._records:
            for rounds in _by_round(record):
                for values in rounds.values():
                    del values[self.count :]
        return self._records


def _by_round(record: Record) -> tuple[dict[str, list[Any]], ...]:
    """Return the values of a record that have one entry per round."""
    return record.rates, record.bits, record.residuals


def run_scan(
    config: ScanConfig,
    comm: Communicator,
    *,
    baseline: Mapping[str, Any] | None = None,
    keep: Callable[[dict[str, Any]], object] = lambda body: None,
    **hooks: Unpack[RunHooks],
) -> dict[str, Any] | None:
    """Scan all ranks, and return the result on rank 0. Collective over comm.

    With a baseline, ranks are compared with it instead of with each other. If an exception ends the scan on rank 0,
    `keep` gets the result of the complete rounds.
    """
    with open_bench(_bench, lambda *_: None, config, comm, hooks) as bench:
        unit = unit_of(bench.config.unit, bench.comm)
        size = _size(bench, unit.largest)
        if bench.config.unit == "group":
            check_group_sizes(bench.config.group, bench.placement.nodes, bench.config.rounds)
        begin = time.time()
        record = _start_record(bench, unit)
        if baseline is not None:
            _check_unit(baseline, size)
            _check_models(baseline, record, comm)
        watch = sensors(bench.placement.cores, bench.gpu_bus, amd=bench.on_amd)
        record.where["uuid"] = watch.uuid
        _make_ready(bench, size, unit)
        copies = None
        if bench.config.links and bench.config.on_gpu:
            copies = HostCopies(bench.kernels, bench.comm, bench.kernels.transport.staged())
        rounds = CompleteRounds(bench.comm, record)
        body_of = partial(_body, size, bench, baseline, begin)
        try:
            spans = bench.new_spans()
            measure(record, size, bench.config, bench.kernels, bench.comm, spans, watch, unit, copies, rounds.add)
            del copies  # otherwise its buffers would exist during the measurement of the links
            if bench.config.unit == "group":
                _measure_groups(record, size, bench, unit)
            if bench.config.links:
                _measure_links(record, bench)
            records = bench.comm.gather_objects(record)
        except BaseException as error:
            if bench.comm.rank == 0 and rounds.count:
                keep(_interrupted(rounds, bench.config, body_of, error))
            raise
        if records is None:
            return None
        return body_of(records, bench.config)


def _body(
    size: Size,
    bench: Bench[ScanConfig],
    baseline: Mapping[str, Any] | None,
    begin: float,
    records: list[Record],
    config: ScanConfig,
) -> dict[str, Any]:
    """Return the result with the facts about the run, which began at the Unix time `begin`, and with its warnings."""
    facts = bench.facts.sections(begin, time.time())
    del facts["launch"]["binding"]  # the section of each rank contains its own binding
    found = result(records, size, config, baseline)
    cautions = [*bench.facts.cautions, *_cached(size, bench), *short(found, records, config)]
    return {**found, **facts, "warnings": [asdict(caution) for caution in cautions]}


def _interrupted(
    rounds: CompleteRounds,
    asked: ScanConfig,
    body_of: Callable[[list[Record], ScanConfig], dict[str, Any]],
    error: BaseException,
) -> dict[str, Any]:
    """Return the result of the complete rounds of a scan that an exception has ended."""
    unit = "node" if asked.unit == "group" else asked.unit
    body = body_of(rounds.records(), replace(asked, rounds=rounds.count, links=False, unit=unit))
    done = f"{rounds.count} of {count_text(asked.rounds, 'round')}"
    text = f"the scan ended after {done}: {str(error) or type(error).__name__}"
    missing = [name for name, wanted in (("links", asked.links), ("groups", asked.unit == "group")) if wanted]
    if missing:
        text += f"; the {' and '.join(missing)} have no result"
    body["warnings"].append(asdict(Caution("interrupted", text, "")))
    return body


def _bench(run: Run[ScanConfig], *shared: Any) -> Bench[ScanConfig]:
    """Return the state of a scan, whose configuration states the benchmark that factors a matrix."""
    return Bench[ScanConfig](run.with_choices({"benchmark": run.config.factored}), *shared)


def _check_unit(baseline: Mapping[str, Any], size: Size) -> None:
    """Raise a UsageError on all ranks if the units of the baseline have another number of ranks."""
    expected = baseline["problem"].get("unit_ranks", 1)
    if expected != size.unit_ranks:
        raise UsageError(
            f"the units of the baseline have {expected} ranks, but those of this scan have {size.unit_ranks}; start "
            f"{expected} ranks per node, or use a baseline of such scans"
        )


def _check_models(baseline: Mapping[str, Any], record: Record, comm: Communicator) -> None:
    """Raise a UsageError on all ranks if the baseline does not contain the model of a rank. Collective over comm."""
    where = record.where
    known = expected_of(baseline, where["model"], where["threads"], record.kind) is not None
    own = f"{where['model']} with {count_text(where['threads'], 'thread')}"
    missing = comm.bcast_object(comm.gather_objects("" if known else own))
    if unknown := sorted(filter(None, set(missing))):
        raise UsageError(
            f"--against: the baseline has expected rates of {models_text(baseline)}, but not of {', '.join(unknown)}; "
            "use a baseline of this model and number of --threads"
        )


def _size(bench: Bench[ScanConfig], unit_ranks: int) -> Size:
    """Return the order, block size and precision of the scan for units of up to `unit_ranks` ranks. Collective.

    Without -N, the order takes about a second per round and fits on every host. Raise a ResourceError if -N does not
    fit.
    """
    config, ranks = bench.config, bench.comm.size
    precision = config.precision or "fp32"
    need = footprint(precision, unit_ranks, config.factored, on_gpu=config.on_gpu)
    if config.n is None:
        n = max(1, round(_default_n(bench, precision) * unit_ranks ** (1 / 3) / config.nb)) * config.nb
        n = min(n, bench.budget.default_n(need, config.nb, 1, ranks))
        return Size(n, config.nb, precision, unit_ranks, config.factored)
    if not bench.budget.fits(need, config.n, config.nb, 1, ranks):
        raise ResourceError(bench.budget.too_large(need, config.n, config.nb, 1, ranks))
    return Size(config.n, config.nb, precision, unit_ranks, config.factored)


def _default_n(bench: Bench[ScanConfig], precision: str) -> float:
    """Return the order with which a round on the rank with the fewest threads takes about a second. Collective."""
    hpl = bench.config.factored == "hpl"
    if bench.config.on_gpu:
        return SLOW_FP64_DEFAULT_N if hpl and has_slow_fp64(bench.config, bench.comm) else GPU_DEFAULT_N
    threads = -allreduce_scalar(bench.comm, -float(bench.placement.threads), "max", bench.kernels.xp)
    native = format_of(precision).bytes == 2 and not bench.kernels.emulates(precision)
    of_thread = HPL_DEFAULT_N if hpl else NATIVE_DEFAULT_N if native else DEFAULT_N
    return float(of_thread * threads ** (1 / 3))


def _cached(size: Size, bench: Bench[ScanConfig]) -> list[Caution]:
    """Return a caution if the caches of a host are large enough for the matrices of its ranks."""
    machine, ranks = bench.facts.machine, bench.placement.ranks_a_node
    caches = (machine["l3_bytes"] or machine["l2_bytes"] or 0) * len(core_groups(affinity=range(os.cpu_count() or 1)))
    matrices = ranks * size.read_bytes // READS
    if bench.config.on_gpu or matrices > caches:
        return []
    sizes = f"a host has {size_text(matrices)} of matrices and {size_text(caches)} of caches"
    text = f"{sizes}: read may be the rate of the caches"
    larger = math.ceil(size.n * math.sqrt(2 * caches / matrices))
    return [Caution("cached", text, f"to measure memory, use -N {larger}")]


def short(found: Mapping[str, Any], records: Sequence[Record], config: ScanConfig) -> list[Caution]:
    """Return a caution if -N gives a measure with slow or undecided ranks too little time per round.

    An interruption of INTERRUPTION_S must change a rate by less than the tolerance.
    """
    share = max(config.tolerance, LEAST_TOLERANCE)
    doubtful = {finding.get("measure") for finding in (*found["slow"], *found["undecided"])}
    times = {name: seconds for name, seconds in _shortest(records).items() if name in doubtful}
    if config.n is None or not times or min(times.values()) >= INTERRUPTION_S / share:
        return []
    seconds, name = min((seconds, name) for name, seconds in times.items())
    needed, interruption = 1e3 * INTERRUPTION_S / share, f"{1e3 * INTERRUPTION_S:g} ms"
    text = (
        f"{measure_title(name)} takes {three_digits(1e3 * seconds)} ms per round, but rates within {100 * share:g} % "
        f"need {needed:g} ms or more, because other programs interrupt a rank for about {interruption}: ranks that are "
        "reported as slow may be healthy"
    )
    advice = "use a larger -N, or remove -N to let each round take about one second"
    return [Caution("short", text, advice if found["against"] is None else "use a baseline with a larger -N")]


def _shortest(records: Sequence[Record]) -> dict[str, float]:
    """Return the seconds per round of the fastest rank, for each measure whose size follows from N."""
    return {
        name: min(record.amounts[name] / median(record.rates[name]) for record in records)
        for name in records[0].amounts
    }


def _start_record(bench: Bench[ScanConfig], unit: Unit) -> Record:
    device, placement = bench.kernels.device_facts(), bench.placement
    model = device.get("device_name") or host_facts()["cpu_model"] or machine()
    where = {
        "rank": bench.comm.rank,
        "host": node_name(),
        "boot": text_in(BOOT),
        "cores": short_list(placement.cores),
        "threads": placement.threads,
        "device": device.get("device", "cpu"),
        "model": model,
        "shares_cores": placement.crowded,
        "unit_ranks": unit.ranks,
        "leads_unit": unit.leads,
    }
    own = kind(model, placement.threads, bench.kernels.facts())
    return Record(where, own if unit.comm.size == 1 else f"{unit.comm.size} ranks, {own}")


def kind(model: str, threads: int, facts: dict[str, Any]) -> str:
    """Return a text that identifies peers: processor or device, number of threads, and library of the products."""
    blas = facts.get("blas")
    if isinstance(blas, dict):
        library = " ".join(str(blas[key]) for key in ("library", "version", "architecture"))
    else:
        library = blas or " ".join(filter(None, (facts["kernels"], facts.get("torch"))))
    units = "+".join(facts.get("units", ()))
    parts = (model, f"{threads} thread{'s' * (threads > 1)}", library, units)
    return ", ".join(filter(None, parts))


def _make_ready(bench: Bench[ScanConfig], size: Size, unit: Unit) -> None:
    """Compile and load the kernels of the measures on all ranks by a small problem. Collective.

    The ranks of a unit then solve it together, because several ranks also use other kernels than one.
    """
    kernels, comm, (n, nb) = bench.kernels, bench.comm, TINY

    def use(alone: Communicator) -> None:
        for probe in probes(kernels, alone, replace(size, n=n, nb=nb, unit_ranks=alone.size)):
            probe.prepare()
            probe.work()
            if probe.bits is not None:
                probe.bits()
            if probe.residual is not None:
                probe.residual()

    compile_in_turn(comm, "scan", lambda: use(Solo(comm.transport)), "", bench.placement.before, kernels)
    if unit.comm.size > 1:
        use(unit.comm)


def measure(
    record: Record,
    size: Size,
    config: ScanConfig,
    kernels: Kernels,
    comm: Communicator,
    spans: Spans,
    watch: Sensors,
    unit: Unit,
    copies: HostCopies | None = None,
    after_round: Callable[[Record], None] = lambda record: None,
) -> None:
    """Warm up the kernels, measure all rounds, and store rates, bits and health in `record`. Collective over comm.

    `copies` also measures the copies between the device and the host, unless it is None. `after_round` is called with
    the record after each round.
    """
    each = probes(kernels, unit.comm, replace(size, unit_ranks=unit.comm.size))
    record.amounts = {probe.name: probe.amount for probe in each}
    each += [] if copies is None else copies.probes(unit.comm.size)
    for probe in each:
        if config.warmup in ("full", probe.name):
            timed(probe, kernels, comm, unit, lambda: None)
    count = config.rounds * len(each)
    spans.start(f"scan of {comm.size} rank{'s' * (comm.size > 1)}", float(count))
    looks = [watch.read()]
    for done in range(count):
        probe = each[done % len(each)]
        rate = timed(probe, kernels, comm, unit, lambda: looks.append(watch.read()))
        record.rates.setdefault(probe.name, []).append(rate)
        if probe.bits is not None:
            own = probe.bits()
            if unit.comm.size > 1:
                factors = own.partition(" ")[0]  # without HPL's solution, to which each rank contributes
                record.own_bits.setdefault(probe.name, set()).add(factors)
            record.bits.setdefault(probe.name, []).append(unit.combined(own))
        _store_residual(record, probe.name, probe)
        if (done + 1) % len(each) == 0:
            record.health = summary(looks)
            after_round(record)
        spans.step(done + 1, count, done + 1.0)
    spans.finish()


def _store_residual(record: Record, name: str, probe: Probe) -> None:
    """Store the residual of a round in `record` if the measure has a check; NaN becomes infinity. Collective."""
    if probe.residual is not None:
        residual = probe.residual()
        record.residuals.setdefault(name, []).append(residual if math.isfinite(residual) else math.inf)


def _measure_links(record: Record, bench: Bench[ScanConfig]) -> None:
    """Measure the links of this rank in all rounds, and store them in `record`. Collective."""
    comm, spans = bench.comm, bench.new_spans()
    places = positions(comm.bcast_object(comm.gather_objects(node_name())))
    before = adapter_counters()
    partners = list(meetings(places, comm.rank)) * bench.config.rounds
    count = len(partners)
    meeting = Meeting(bench.kernels, comm, on_gpu=bench.config.on_gpu)
    if count:
        spans.start(f"links of {comm.size} ranks", float(count))  # from here, the watchdog limits each meeting
        record.links = measure_links(meeting, partners, comm, lambda done: spans.step(done, count, float(done)))
        spans.finish()
    if places[comm.rank].local == 0:
        record.adapters = adapter_changes(before, adapter_counters())


def _measure_groups(record: Record, size: Size, bench: Bench[ScanConfig], unit: Unit) -> None:
    """Factor a matrix on each group of nodes, and store in `record` the values of this node's group by round.

    Collective. All groups of a round work at the same time. The order grows so that a round takes as long as on a node.
    """
    comm, kernels, config, nodes = bench.comm, bench.kernels, bench.config, bench.placement.nodes
    node = positions(comm.bcast_object(comm.gather_objects(node_name())))[comm.rank].node
    spans = bench.new_spans()
    plan = [(g, groups) for g in config.group for groups in schedule(nodes, g, config.rounds)]
    count = len(plan)
    spans.start(f"groups of {nodes} nodes", float(count))
    for done, (g, groups) in enumerate(plan, 1):
        color = next((k for k, group in enumerate(groups) if node in group), None)
        members = comm.split(color, comm.rank)
        name, bits = _of_nodes(size.benchmark, g), ""
        if members is None:
            comm.barrier()
            comm.barrier()
        else:
            n = max(1, round(size.n * g ** (1 / 3) / size.nb)) * size.nb
            probe = probes(kernels, members, replace(size, n=n, unit_ranks=members.size))[0]
            together = replace(unit, comm=members)
            record.rates.setdefault(name, []).append(timed(probe, kernels, comm, together, lambda: None))
            if probe.bits is not None:
                bits = together.combined(probe.bits())
            _store_residual(record, name, probe)
            del probe  # otherwise its matrix would exist during the next round
            members.free()
        record.bits.setdefault(name, []).append(bits)
        spans.step(done, count, float(done))
    spans.finish()


def _of_nodes(benchmark: str, nodes: int) -> str:
    """Return the name of the measure of groups of nodes, such as `LU of 2 nodes`."""
    return f"{measure_title(FACTORS[benchmark])} of {nodes} nodes"


def timed(probe: Probe, kernels: Kernels, comm: Communicator, unit: Unit, look: Callable[[], object]) -> float:
    """Run a measure on all ranks at the same time, and return the rate of this unit in flop/s or byte/s. Collective.

    The slowest rank of a unit determines the rate. `look` is called after this rank has finished, while other ranks may
    still compute.
    """
    probe.prepare()
    kernels.wait()
    comm.barrier()
    begin = time.perf_counter()
    probe.work()
    kernels.wait()
    seconds = time.perf_counter() - begin
    look()
    comm.barrier()
    return probe.amount / unit.largest_time(seconds, kernels.xp)


def result(
    records: list[Record], size: Size, config: ScanConfig, baseline: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Compute the result of the scan from the records of all ranks."""
    leaders = [rank for rank, record in enumerate(records) if record.where["leads_unit"]]
    _reduce_groups([records[rank] for rank in leaders], config)
    measured = [
        RankRates(rank, of.kind, of.rates, of.bits, of.residuals) for rank, of in enumerate(records) if rank in leaders
    ]
    verdict = decide(measured, config.tolerance, None if baseline is None else _expected_by_kind(baseline, records))
    hosts = {records[rank].where["host"] for rank in verdict.outliers}
    status = verdict.status
    links: dict[str, Any] = {}
    if config.links:
        links = _of_links(records, config)
        hosts |= set(links["link_hosts"])
        status = "different" if links["slow_links"] or links["wrong_links"] else status
    place = {rank: {key: r.where[key] for key in ("host", "cores", "device", "uuid")} for rank, r in enumerate(records)}
    ranks = [_of_rank(record) for record in records]
    slow = [{**asdict(finding), **place[finding.rank]} for finding in verdict.slow]
    wrong = [{**asdict(finding), **_wrong_parts(records, finding), **place[finding.rank]} for finding in verdict.wrong]
    undecided = [asdict(finding) for finding in verdict.undecided]
    recommended = actions(ranks, slow, wrong, undecided, links.get("link_hosts", ()))
    if any(action["severity"] != "monitor" for action in recommended):
        status = "different"  # for example, new memory errors on a node whose rates agree
    return {
        "schema": SCHEMA_SCAN,
        "status": status,
        "unit": config.unit,
        "slow": slow,
        "wrong": wrong,
        "undecided": undecided,
        "median": {
            name: median(median(records[rank].rates[name]) for rank in leaders) for name in records[leaders[0]].rates
        },
        "groups": [asdict(group) for group in verdict.groups],
        "actions": recommended,
        "exclude": {"hosts": sorted(hosts), "slurm": host_list(sorted(hosts))},
        "against": None if baseline is None else config.against,
        **links,
        "problem": {
            **asdict(size),
            **{name: getattr(config, name) for name in ("rounds", "warmup", "tolerance", "link_tolerance", "min_link")},
            **({"threshold": THRESHOLD} if config.factored == "hpl" else {}),
            "product": {"m": size.side, "n": size.side, "k": size.nb, "times": size.products},
            "read_bytes": size.read_bytes,
        },
        "ranks": ranks,
    }


def _wrong_parts(records: Sequence[Record], finding: WrongBits) -> dict[str, list[int]]:
    """Return the ranks of a wrong unit whose own part of the result is wrong, unless this is unknown or all are.

    The part of a rank is wrong if its bits differ from those of most units at the same position, or change.
    """
    units: dict[str, list[int]] = {}
    for rank, record in enumerate(records):
        if record.kind == records[finding.rank].kind:
            units.setdefault(record.where["unit_ranks"], []).append(rank)
    unit = units[records[finding.rank].where["unit_ranks"]]
    peers = [ranks for ranks in units.values() if len(ranks) == len(unit)]
    wrong = []
    for position, rank in enumerate(unit):
        own = frozenset(records[rank].own_bits.get(finding.result, ()))
        each = Counter(frozenset(records[ranks[position]].own_bits.get(finding.result, ())) for ranks in peers)
        usual, count = each.most_common(1)[0]
        if len(own) > 1 or (2 * count > len(peers) and own != usual):
            wrong.append(rank)
    return {"ranks": wrong} if 0 < len(wrong) < len(unit) else {}


def _reduce_groups(records: list[Record], config: ScanConfig) -> None:
    """Replace the values of groups by the best rate and residual of each node, and by the agreement of its results.

    A slow node slows all of its groups, and a healthy node those that it shares with the slow node.
    """
    for name in [_of_nodes(config.factored, g) for g in config.group] if config.unit == "group" else []:
        agree = agreement([record.bits[name] for record in records])
        for record, bits in zip(records, agree):
            record.rates[name] = [max(record.rates[name])]
            record.bits[name] = [bits]
            if name in record.residuals:
                record.residuals[name] = [min(record.residuals[name])]


def _expected_by_kind(baseline: Mapping[str, Any], records: Sequence[Record]) -> dict[str, Expected]:
    """Return the measurements that the baseline expects, by kind of the ranks."""
    places = {record.kind: record.where for record in records}
    measurements = {kind: expected_of(baseline, at["model"], at["threads"], kind) for kind, at in places.items()}
    return {kind: expected for kind, expected in measurements.items() if expected is not None}


def _of_rank(record: Record) -> dict[str, Any]:
    """Return the JSON section of a rank. Bits that are equal in all rounds are listed once."""
    bits = {name: sorted(set(values)) for name, values in record.bits.items()}
    residuals = {name: [each if each < math.inf else None for each in own] for name, own in record.residuals.items()}
    checked = {"residuals": residuals} if residuals else {}
    return {**record.where, "kind": record.kind, "rates": record.rates, "bits": bits, **checked, **record.health}


def _share_cores(records: list[Record]) -> bool:
    """Return whether ranks share cores: ranks of one node, or of several containers on one host."""
    used = {(record.where["boot"], record.where["cores"]) for record in records}
    return len(used) < len(records) or any(record.where["shares_cores"] for record in records)


def _of_links(records: list[Record], config: ScanConfig) -> dict[str, Any]:
    """Return the JSON sections of the links and of the network adapters."""
    places = positions([record.where["host"] for record in records])
    links = links_of([record.links for record in records], places)
    # A message between two ranks on one core waits for the scheduler.
    measures = (BANDWIDTH,) if _share_cores(records) else (BANDWIDTH, LATENCY)
    verdict = decide_links(links, places, config.link_tolerance, config.min_link, measures)
    adapters = [{"host": record.where["host"], **adapter} for record in records for adapter in record.adapters]
    return {
        **link_sections(links, verdict, max_links=MAX_LINKS),
        "link_measures": measures,
        "link_hosts": verdict.hosts,
        "adapters": adapters,
    }

"""Run the same small benchmark on every rank at the same time to find slow and faulty ranks.

on each rank   LU of HPL-MxP of order N, products in the same precision with the same number of flops, and 32 reads of
               the factors; each rank computes alone with the same inputs, and all ranks start each measure together
rounds         --rounds, after a warm-up that is not counted
rates          flops or bytes divided by the rank's own seconds
bits           digests of the factors and of the product in every round
slow, wrong    as defined in `decide`
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from platform import machine
from statistics import median
from typing import Any, Unpack

from mxpeak.bench.harness import Bench, RunHooks, open_bench
from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalar
from mxpeak.errors import ResourceError
from mxpeak.kernels.contract import Kernels
from mxpeak.layout.cores import short_list
from mxpeak.layout.host_list import host_list
from mxpeak.perf.health import Sensors, sensors, summary
from mxpeak.perf.host import core_groups, host_facts
from mxpeak.precision import precision as format_of
from mxpeak.records import Caution, size_text
from mxpeak.runtime.compile import compile_in_turn
from mxpeak.spans import Spans
from mxpeak.verbs.scan.config import ScanConfig
from mxpeak.verbs.scan.decide import RankRates, decide
from mxpeak.verbs.scan.probes import READS, Probe, Size, footprint, probes

SCHEMA = "mxpeak.scan/1"
#: Default orders: for one thread, for a processor with native 16-bit products, and for a GPU.
DEFAULT_N, NATIVE_DEFAULT_N, GPU_DEFAULT_N = 4096, 6144, 32768
#: Order and block size of the problem that compiles and loads all kernels before the measurements.
TINY = 48, 16


@dataclass(slots=True)
class Record:
    """The measurements of a rank, which it sends to rank 0: location, rates and bits by round, and health."""

    where: dict[str, Any]
    kind: str
    rates: dict[str, list[float]] = field(default_factory=dict)
    bits: dict[str, list[str]] = field(default_factory=dict)
    health: dict[str, Any] = field(default_factory=dict)


def run(config: ScanConfig, comm: Communicator, **hooks: Unpack[RunHooks]) -> dict[str, Any] | None:
    """Scan all ranks, and return the result on rank 0. Collective over comm."""
    with open_bench(Bench[ScanConfig], lambda *_: None, config, comm, hooks) as bench:
        size = _size(bench)
        begin = time.time()
        record = _start_record(bench)
        watch = sensors(bench.placement.cores, bench.kernels.device_facts().get("device_bus"))
        _make_ready(bench, size.precision)
        measure(record, size, bench.config, bench.kernels, bench.comm, bench.new_spans(), watch)
        record.where["uuid"] = watch.uuid
        records = bench.comm.gather_objects(record)
        if records is None:
            return None
        facts = bench.facts.sections(begin, time.time())
        del facts["launch"]["binding"]  # the section of each rank contains its own binding
        cautions = [*bench.facts.cautions, *_cached(size, bench)]
        return {**result(records, size, bench.config), **facts, "warnings": [asdict(caution) for caution in cautions]}


def _size(bench: Bench[ScanConfig]) -> Size:
    """Return the order, block size and precision of the scan. Collective.

    Without -N, the order takes about a second per round and fits on every host. Raise a ResourceError if -N does not
    fit.
    """
    config, ranks = bench.config, bench.comm.size
    precision = config.precision or "fp32"
    need = footprint(precision, on_gpu=config.on_gpu)
    if config.n is None:
        n = max(1, round(_default_n(bench, precision) / config.nb)) * config.nb
        return Size(min(n, bench.budget.default_n(need, config.nb, 1, ranks)), config.nb, precision)
    if not bench.budget.fits(need, config.n, config.nb, 1, ranks):
        raise ResourceError(bench.budget.too_large(need, config.n, config.nb, 1, ranks))
    return Size(config.n, config.nb, precision)


def _default_n(bench: Bench[ScanConfig], precision: str) -> float:
    """Return the order with which a round on the rank with the fewest threads takes about a second. Collective."""
    if bench.config.on_gpu:
        return GPU_DEFAULT_N
    threads = -allreduce_scalar(bench.comm, -float(bench.placement.threads), "max", bench.kernels.xp)
    native = format_of(precision).bytes == 2 and not bench.kernels.emulates(precision)
    return float((NATIVE_DEFAULT_N if native else DEFAULT_N) * threads ** (1 / 3))


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


def _start_record(bench: Bench[ScanConfig]) -> Record:
    device, placement = bench.kernels.device_facts(), bench.placement
    model = device.get("device_name") or host_facts()["cpu_model"] or machine()
    where = {
        "rank": bench.comm.rank,
        "host": os.uname().nodename,
        "cores": short_list(placement.cores),
        "threads": placement.threads,
        "device": device.get("device", "cpu"),
        "model": model,
    }
    return Record(where, kind(model, placement.threads, bench.kernels.facts()))


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


def _make_ready(bench: Bench[ScanConfig], precision: str) -> None:
    """Compile and load the kernels of the measures on all ranks by a small problem. Collective."""
    kernels, comm, tiny = bench.kernels, bench.comm, Size(*TINY, precision)

    def use() -> None:
        for probe in probes(kernels, comm.transport, tiny):
            probe.prepare()
            probe.work()
            if probe.bits is not None:
                probe.bits()

    compile_in_turn(comm, "scan", use, "", bench.placement.before, kernels)


def measure(
    record: Record, size: Size, config: ScanConfig, kernels: Kernels, comm: Communicator, spans: Spans, watch: Sensors
) -> None:
    """Warm up the kernels, measure all rounds, and store rates, bits and health in `record`. Collective over comm."""
    each = probes(kernels, comm.transport, size)
    for probe in each:
        if config.warmup in ("full", probe.name):
            timed(probe, kernels, comm, lambda: None)
    count = config.rounds * len(each)
    spans.start(f"scan of {comm.size} rank{'s' * (comm.size > 1)}", float(count))
    looks = [watch.read()]
    for done in range(count):
        probe = each[done % len(each)]
        rate = timed(probe, kernels, comm, lambda: looks.append(watch.read()))
        record.rates.setdefault(probe.name, []).append(rate)
        if probe.bits is not None:
            record.bits.setdefault(probe.name, []).append(probe.bits())
        spans.step(done + 1, count, done + 1.0)
    spans.finish()
    record.health = summary(looks)


def timed(probe: Probe, kernels: Kernels, comm: Communicator, look: Callable[[], object]) -> float:
    """Run a measure on all ranks at the same time, and return this rank's rate in flop/s or byte/s. Collective.

    `look` is called after this rank has finished, while other ranks may still compute.
    """
    probe.prepare()
    kernels.wait()
    comm.barrier()
    begin = time.perf_counter()
    probe.work()
    kernels.wait()
    rate = probe.amount / (time.perf_counter() - begin)
    look()
    comm.barrier()
    return rate


def result(records: list[Record], size: Size, config: ScanConfig) -> dict[str, Any]:
    """Compute the result of the scan from the records of all ranks."""
    measured = [RankRates(rank, record.kind, record.rates, record.bits) for rank, record in enumerate(records)]
    verdict = decide(measured, config.tolerance)
    hosts = sorted({records[rank].where["host"] for rank in verdict.outliers})
    place = {rank: {key: r.where[key] for key in ("host", "cores", "device", "uuid")} for rank, r in enumerate(records)}
    return {
        "schema": SCHEMA,
        "status": verdict.status,
        "slow": [{**asdict(finding), **place[finding.rank]} for finding in verdict.slow],
        "wrong": [{**asdict(finding), **place[finding.rank]} for finding in verdict.wrong],
        "undecided": [asdict(finding) for finding in verdict.undecided],
        "median": {name: median(median(record.rates[name]) for record in records) for name in records[0].rates},
        "groups": [asdict(group) for group in verdict.groups],
        "exclude": {"hosts": hosts, "slurm": host_list(hosts)},
        "problem": {
            **asdict(size),
            **{name: getattr(config, name) for name in ("rounds", "warmup", "tolerance")},
            "product": {"m": size.side, "n": size.side, "k": size.nb, "times": size.products},
            "read_bytes": size.read_bytes,
        },
        "ranks": [_of_rank(record) for record in records],
    }


def _of_rank(record: Record) -> dict[str, Any]:
    """Return the JSON section of a rank. Bits that are equal in all rounds are listed once."""
    bits = {name: sorted(set(values)) for name, values in record.bits.items()}
    return {**record.where, "kind": record.kind, "rates": record.rates, "bits": bits, **record.health}

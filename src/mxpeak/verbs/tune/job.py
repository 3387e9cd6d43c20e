"""Run a job of probes and trials on a group of ranks, and append each measurement to the journal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from mxpeak.bench.harness import Bench
from mxpeak.bench.registry import BENCHMARKS, Benchmark
from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import validate_on_all
from mxpeak.configs.run import RunConfig
from mxpeak.errors import MxpeakError
from mxpeak.options import Run, resolve, run_of
from mxpeak.records import bytes_rate_text, rate_text
from mxpeak.runtime.placement import bind_to_cores, cores_near, device_number, load_kernels, on_device
from mxpeak.runtime.tuned import append, blas_file
from mxpeak.verbs.tune.probe import IN_BYTES, IN_ENTRIES, measured, native, probes

#: A task of a job: {"do": "libraries", …}, {"do": "probes", …} or {"do": "trial", …}.
Task = dict[str, Any]
Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneJob:
    """Tasks that a group of ranks performs.

    until_unix   time after which no task starts
    journal      file for the measurements
    comm, quiet  transport of the ranks, and whether rank 0 prints no progress
    """

    ranks: int
    threads: int
    device: str
    kernels: str
    tasks: list[Task]
    journal: str
    until_unix: float
    comm: str = "auto"
    quiet: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the job as a dictionary that can be written as JSON."""
        return asdict(self)


def perform(job: TuneJob, comm: Communicator, say: Callable[[str], None]) -> None:
    """Perform the tasks that can start before the deadline, and record the results on rank 0. Collective over comm.

    Probes load and compile the kernels even after the deadline, and the time for this extends the deadline. Otherwise,
    a trial would compile the kernels, in a time that counts.

    If rank 0 cannot write a record, it raises the error after all ranks have ended the job.
    """
    failed: MxpeakError | None = None
    until, loads = job.until_unix, any(task["do"] == "probes" for task in job.tasks)
    for task in job.tasks:
        steps = {"libraries": _libraries, "probes": _probes, "trial": _trial}[task["do"]](job, task, comm)
        with closing(steps):
            while comm.bcast_object(failed is None and (loads or time.time() < until)):
                if (record := next(steps, None)) is None:
                    break
                if record["kind"] == "loaded":
                    until, loads = until + record["seconds"], False
                if comm.rank == 0:
                    try:
                        append(Path(job.journal), [record])
                    except MxpeakError as error:
                        failed = error
                    else:
                        say(line(record))
    if failed is not None:
        raise failed


def _libraries(job: TuneJob, task: Task, comm: Communicator) -> Any:
    """Open each BLAS library of `task["names"]` on all ranks, and yield a record with its file. Collective.

    If a rank refuses the library, the record contains the reason.
    """
    placement = bind_to_cores(comm, job.threads)  # libraries start threads on the cores of this rank
    try:
        for name in task["names"]:
            file, refused = {}, ""
            try:
                file = validate_on_all(comm, partial(blas_file, name))
            except MxpeakError as error:
                refused = str(error)
            yield {"kind": "library", **_layout(job), "name": name, "file": file, "refused": refused}
    finally:
        placement.release()


def _probes(job: TuneJob, task: Task, comm: Communicator) -> Any:
    """Measure each kernel that `task["known"]` does not contain, and yield its record. Collective.

    The first record contains the time to load the kernels, whose first use compiles them.
    """
    begin = time.time()
    run = on_device(Run(RunConfig(device=job.device, kernels=job.kernels, threads=job.threads)))
    config = run.config
    number = device_number(config, comm)
    placement = bind_to_cores(comm, config.threads, cores_near(config, number), number=number)
    try:
        kernels, comm = load_kernels(config, placement, comm)
        bench = Bench[RunConfig](run, comm, placement, kernels, {})
        low = native(kernels, on_gpu=config.on_gpu)
        yield {"kind": "loaded", **_layout(job), "seconds": time.time() - begin}
        for probe in probes(comm.size, low, on_gpu=config.on_gpu, scale=task.get("scale", 1)):
            if probe not in task["known"]:
                yield {"kind": "kernel", **_layout(job), **measured(bench, probe)}
        yield {"kind": "complete", **_layout(job)}
    finally:
        placement.release()


def _layout(job: TuneJob) -> dict[str, Any]:
    return {"ranks": job.ranks, "threads": job.threads, "device": job.device}


#: Keys of a kernel's record in addition to those of its probe.
_NOT_IN_PROBE = ("kind", "ranks", "threads", "device", "seconds", "rate")


def probe_of(record: Record) -> dict[str, Any]:
    """Return the probe that belongs to the record of a measured kernel."""
    hidden = (*_NOT_IN_PROBE, "bytes") if record["name"] == "rows" else _NOT_IN_PROBE
    return {name: value for name, value in record.items() if name not in hidden}


def trial_texts(benchmark: Benchmark, task: Task, job: TuneJob) -> dict[str, str]:
    """Return the settings of a trial as flag texts. The trial has one solve and does not measure the limit."""
    texts = {"device": job.device, "kernels": job.kernels, "threads": str(job.threads)}
    texts |= {name: str(n) for name, n in task["size"].items()}
    # on a device, the warm-up compiles the kernels
    texts["warmup"] = "gemm" if job.device.startswith("cuda") else "none"
    if "nx" in task["size"]:
        texts |= {"rt": "0", "quick": "yes"}
    if benchmark.name == "hpg-mxp":
        texts["iterations"] = "60"
    if hasattr(benchmark.config, "mode"):
        texts["mode"] = task["mode"]
    return {**texts, **task["settings"]}


def _trial(job: TuneJob, task: Task, comm: Communicator) -> Any:
    """Run a benchmark once and yield one record. If the run failed, the rate in the record is 0. Collective."""
    benchmark = BENCHMARKS[task["benchmark"]]
    record = {"kind": "trial", **_layout(job), **{name: value for name, value in task.items() if name != "do"}}
    try:
        texts = trial_texts(benchmark, task, job)
        run = run_of(benchmark.config, benchmark.config.settle(resolve(benchmark.config, texts, {}, {})))
        results = import_module(benchmark.module).run(run.config, comm, origins=run.origins)
    except MxpeakError as error:
        yield {**record, "rate_flops": 0.0, "passed": False, "failed": str(error)}
        return
    if not results:
        yield {**record, "rate_flops": 0.0, "passed": False, "iterations": None, "precision": ""}
        return
    first, passed = results[0], all(result.passed for result in results)
    rate = (first.result.get("rate_flops") or 0.0) if passed else 0.0
    low, steps = first.problem.get("precision", ""), first.validation.get("iterations")
    yield {**record, "rate_flops": rate, "passed": passed, "iterations": steps, "precision": low}


def line(record: Record) -> str:
    """Return a line of progress about a measurement."""
    where = f"tune {record['ranks']}x{record['threads']}"
    if record["kind"] == "library":
        return f"tune BLAS {record['name']}  {'refused' if record['refused'] else record['file'].get('file', 'opened')}"
    if record["kind"] == "complete":
        return f"{where} all kernels are measured"
    if record["kind"] == "loaded":
        return f"{where} kernels loaded in {record['seconds']:.3g} s, which the budget does not include"
    if record["kind"] == "trial":
        reason = f"failed: {record['failed']}" if record.get("failed") else "failed"
        rate = rate_text(record["rate_flops"]) if record["passed"] else reason
        return f"{where} {record['benchmark']} {record['phase']}  {typed(record['settings'])}  {rate}"
    sizes = " ".join(f"{key} {record[key]}" for key in ("m", "n", "k", "ld", "bytes") if key in record)
    names = " ".join(filter(None, [record["name"], record.get("bcast"), record.get("precision")]))
    return f"{where} {names} {sizes}  {_amount(record)}"


def _amount(record: Record) -> str:
    """Return the measured time of a kernel, or its rate with the unit of its work."""
    if "rate" not in record:
        return f"{record['seconds'] * 1e6:.3g} µs"
    if record["name"] in IN_BYTES:
        return bytes_rate_text(record["rate"])
    if record["name"] in IN_ENTRIES:
        return f"{record['rate'] / 1e9:.3g}e9 entries/s"
    return rate_text(record["rate"])


def typed(settings: Mapping[str, str]) -> str:
    """Return settings as command-line flags, or "defaults" without settings."""
    return " ".join(f"--{name.replace('_', '-')} {text}" for name, text in settings.items()) or "defaults"


def kernels_of(records: Iterable[Record], ranks: int, threads: int, device: str) -> list[Record]:
    """Return the records of the kernels that were measured on this layout and device."""
    layout = ranks, threads, device
    return [r for r in records if r["kind"] == "kernel" and (r["ranks"], r["threads"], r["device"]) == layout]

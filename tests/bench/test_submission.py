"""Test that the form of the HPL-MxP list contains the facts of the machine, and lists the missing ones."""

from __future__ import annotations

import json
from typing import Any

from mxpeak.records import Result
from mxpeak.report.energy import energy_ratios
from mxpeak.report.overview import overview
from mxpeak.report.scoreboard import scoreboard
from mxpeak.report.submission import FORM, submission, submission_files, submission_text

MACHINE = {
    "cpu_model": "Intel(R) Xeon(R) CPU E5-2692 v2 @ 2.20GHz",
    "sockets": 2,
    "physical_cores": 24,
    "kernel": "6.1.0",
    "memory_total_bytes": 64 * 2**30,
    "nodes": 3,
}
SOFTWARE = {
    "mxpeak": "0.1.0",
    "numba": "0.60",
    "llvmlite": "0.43",
    "mpich": "5.0.2",
    "blas": {"library": "openblas", "version": "0.3.30", "architecture": "Haswell", "threads": 1},
}


SOLVES: list[tuple[dict[str, Any], str]] = [
    ({"operands": "fp32", "method": "library", "share": 1.0}, "triangular solves in fp32"),
    ({"operands": "fp32", "method": "blocked-inverse"}, "products and inverses of diagonal blocks in fp32"),
    (
        {"operands": "bf16", "method": "blocked-inverse", "share": 0.75},
        "products with bf16 operands and fp32 inverses of diagonal blocks (75.0 % of their flops)",
    ),
]


def result_of(rate: float = 142.4e9, *, admissible: bool = True, **sections: Any) -> Result:
    violations = [] if admissible else [{"rule": "mode", "text": "--mode explore is for exploration"}]
    values: dict[str, Any] = {
        "benchmark": "hpl-mxp",
        "status": "valid",
        "run": {"id": "abc"},
        "problem": {
            "n": 20000,
            "nb": 256,
            "P": 2,
            "Q": 3,
            "precision": "fp16",
            "generator": "sqrt-n",
            "seed": 100,
            "refine": "gmres",
        },
        "result": {"rate_flops": rate, "lu_rate_flops": 1.1 * rate, "lu_time_s": 35.0, "emulated": False},
        "validation": {"passed": True, "residual": 0.5, "iterations": 2},
        "rules": {"mode": "official", "admissible": admissible, "violations": violations},
        "machine": MACHINE,
        "software": SOFTWARE,
        "launch": {"ranks": 6},
    }
    return Result(**{**values, **sections})


def test_the_fields_are_those_of_the_form_under_its_own_names():
    assert [field.name for field in FORM] == [
        "firstName",
        "lastName",
        "email",
        "sitename",
        "segment",
        "city",
        "country",
        "sysname",
        "integrator",
        "model",
        "processor",
        "procfreq",
        "proccores",
        "sockets",
        "nodemem",
        "accelerator",
        "accelcores",
        "accelcount",
        "interconnect",
        "nodes",
        "hplaigflops",
        "hplaiimpl",
        "hplgflops",
        "outputFile",
        "osname",
        "compiler",
        "mathlib",
        "mpilib",
    ]


def test_what_the_machine_knows_is_filled_in():
    fields = submission(result_of(), [], "HPL-MxP.out")["fields"]
    assert {name: value for name, value in fields.items() if value is not None} == {
        "processor": MACHINE["cpu_model"],
        "procfreq": 2.2,
        "proccores": 12,
        "sockets": 2,
        "nodemem": "64.0 GiB",
        "nodes": 3,
        "hplaigflops": 142.4,
        "hplaiimpl": "The mxpeak authors, mxpeak 0.1.0",
        "outputFile": "HPL-MxP.out",
        "osname": "Linux 6.1.0",
        "compiler": "Numba 0.60, llvmlite (LLVM) 0.43",
        "mathlib": "openblas 0.3.30 Haswell",
        "mpilib": "MPICH 5.0.2",
    }


def test_what_only_people_know_is_null_and_listed():
    body = submission(result_of(), [], "HPL-MxP.out")
    missing = body["to_be_filled_in_by_you"]
    assert missing == [name for name, value in body["fields"].items() if value is None]
    assert {"email", "sitename", "interconnect", "accelerator", "hplgflops"} <= set(missing)
    text = submission_text(body)
    below = text.split("Fill in these fields yourself")[1]
    assert "  Interconnect vendor, model, connections\n" in below
    assert "Node count" not in below


def test_the_accelerator_and_the_mpi_library_of_the_run_are_filled_in():
    device = {"device_name": "NVIDIA H100 80GB HBM3", "device_multiprocessors": 132, "device_count": 12}
    software = {**SOFTWARE, "mpi_library": "Open MPI v5.0.6"}
    fields = submission(result_of(machine={**MACHINE, **device}, software=software), [], "x")["fields"]
    assert fields["accelerator"] == "NVIDIA H100 80GB HBM3"
    assert fields["accelcores"] == 132
    assert fields["accelcount"] == 4, "12 GPUs on 3 nodes"
    assert fields["mpilib"] == "Open MPI v5.0.6", "not the wheel that is installed as well"
    torch = submission(result_of(launch={"ranks": 6, "comm": "torch"}), [], "x")["fields"]
    assert torch["mpilib"] == "none (torch.distributed)", "although MPICH's wheel is installed"
    uneven = submission(result_of(machine={**MACHINE, **device, "device_count": 11}), [], "x")
    assert "accelcount" in uneven["to_be_filled_in_by_you"]


def test_nothing_is_guessed_where_the_machine_is_unknown():
    body = submission(result_of(machine={}, software={}, launch={}), [], "HPL-MxP.out")
    known = {name for name, value in body["fields"].items() if value is not None}
    assert known == {"hplaigflops", "hplaiimpl", "outputFile"}


def test_one_rank_needs_no_mpi_and_a_clock_that_the_name_does_not_tell_is_unknown():
    result = result_of(launch={"ranks": 1}, machine={**MACHINE, "cpu_model": "AMD EPYC"})
    fields = submission(result, [], "HPL-MxP.out")["fields"]
    assert fields["mpilib"] == "none (one rank)"
    assert fields["procfreq"] is None


def test_hpls_score_is_taken_from_the_same_run_where_it_passed():
    hpl = Result(benchmark="hpl", status="valid", result={"rate_flops": 70e9})
    failed = Result(benchmark="hpl", status="invalid", result={"rate_flops": 99e9})
    emulated = Result(benchmark="hpl", status="valid", result={"rate_flops": 99e9, "fp64": "emulated"})
    explored = Result(
        benchmark="hpl", status="valid", result={"rate_flops": 99e9}, rules={"violations": [{"rule": "mode"}]}
    )
    others = [hpl, failed, emulated, explored]
    assert submission(result_of(), others, "HPL-MxP.out")["fields"]["hplgflops"] == 70.0


def test_emulated_hpl_is_in_no_ratio():
    energy = {"energy": {"gflops_per_watt": 10.0}}
    figures = {"rate_flops": 70e9}
    hpl = result_of(benchmark="hpl", result=figures, rules={}, telemetry=energy)
    emulated = result_of(benchmark="hpl", result={**figures, "fp64": "emulated"}, rules={}, telemetry=energy)
    mxp = result_of(telemetry=energy)
    for other, counts in ((hpl, 1), (emulated, 0)):
        assert len(energy_ratios([other, mxp])) == counts
        assert scoreboard([other, mxp]).count("× hpl") == counts
        assert overview([other.as_dict(), mxp.as_dict()], ["", ""]).count("× hpl") == counts


def test_the_first_line_says_whether_to_submit_at_all():
    assert submission_text(submission(result_of(), [], "x")).startswith("PASSED, ADMISSIBLE\n")
    text = submission_text(submission(result_of(admissible=False), [], "x"))
    assert text.splitlines()[:2] == [
        "PASSED, NOT ADMISSIBLE: the list does not accept this run",
        "  mode: --mode explore is for exploration",
    ]
    assert submission_text(submission(result_of(status="invalid"), [], "x")).startswith("FAILED, NOT ADMISSIBLE")


def test_the_fastest_admissible_result_is_submitted_not_a_faster_one_that_is_not():
    results = [result_of(1e9), result_of(9e9, admissible=False), result_of(2e9), result_of(3e9, status="invalid")]
    files = submission_files(results, [], "HPL-MxP.out")
    assert sorted(files) == ["submission.json", "submission.txt"]
    assert json.loads(files["submission.json"])["fields"]["hplaigflops"] == 2.0


def test_the_algorithm_is_explained_as_the_rules_ask():
    assert submission(result_of(), [], "x")["algorithm"] == (
        "Matrix sqrt-n of order 20000, seed 100, made in fp32 inside the clock.  Blocked right-looking LU without "
        "pivoting, NB = 256, on a 2x3 grid, diagonal blocks factored in fp32, L and U stored in fp32, the operands of "
        "the update in fp16, accumulated in fp32: 35.0 s, 157 GFLOP/s.  The factors precondition GMRES from the left "
        "in fp64, steps: 2, to a scaled backward error of 0.500."
    )
    for solves, method in SOLVES:
        done = result_of(result={"rate_flops": 1e9, "panel_solves": solves})
        assert (
            f"diagonal blocks factored in fp32, panels solved by {method}, L and U"
            in submission(done, [], "x")["algorithm"]
        )
    emulated = result_of(result={"rate_flops": 1e9, "emulated": True})
    assert "in fp16, rounded in software and multiplied in fp32" in submission(emulated, [], "x")["algorithm"]

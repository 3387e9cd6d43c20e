"""Test the scripts and the manifest of `mxpeak job`, and the errors of the command that they run."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mxpeak.bench.registry import BENCHMARKS
from mxpeak.cli.main import main, parsed
from mxpeak.verbs.jobs.job import shell_word

SCHEDULERS = ("slurm", "pbs", "flux", "kubernetes")
CORES = ["--ranks-per-node", "4", "--cpus-per-node", "32"]


def job(capsys: pytest.CaptureFixture[str], scheduler: str, *argv: str) -> str:
    image = ["--image", "site/mxpeak:1"] if scheduler == "kubernetes" else []
    assert main(["job", argv[0], "--for", scheduler, *image, *argv[1:]]) == 0
    return capsys.readouterr().out


def command_of(text: str) -> list[str]:
    """Return the words after mxpeak of the command that a script or a manifest runs."""
    line = text[text.rindex(" mxpeak ") :].splitlines()[0]
    return shlex.split(line)[1:]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("benchmark", [*BENCHMARKS, "scan", "peak"])
def test_each_job_runs_a_command_that_mxpeak_accepts(
    scheduler: str, benchmark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = job(capsys, scheduler, benchmark, "--nodes", "2", *CORES, "--", "--threads", "8")
    args = parsed(command_of(text))
    assert args.threads == "8"
    assert args.benchmark == benchmark if benchmark in BENCHMARKS else args.verb == benchmark


def test_a_job_of_pbs_has_its_resources_in_one_chunk_per_node(capsys: pytest.CaptureFixture[str]) -> None:
    text = job(
        capsys, "pbs", "hpl", "--nodes", "2", *CORES, "--gpus-per-node", "4", "--time", "90m", "--array", "0-3",
        "--nodelist", "n[08-09]", "--constraint", "mem=1tb", "--reservation", "R7", "--account", "a",
    )  # fmt: skip
    chunk = "ncpus=32:mpiprocs=4:ngpus=4:mem=1tb"
    assert f"#PBS -l select=1:host=n08:{chunk}+1:host=n09:{chunk}\n" in text
    for line in ("-l walltime=01:30:00", "-J 0-3", "-q R7", "-A a", "-l place=scatter:exclhost"):
        assert f"#PBS {line}\n" in text
    assert "mpiexec -n 8 --bind-to none mxpeak run hpl" in text


def test_a_job_of_flux_leaves_the_binding_to_mxpeak(capsys: pytest.CaptureFixture[str]) -> None:
    text = job(
        capsys, "flux", "hpl-mxp", "--nodes", "4", "--gpus-per-node", "4", "--time", "1-00:00:00", "--partition", "p",
        "--exclude", "n[1-2]", "--constraint", "a|b",
    )  # fmt: skip
    assert "# flux: --time-limit=86400s\n" in text
    assert "# flux: --queue=p\n" in text
    assert '# flux: --requires="(a|b) -host:n[1-2]"\n' in text
    launch = "flux run --nodes=4 --tasks-per-node=4 --exclusive -o cpu-affinity=off -o gpu-affinity=off"
    assert launch in text


def test_a_job_of_slurm_knows_qos_constraint_reservation_hosts_and_arrays(capsys: pytest.CaptureFixture[str]) -> None:
    text = job(
        capsys, "slurm", "hpl", "--nodes", "3", "--qos", "high", "--constraint", "gpu&ib", "--reservation", "maint",
        "--nodelist", "n1,n[3-4]", "--exclude", "n9", "--array", "0-7%2",
    )  # fmt: skip
    for line in ("qos=high", "constraint=gpu&ib", "reservation=maint", "nodelist=n[1,3-4]", "exclude=n9"):
        assert f"#SBATCH --{line}\n" in text
    assert "#SBATCH --array=0-7%2\n" in text


@pytest.mark.parametrize("array", ["0-4000000", "7", "3-3", "0-10:2,20-30:5%4", "1-4%5000000", "0-9:5000000"])
def test_indices_that_slurm_accepts_are_written(array: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"#SBATCH --array={array}\n" in job(capsys, "slurm", "hpl", "--array", array)


def test_cores_are_shared_and_idle_cores_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "hpl", "--for", "slurm", "--ranks-per-node", "8", "--cpus-per-node", "60"]) == 0
    out, err = capsys.readouterr()
    assert out.count("--cpus-per-task=7") == 2
    assert "#SBATCH --threads-per-core=1" in out
    text = "8 ranks with 7 cores each leave 4 of the 60 cores of a node idle"
    assert err.startswith(f"warning: {text}")
    assert f"# {text}" in out
    assert main(["job", "hpl", "--for", "slurm", *CORES, "--", "--threads", "6"]) == 0
    assert "--threads 6 leave 2 of the 8 cores of each rank idle" in capsys.readouterr().err
    assert main(["job", "hpl", "--for", "slurm", *CORES]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("80%", "80%"),
        ("a b", "'a b'"),
        ("$SLURM_JOB_ID", '"$SLURM_JOB_ID"'),
        ("a b/${X}-1", '"a b/${X}-1"'),
        ('$X"`id`\\', '"$X\\"\\`id\\`\\\\"'),
        ("$X$(id)$1", '"$X\\$(id)\\$1"'),
        ("$(id)", "'$(id)'"),
    ],
)
def test_variables_are_replaced_in_the_job_and_nothing_else_is(word: str, quoted: str) -> None:
    assert shell_word(word) == quoted
    environ = {"X": "7", "SLURM_JOB_ID": "42", "PATH": "/usr/bin:/bin"}
    printed = subprocess.run(["bash", "-c", f"printf %s {quoted}"], env=environ, capture_output=True, text=True)
    expected = word
    for name, value in environ.items():
        expected = re.sub(rf"\$(\{{{name}\}}|{name}\b)", value, expected)
    assert printed.stdout == expected


def test_a_rank_with_several_gpus_is_counted_once(capsys: pytest.CaptureFixture[str]) -> None:
    devices = ["--", "--layout", "tiles", "--devices-per-rank", "4"]
    text = job(capsys, "slurm", "norms", "--gpus-per-node", "8", *devices)
    assert "#SBATCH --ntasks-per-node=2\n#SBATCH --gpus-per-node=8\n" in text
    assert "selects 4." in text
    for argv, message in (
        (["--gpus-per-node", "8", "--ranks-per-node", "8", *devices], "8*4 = 32 GPUs, but --gpus-per-node is 8"),
        (["--gpus-per-node", "6", *devices], "1*4 = 4 GPUs, but --gpus-per-node is 6; use another --devices-per-rank"),
        (devices, "use --gpus-per-node 4"),
        (["--gpus-per-node", "8", "--", "-N", "100", "--devices-per-rank", "4"], "use --layout tiles"),
    ):
        assert main(["job", "norms", "--for", "slurm", *argv]) == 2
        assert message in capsys.readouterr().err


def test_sigterm_reaches_the_ranks_of_each_launcher(capsys: pytest.CaptureFixture[str]) -> None:
    for launcher, signal in (("srun", "TERM@120"), ("torchrun", "TERM@120"), ("mpiexec", "B:TERM@120")):
        text = job(capsys, "slurm", "hpl", "--launcher", launcher)
        assert f"#SBATCH --signal={signal}\n" in text
        assert ("\nexec mpiexec -n 1 " in text) == (launcher == "mpiexec")


def test_a_scaling_study_uses_the_ranks_of_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    text = job(capsys, "slurm", "hpl", "--nodes", "3", "--ranks-per-node", "8", "--", "--scaling-study", "weak")
    assert "mxpeak run hpl --scaling-study weak --out" in text
    assert "--ntasks=24 " in text
    assert job(capsys, "slurm", "hpl", "--ranks-per-node", "5", "--", "--scaling-study", "weak", "--ranks-list", "1,3")
    argv = ["job", "hpl", "--for", "slurm", "--ranks-per-node", "2", "--"]
    assert main([*argv, "--scaling-study", "weak", "--ranks-list", "1,4"]) == 2
    assert "--ranks-list 1,4 needs 4 ranks" in capsys.readouterr().err


def test_a_scan_writes_json_and_the_hosts_to_exclude(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = job(capsys, "slurm", "scan", "--nodes", "2")
    assert '--json "mxpeak-out/$SLURM_JOB_ID-scan.json"' in text
    assert '--write-exclude "mxpeak-out/$SLURM_JOB_ID-exclude.txt"' in text
    assert "\nmkdir -p mxpeak-out\n" in text
    assert command_of(job(capsys, "pbs", "scan", *CORES))[-2:] == ["--exclude-format", "hostfile"]
    text = job(capsys, "slurm", "scan", "--", "--json", "a.json", "--write-exclude", "b.txt")
    assert command_of(text) == ["scan", "--json", "a.json", "--write-exclude", "b.txt"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["hpcg", "--", "--rt", "banana"], "--rt: 'banana' is not a time"),
        (["hpcg", "--rt", "30m"], "does not accept --rt 30m; write the flags of hpcg after --"),
        (["hpl", "--", "--nb", "0"], "--nb: 0 is out of range"),
        (["hpl", "--nodes", "2", "--", "--grid", "2x2"], "grid 2x2 needs 2*2 = 4 ranks"),
        (["hpl", "--nodes", "2", "--ranks-per-node", "2", "--", "--node-grid", "2x2"], "use --ranks-per-node 4"),
        (["hpcg", "--ranks-per-node", "4", "--", "--npx", "3"], "need a multiple of 3 ranks"),
        (["hpl", "--", "--ranks", "2"], "--ranks 2 contradicts the job"),
        (["hpl", "--", "--help"], "use mxpeak run hpl --help"),
        (["hpl", "--", "-N", "100,200", "--checkpoint", "kept"], "only one run of one case, not 2 cases"),
        (["scan", "--", "--rounds", "x"], "--rounds: 'x' is not an integer"),
        (["peak", "--", "--device", "gpu"], "'gpu' is not a device"),
        (["hpl", "--time", "60"], "use HH:MM:SS, D-HH:MM:SS, 30m or 2h"),
        (["hpl", "--time", "1m"], "use at least 240s"),
        (["hpl", "--partition", "a b"], "contains a space or a quote"),
        (["hpl", "--array", "a"], "use, for example, 0-3"),
        (["hpl", "--array", "1" * 19], "is not a list of indices"),
        (["hpl", "--array", "3-1"], "--array: 3-1 is a decreasing range; use 1-3"),
        (["hpl", "--array", "0-7:2,9-8%2"], "--array: 9-8 is a decreasing range; use 8-9"),
        (["hpl", "--array", "0-9:0"], "--array: 0-9:0 has a step of 0; use a step of at least 1"),
        (["hpl", "--array", "0-4000001"], "the index 4000001, but Slurm accepts at most 4,000,000"),
        (["hpl", "--array", "1,100000000,3"], "the index 100000000, but Slurm accepts at most 4,000,000"),
        (["hpl", "--nodelist", "n[3-1]"], "use an increasing range"),
        (["hpl", "--nodelist", "n 1"], "is not a list of hosts"),
        (["hpl", "--nodelist", "n[1-3]"], "use --nodes 3"),
        (["hpl", "--image", "a"], "--image does not apply to slurm"),
        (["hpl", "--launcher", "flux"], "use srun or mpiexec or torchrun"),
        (["hpl", "--ranks-per-node", "8", "--cpus-per-node", "6"], "use --ranks-per-node 6"),
        (["hpl", "--ranks-per-node", "4", "--cpus-per-rank", "3", "--cpus-per-node", "8"], "4*3 = 12 cores"),
    ],
)
def test_mistakes_are_found_before_a_queue(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", argv[0], "--for", "slurm", *argv[1:]]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("scheduler", "argv", "message"),
    [
        ("pbs", [], "use --cpus-per-node C"),
        ("pbs", ["--qos", "a"], "--qos does not apply to pbs; use --partition QUEUE"),
        ("pbs", ["--exclude", "n1"], "use --nodelist with the other hosts"),
        ("pbs", ["--partition", "a", "--reservation", "b"], "use only --reservation"),
        ("pbs", ["--array", "3-1"], "3-1 is a decreasing range; use 1-3"),
        ("flux", ["--array", "0-3"], "use flux bulksubmit"),
        ("flux", ["--cpus-per-rank", "3"], "use -- --threads C"),
        ("kubernetes", [], "use --image IMAGE"),
        ("kubernetes", ["--image", "a", "--constraint", "b"], "use KEY=VALUE"),
        ("kubernetes", ["--image", "a", "--account", "b"], "use --partition QUEUE"),
    ],
)
def test_a_scheduler_refuses_the_flags_of_others(
    scheduler: str, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["job", "hpl", "--for", scheduler, *argv]) == 2
    assert message in capsys.readouterr().err


def strict(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required or [], "additionalProperties": False}


def items(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema, "minItems": 1}


TEXT, WHOLE, LABELS = {"type": "string"}, {"type": "integer"}, {"type": "object"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
EXPRESSION = strict({"key": TEXT, "operator": {"enum": ["In", "NotIn"]}, "values": items(TEXT)})
CONTAINER = strict(
    {
        "name": TEXT,
        "image": TEXT,
        "command": items(TEXT),
        "args": items(TEXT),
        "env": items(strict({"name": TEXT, "value": TEXT}, ["name"])),
        "resources": strict({"limits": LABELS, "requests": LABELS}),
        "securityContext": strict({"capabilities": strict({"add": items(TEXT), "drop": items(TEXT)})}),
        "volumeMounts": items(strict({"name": TEXT, "mountPath": TEXT}, ["name", "mountPath"])),
    },
    ["name"],
)
AFFINITY = strict(
    {
        "podAntiAffinity": strict(
            {REQUIRED: items(strict({"labelSelector": strict({"matchLabels": LABELS}), "topologyKey": TEXT}))}
        ),
        "nodeAffinity": strict(
            {REQUIRED: strict({"nodeSelectorTerms": items(strict({"matchExpressions": items(EXPRESSION)}))})}
        ),
    }
)
VOLUME = strict(
    {"name": TEXT, "emptyDir": strict({"medium": TEXT}), "persistentVolumeClaim": strict({"claimName": TEXT})}, ["name"]
)
POD = strict(
    {
        "restartPolicy": {"enum": ["Never", "OnFailure", "Always"]},
        "affinity": AFFINITY,
        "nodeSelector": LABELS,
        "containers": items(CONTAINER),
        "volumes": items(VOLUME),
    },
    ["containers"],
)
REPLICA = strict(
    {
        "replicas": WHOLE,
        "restartPolicy": TEXT,
        "template": strict({"metadata": strict({"labels": LABELS}), "spec": POD}),
    }
)
#: The fields of kubeflow.org/v2beta1 and of pods that the manifests use, by the names in the operator's definition.
MPIJOB = strict(
    {
        "apiVersion": {"const": "kubeflow.org/v2beta1"},
        "kind": {"const": "MPIJob"},
        "metadata": strict({"name": {"type": "string", "pattern": "^[a-z0-9-]+$"}, "labels": LABELS}, ["name"]),
        "spec": strict(
            {
                "slotsPerWorker": WHOLE,
                "runLauncherAsWorker": {"type": "boolean"},
                "launcherCreationPolicy": {"enum": ["AtStartup", "WaitForWorkersReady"]},
                "mpiImplementation": {"enum": ["OpenMPI", "Intel", "MPICH"]},
                "sshAuthMountPath": TEXT,
                "runPolicy": strict(
                    {
                        "cleanPodPolicy": {"enum": ["None", "Running", "All"]},
                        "ttlSecondsAfterFinished": WHOLE,
                        "activeDeadlineSeconds": WHOLE,
                        "backoffLimit": WHOLE,
                    }
                ),
                "mpiReplicaSpecs": strict({"Launcher": REPLICA, "Worker": REPLICA}, ["Launcher", "Worker"]),
            },
            ["mpiReplicaSpecs"],
        ),
    },
    ["apiVersion", "kind", "metadata", "spec"],
)


@pytest.mark.parametrize(
    "argv",
    [
        ["hpl"],
        ["hpl-mxp", "--nodes", "2", "--gpus-per-node", "8", "--cpus-per-node", "64", "--claim", "results"],
        ["scan", "--nodelist", "n[1-2]", "--exclude", "n3", "--constraint", "zone=a,gpu=h200", "--partition", "q"],
        [
            "hpcg",
            "--gpus-per-node",
            "4",
            "--gpu-resource",
            "amd.com/gpu",
            "--",
            "--rt",
            "30m",
            "--out",
            "a b/$HOSTNAME",
        ],
    ],
    ids=lambda argv: " ".join(argv[:3]),
)
def test_a_manifest_is_an_mpijob(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    yaml, jsonschema = pytest.importorskip("yaml"), pytest.importorskip("jsonschema")
    text = job(capsys, "kubernetes", *argv)
    manifest = yaml.safe_load(text)
    jsonschema.validate(manifest, MPIJOB)
    spec = manifest["spec"]
    launcher, worker = spec["mpiReplicaSpecs"]["Launcher"], spec["mpiReplicaSpecs"]["Worker"]
    (script,) = launcher["template"]["spec"]["containers"][0]["args"]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    ranks = worker["replicas"] * spec["slotsPerWorker"]
    assert f"mpirun -n {ranks} --bind-to none mxpeak" in script
    volumes = {volume["name"] for volume in worker["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in worker["template"]["spec"]["containers"][0]["volumeMounts"]} == volumes
    assert ("results" in volumes) == ("--claim" in argv) != ("--json -" in script)
    if "amd.com/gpu" in argv:
        assert worker["template"]["spec"]["containers"][0]["resources"]["limits"] == {"amd.com/gpu": 4}

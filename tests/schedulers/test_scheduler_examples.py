"""The examples for schedulers: syntax, schema, and the SLURM script on a real cluster of two nodes on this machine."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster, unavailable_reason, wait_for

from aag.cli.train import parse_train

EXAMPLES = Path(__file__).parents[2] / "examples" / "schedulers"
MANIFESTS = sorted(EXAMPLES.glob("*.yaml"))
SMALL = shlex.split("--data sample --device cpu --width 4 --batch-size 100 --epochs 6 --no-report --out run")


def container(manifest):
    """Return the container of a Job or of a PyTorchJob's workers."""
    spec = manifest["spec"]
    template = spec["template"] if "template" in spec else spec["pytorchReplicaSpecs"]["Worker"]["template"]
    (found,) = template["spec"]["containers"]
    return found, template["spec"]


def epochs(run: Path) -> list[int]:
    """Return the epochs that a run has logged."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [row["epoch"] for row in map(json.loads, lines) if row["kind"] == "epoch"]


def test_the_slurm_script_is_valid_bash():
    script = EXAMPLES / "slurm.sh"
    subprocess.run(["bash", "-n", script], check=True)
    if shellcheck := shutil.which("shellcheck"):
        subprocess.run([shellcheck, "--exclude=SC2155", script], check=True)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_starts_a_command_that_aag_understands(path):
    yaml = pytest.importorskip("yaml")
    found, pod = container(yaml.safe_load(path.read_text()))
    words = found["command"] + found["args"]
    assert words[words.index("aag") + 1] == "train"
    request = parse_train([str(word) for word in found["args"]])
    assert request.settings is not None
    assert "--out" in found["args"]  # else a new pod would start a new run
    mounted = {mount["name"]: mount["mountPath"] for mount in found["volumeMounts"]}
    assert set(mounted) == {volume["name"] for volume in pod["volumes"]}
    for option in ("--data", "--out"):
        assert any(found["args"][found["args"].index(option) + 1].startswith(place) for place in mounted.values())


def test_the_job_s_manifest_fits_the_schema_of_kubernetes():
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate (100 MB)")
    yaml = pytest.importorskip("yaml")
    manifest = yaml.safe_load((EXAMPLES / "kubernetes-job.yaml").read_text())
    kubernetes_validate.validate(manifest, "1.31", strict=True)


def test_exit_codes_in_the_manifest_are_those_of_aag():
    yaml = pytest.importorskip("yaml")
    from aag.signals import RESUMABLE

    rules = yaml.safe_load((EXAMPLES / "kubernetes-job.yaml").read_text())["spec"]["podFailurePolicy"]["rules"]
    actions = {rule["onExitCodes"]["values"][0]: rule["action"] for rule in rules if "onExitCodes" in rule}
    assert actions == {RESUMABLE: "Ignore", 2: "FailJob"}
    assert f"-eq {RESUMABLE} ]" in (EXAMPLES / "slurm.sh").read_text()


@pytest.mark.slow
def test_a_job_of_submitit_is_stopped_and_requeued(tmp_path, monkeypatch):
    """On submitit's local executor, with two processes."""
    pytest.importorskip("submitit", reason="pip install submitit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES), prepend=os.pathsep)  # jobs import the example
    import slurm_submitit

    job = slurm_submitit.submit(SMALL, cluster="local", tasks_per_node=2, timeout_min=10)
    wait_for(lambda: len(epochs(tmp_path / "run")) > 0, 300, "an epoch")
    job._process.send_signal(signal.SIGTERM)  # it sends this on to both processes
    assert job.results() == [0, 0]
    assert epochs(tmp_path / "run") == list(range(1, 7))
    assert "Caught signal SIGUSR1" in job.stderr()


@pytest.mark.slow
@pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
def test_a_slurm_job_of_two_nodes_is_stopped_twice_and_ends_whole(tmp_path, monkeypatch):
    """Stopped by SIGUSR1, which `--signal` sends before the time limit, then by SLURM's own requeueing."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")  # node1 and node2 are names of this machine
    run = tmp_path / "run"
    with SlurmCluster(tmp_path) as cluster:
        options = shlex.split("--parsable --nodes=2 --ntasks-per-node=1 --gpus-per-node=0 --cpus-per-task=1 --time=30")
        job = cluster.run("sbatch", *options, str(EXAMPLES / "slurm.sh"), *SMALL).strip()
        log = tmp_path / f"slurm-{job}.log"
        for stop, command in enumerate((["scancel", "--signal=USR1", job], ["scontrol", "requeue", job])):
            before = len(epochs(run))
            wait_for(lambda before=before: len(epochs(run)) > before, 300, f"an epoch; the log: {log}")
            cluster.run(*command)
            wait_for(lambda stop=stop: cluster.job(job)["Restarts"] == str(stop + 1), 120, f"restart {stop + 1}")
            wait_for(lambda: cluster.job(job)["JobState"] == "PENDING", 120, "the job is queued again")
            cluster.run("scontrol", "update", f"job={job}", "StartTime=now")  # else two minutes later
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
        wait_for(lambda: cluster.job(job)["JobState"] in ended, 300, "the job's end")
        assert (cluster.job(job)["JobState"], cluster.job(job)["Restarts"]) == ("COMPLETED", "2"), log.read_text()
    assert epochs(run) == list(range(1, 7))
    assert (run / "encoder.safetensors").exists()
    assert "2 processes" in log.read_text()

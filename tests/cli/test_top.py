"""Who holds and who waits for which GPU, as `top` shows it."""

from pilotlight.targets.target import ReplicaStatus, RevisionStatus, ServiceStatus
from platformctl.commands.platform.top import _gpu_cells, gpu_holders

GIB = 1 << 30
WAITS = "waiting for 8Gi of a GPU held by default/llama (1 of 1 in use)"


def status(name: str, *replicas: ReplicaStatus) -> ServiceStatus:
    revision = RevisionStatus(f"{name}-1", name, "predictor", 100, replicas=replicas)
    return ServiceStatus("default", name, 1, "Ready", "", revisions=(revision,))


def test_top_shows_who_holds_which_gpu_and_who_waits_for_what() -> None:
    rows = gpu_holders([
        status("mistral", ReplicaStatus("mistral-1-x", "waiting", reason=WAITS)),
        status("phi", ReplicaStatus("phi-1-x", "parked", gpus=("0",), gpu_memory=4 * GIB)),
        status("llama", ReplicaStatus("llama-1-x", "ready", gpus=("0",), gpu_memory=16 * GIB)),
        status("whole", ReplicaStatus("whole-1-x", "starting", gpus=("1",))),
        status("iris", ReplicaStatus("iris-1-x", "ready")),
    ])  # fmt: skip
    assert [_gpu_cells(row) for row in rows] == [
        ("0", "default/llama", "16.0 GiB", "ready", "-"),
        ("0", "default/phi", "-", "parked", "-"),
        ("1", "default/whole", "all", "starting", "-"),
        ("-", "default/mistral", "-", "waiting", WAITS),
    ]

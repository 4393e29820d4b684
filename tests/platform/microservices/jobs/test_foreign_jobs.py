"""What a program or a shell could misinterpret, and a container's state as docker prints it. No daemon."""

import json

import pytest
from msgspec.structs import replace

from pilotlight.errors import UsageError
from pilotlight.microservices.jobs.foreign_jobs import read_state
from pilotlight.microservices.registry.records import Job, check_job

ID = "4ca2f1e6-0d5f-4d39-9a55-6a4f1e3d2b10"
TAO = Job(ID, "cosmos-rl", "hf_model://a/b", "nvcr.io/nvidia/tao:6", "umask 0 && run --job '{}'", host_port=8083)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"image": "--privileged"}, "image"),
        ({"image": "a b"}, "image"),
        ({"env": {"A=B": "x"}}, "env"),
        ({"env": {"A": "x\0y"}}, r"env\.A"),
        ({"secrets": ("HF_TOKEN,LD_PRELOAD",)}, "env"),
        ({"id": "a;b"}, "job id"),
        ({"options": {"network": "--privileged"}}, "network"),
        ({"options": {"mounts": "$(id):/x"}}, "mounts"),
    ],
)
def test_what_could_be_taken_for_something_else_is_refused_by_name(changes: dict[str, object], field: str) -> None:
    with pytest.raises(UsageError, match=field):
        check_job(replace(TAO, **changes))


@pytest.mark.parametrize(
    ("state", "meaning", "reason"),
    [
        ({"Status": "created"}, "pending", "the container is created"),
        ({"Status": "running"}, "running", ""),
        ({"Status": "exited", "ExitCode": 0}, "stopped", "exited with code 0"),
        ({"Status": "exited", "ExitCode": 3}, "failed", "exited with code 3"),
        ({"Status": "exited", "ExitCode": 137}, "failed", "by signal 9"),
        ({"Status": "exited", "ExitCode": 137, "OOMKilled": True}, "failed", "memory limit"),
        ({"Status": "created", "ExitCode": 127, "Error": "no such file"}, "failed", "no such file"),
        ({"Status": "dead", "ExitCode": 1}, "failed", "exited with code 1"),
    ],
)
def test_states_of_containers_are_states_of_ours(state: dict[str, object], meaning: str, reason: str) -> None:
    seen = read_state(json.dumps(state), ID, ("last words",))
    phases = {"pending": "Pending", "running": "Running", "stopped": "Succeeded", "failed": "Failed"}
    assert (seen.state, seen.pod_name, seen.pod_status, seen.tail) == (meaning, ID, phases[meaning], ("last words",))
    assert reason in seen.reason

"""A job as the words of `docker run`, and a container's state as it is told. No daemon."""

import json

import pytest
from msgspec.structs import replace

from pilotlight.errors import UsageError
from pilotlight.microservices.platforms.commands import validate_job
from pilotlight.microservices.platforms.containers import Machine, read_state, run_arguments
from pilotlight.microservices.registry.records import Job

ID = "4ca2f1e6-0d5f-4d39-9a55-6a4f1e3d2b10"
TAO = Job(ID, "cosmos-rl", "hf_model://a/b", "nvcr.io/nvidia/tao:6", "umask 0 && run --job '{}'", host_port=8083)
OWN = Job(ID, "pilotlight", "/m", "pilotlight/predictor:0.1.0", 'exec "python" -m pilotlight_predictor', host_port=8083)


def has(words: list[str], *wanted: str) -> bool:
    return any(words[at : at + len(wanted)] == list(wanted) for at in range(len(words)))


def test_a_container_has_the_jobs_name_its_port_and_the_limits_that_its_images_ask_for() -> None:
    words = run_arguments(TAO, Machine(), ())
    assert words[:3] == ["docker", "run", "--detach"]
    assert has(words, "--name", ID)
    assert has(words, "--publish", "8083:8080")
    assert has(words, "--shm-size=1g", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864")


def test_what_the_api_starts_is_reached_from_its_machine_alone() -> None:
    closed = replace(OWN, closed=True, host_port=8083)
    assert has(run_arguments(closed, Machine(), ()), "--publish", "127.0.0.1:8083:8080")
    assert has(run_arguments(closed, Machine(network="host"), ()), "--env", "INFERENCE_HOST=127.0.0.1")
    assert "INFERENCE_HOST=127.0.0.1" not in run_arguments(replace(OWN, host_port=8083), Machine(network="host"), ())


def test_other_limits_replace_the_usual_ones() -> None:
    words = run_arguments(replace(TAO, options={"ulimits": "stack=8388608"}), Machine(), ())
    assert has(words, "--ulimit", "stack=8388608")
    assert "memlock=-1" not in words


def test_the_command_is_one_word_for_a_shell_behind_the_images_own_entry_point() -> None:
    assert run_arguments(TAO, Machine(), ())[-4:] == [TAO.image, "/bin/sh", "-c", TAO.command]


def test_the_entry_point_of_our_own_image_makes_room_for_the_shell() -> None:
    assert run_arguments(OWN, Machine(), ())[-5:] == ["--entrypoint", "/bin/sh", OWN.image, "-c", OWN.command][-5:]


def test_secrets_are_named_and_plain_variables_said() -> None:
    words = run_arguments(replace(TAO, env={"CLOUD_BASED": "False"}), Machine(), ("HF_TOKEN",))
    assert has(words, "--env", "CLOUD_BASED=False")
    assert has(words, "--env", "HF_TOKEN")


def test_gpus_are_those_of_the_options_else_the_first() -> None:
    two = replace(TAO, num_gpus=2)
    assert has(run_arguments(two, Machine("requests"), ()), "--gpus", "2")
    assert has(run_arguments(replace(two, options={"gpus": "1,3"}), Machine("requests"), ()), "--gpus", '"device=1,3"')


def test_on_the_machines_network_our_predictor_is_told_its_port() -> None:
    words = run_arguments(OWN, Machine(network="host"), ())
    assert has(words, "--network", "host")
    assert has(words, "--env", "INFERENCE_PORT=8083")
    assert "--publish" not in words


def test_on_the_machines_network_another_image_gets_8080_or_is_refused() -> None:
    assert "--publish" not in run_arguments(replace(TAO, host_port=8080), Machine(network="host"), ())
    with pytest.raises(UsageError, match="listens on 8080 only and 8083 was chosen"):
        run_arguments(TAO, Machine(network="host"), ())


def test_folders_are_mounted_as_told() -> None:
    words = run_arguments(replace(TAO, options={"mounts": "/models:/models:ro,/out:/out"}), Machine(), ())
    assert has(words, "--volume", "/models:/models:ro", "--volume", "/out:/out")


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
        validate_job(replace(TAO, **changes))


@pytest.mark.parametrize(
    ("state", "meaning", "reason"),
    [
        ({"Status": "created"}, "pending", "the container is created"),
        ({"Status": "running"}, "running", ""),
        ({"Status": "exited", "ExitCode": 0}, "stopped", "ended by itself"),
        ({"Status": "exited", "ExitCode": 3}, "failed", "exit code 3"),
        ({"Status": "exited", "ExitCode": 137}, "failed", "by signal 9"),
        ({"Status": "exited", "ExitCode": 137, "OOMKilled": True}, "failed", "more memory than it may"),
        ({"Status": "created", "ExitCode": 127, "Error": "no such file"}, "failed", "no such file"),
        ({"Status": "dead", "ExitCode": 1}, "failed", "exit code 1"),
    ],
)
def test_states_of_containers_are_states_of_ours(state: dict[str, object], meaning: str, reason: str) -> None:
    seen = read_state(json.dumps(state), ID, ("last words",))
    phases = {"pending": "Pending", "running": "Running", "stopped": "Succeeded", "failed": "Failed"}
    assert (seen.state, seen.pod_name, seen.pod_status, seen.tail) == (meaning, ID, phases[meaning], ("last words",))
    assert reason in seen.reason

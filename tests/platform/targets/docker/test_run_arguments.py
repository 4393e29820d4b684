"""A replica as arguments of `docker run`, and what docker says about a container. No daemon."""

from dataclasses import replace
from typing import Any

import pytest
from tests.platform.targets.local.runs import revision

from pilotlight import contract
from pilotlight.k8s.model_pins import ModelPin
from pilotlight.targets.docker.run_arguments import (
    CLIENT_ENDED,
    Daemon,
    address,
    container_name,
    end_of,
    gpu_arguments,
    is_clients,
    read_daemon,
    run_arguments,
    variables,
)
from pilotlight.targets.local.manifests.service_spec_types import ContainerSpec, Mount
from pilotlight.targets.local.supervisor.launcher import Ended, ReplicaAddress
from pilotlight.targets.local.supervisor.replica_record import Launch
from pilotlight.targets.local.supervisor.shim import Exit

DAEMON = Daemon(cpus=4, user="1000:1000")
OWN = ContainerSpec("main", "pilotlight/predictor:1", (), (), {"INFERENCE_MODEL_NAME": "iris"}, 8080)
VLLM = replace(OWN, name="vllm", image="vllm/vllm-openai:v1", args=("--port", "8000"), env={"HF_TOKEN": "x"}, port=8000)


def launch(container: ContainerSpec = OWN, **changes: Any) -> Launch:
    return Launch("iris-predictor-1-bcdfg", replace(revision(), container=replace(container, **changes)))


def words(container: ContainerSpec = OWN, daemon: Daemon = DAEMON, **changes: Any) -> list[str]:
    started = launch(container, **changes)
    return run_arguments(started, daemon, variables(started, daemon, ""), home="/home/me/pilotlight")


def test_a_container_has_the_replicas_name_and_labels_that_find_it_again() -> None:
    arguments = words()
    assert arguments[:4] == ["docker", "run", "--name", "iris-predictor-1-bcdfg"]
    assert "--label=dev.pilotlight.home=/home/me/pilotlight" in arguments
    assert "--label=dev.pilotlight.service=iris" in arguments
    assert arguments[-1] == OWN.image


def test_our_image_opens_no_port_has_no_capability_and_the_id_of_this_user() -> None:
    arguments = words()
    assert not [word for word in arguments if word.startswith("--publish")]
    assert {"--user=1000:1000", "--cap-drop=ALL", "--security-opt=no-new-privileges"} <= set(arguments)
    assert variables(launch(), DAEMON, "")["INFERENCE_HOST"] == "unix:/run/pilotlight"


def test_our_image_publishes_its_ports_on_loopback_where_sockets_cannot_be_mounted() -> None:
    desktop = DAEMON._replace(mounts_sockets=False)
    published = [word for word in words(daemon=desktop) if word.startswith("--publish")]
    assert published == ["--publish=127.0.0.1::8080", "--publish=127.0.0.1::8081", "--publish=127.0.0.1::8082"]
    assert variables(launch(), desktop, "")["INFERENCE_HOST"] == "0.0.0.0"


def test_another_image_publishes_its_port_on_loopback_and_keeps_its_user() -> None:
    arguments = words(VLLM)
    assert "--publish=127.0.0.1::8000" in arguments
    assert not [word for word in arguments if word.startswith(("--user", "--cap-drop"))]
    assert variables(launch(VLLM), DAEMON, "/cache") == VLLM.env


def test_a_host_port_is_published_as_written_and_names_the_container() -> None:
    assert "--publish=127.0.0.1:8083:8080" in words(host_port=8083)
    assert "--publish=0.0.0.0:8083:8080" in words(host_port=8083, host_ip="0.0.0.0")
    assert container_name(launch(name="job-1", host_port=8083)) == "job-1"


def test_on_the_machines_network_a_host_port_is_listened_on() -> None:
    options = {"network": "host"}
    arguments = words(host_port=8083, options=options)
    assert "--network=host" in arguments
    assert not [word for word in arguments if word.startswith("--publish")]
    env = variables(launch(host_port=8083, options=options), DAEMON, "")
    assert (env["INFERENCE_HOST"], env["INFERENCE_HTTP_PORT"]) == ("127.0.0.1", "8083")


def test_arguments_hold_names_of_variables_but_for_those_that_the_client_reads() -> None:
    arguments = words(VLLM, env={"HF_TOKEN": "hf_secret", "PATH": "/opt/bin", "DOCKER_HOST": "tcp://a"})
    assert "HF_TOKEN" in arguments
    assert not [word for word in arguments if "hf_secret" in word]
    assert {"PATH=/opt/bin", "DOCKER_HOST=tcp://a"} <= set(arguments)
    assert [name for name in ("HTTP_PROXY", "GOOGLE_APPLICATION_CREDENTIALS", "PATHS") if is_clients(name)] == []


def test_a_command_replaces_the_entry_point_and_arguments_follow() -> None:
    assert words(VLLM, command=("sh", "-c"), args=("exec serve",))[-4:] == [
        "--entrypoint=sh", VLLM.image, "-c", "exec serve",
    ]  # fmt: skip
    assert words(VLLM)[-3:] == [VLLM.image, "--port", "8000"]
    assert words(args=("--http-port", "9", "--workers=2"))[-2:] == [OWN.image, "--workers=2"]


def test_limits_are_dockers_and_processors_at_most_those_of_the_machine() -> None:
    arguments = words(memory_limit=2 << 30, cpu_limit=16.0)
    assert {"--memory=2147483648", "--cpus=4", "--shm-size=1g"} <= set(arguments)
    assert "--cpus=0.5" in words(cpu_limit=0.5)
    assert not [word for word in words() if word.startswith(("--memory", "--cpus", "--ulimit"))]
    assert "--ulimit=stack=8388608" in words(options={"ulimits": "stack=8388608"})


def test_folders_are_mounted_as_the_pod_and_the_options_say() -> None:
    mounts = (Mount("/data", "/models", read_only=True), Mount("/out", "/out"))
    arguments = words(mounts=mounts, options={"mounts": "/a:/b:ro,/c:/d"})
    volumes = [word for word in arguments if word.startswith("--volume")]
    assert volumes == ["--volume=/data:/models:ro", "--volume=/out:/out", "--volume=/a:/b:ro", "--volume=/c:/d"]


def test_gpus_are_device_requests_on_x86_and_the_nvidia_runtime_on_tegra() -> None:
    assert gpu_arguments("", 2, "requests") == ["--gpus", "2"]
    assert gpu_arguments("1,3", 0, "requests") == ["--gpus", '"device=1,3"']
    assert gpu_arguments("0,1", 0, "tegra") == [
        "--runtime=nvidia", "--env", "NVIDIA_DRIVER_CAPABILITIES=all", "--env", "NVIDIA_VISIBLE_DEVICES=0,1",
    ]  # fmt: skip
    assert gpu_arguments("0", 0, "none") == []
    assert gpu_arguments("", 0, "requests") == ["--env", "NVIDIA_VISIBLE_DEVICES=void"]
    with_gpus = run_arguments(launch(), DAEMON._replace(gpus="requests"), {}, gpus=(1, 3))
    assert {'"device=1,3"', "--ulimit=memlock=-1"} <= set(with_gpus)


def test_pins_of_remote_models_and_the_cache_reach_our_image_alone() -> None:
    pins = {"s3://b/m": ModelPin("etags:1"), "/m": ModelPin("sha256:2")}
    env = variables(launch(pins=pins), DAEMON, "/cache")
    assert "s3://b/m" in env[contract.ENV_MODEL_PINS]
    assert "sha256:2" not in env[contract.ENV_MODEL_PINS]
    assert env[contract.ENV_CACHE_DIR] == "/cache"


@pytest.mark.parametrize(
    ("info", "daemon"),
    [
        ({"NCPU": 8, "OperatingSystem": "Debian GNU/Linux 12"}, Daemon("none", 8, True, "1000:1000")),
        ({"OperatingSystem": "Docker Desktop"}, Daemon("none", 0, False, "1000:1000")),
        ({"SecurityOptions": ["name=seccomp", "name=rootless"]}, Daemon("none", 0, True, "0:0")),
    ],
)
def test_the_daemon_says_what_can_be_mounted_and_by_whom_it_is_read(info: dict[str, Any], daemon: Daemon) -> None:
    assert read_daemon(info, "none", "1000:1000") == daemon


def described(**fields: Any) -> dict[str, Any]:
    """As `docker inspect` does it."""
    plain = {"HostConfig": {"NetworkMode": "default"}, "Config": {"Env": []}, "NetworkSettings": {"Ports": {}}}
    return {**plain, "Mounts": [], **fields}


def test_the_address_of_a_container_is_read_from_inspect() -> None:
    sockets = described(Mounts=[{"Source": "/home/run/replicas/1", "Destination": "/run/pilotlight"}])
    assert address(sockets, "unix:/home/run/replicas/1") == ReplicaAddress("unix:/home/run/replicas/1")
    ports = {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "32768"}], "9/tcp": None}
    assert address(described(NetworkSettings={"Ports": ports}), "") == ReplicaAddress("127.0.0.1", {8000: 32768})
    everywhere = {"8080/tcp": [{"HostIp": "0.0.0.0", "HostPort": "8083"}]}
    assert address(described(NetworkSettings={"Ports": everywhere}), "") == ReplicaAddress("127.0.0.1", {8080: 8083})
    host = described(HostConfig={"NetworkMode": "host"}, Config={"Env": ["INFERENCE_HTTP_PORT=8083"]})
    assert address(host, "") == ReplicaAddress("127.0.0.1", {8080: 8083})


@pytest.mark.parametrize(
    ("client", "state", "end"),
    [
        (Ended(Exit(0)), {"ExitCode": 0}, Ended(Exit(0))),
        (Ended(Exit(137, 9)), {"ExitCode": 143}, Ended(Exit(143, 15))),
        (Ended(Exit(125)), {}, Ended(Exit(125), "Error response from daemon: no such image")),
        (Ended(Exit(1)), {"ExitCode": 127, "Error": "no sh"}, Ended(Exit(127), "the container could not run: no sh")),
        (Ended(Exit(1)), None, Ended(Exit(1), "the Docker daemon does not answer")),
        (Ended(Exit(137, 9)), {"Running": True}, Ended(Exit(137, 9), CLIENT_ENDED)),
        (Ended(reason="the machine was restarted", lost=True), {"ExitCode": 255},
         Ended(Exit(255), "the machine was restarted", lost=True)),
    ],
)  # fmt: skip
def test_a_replica_ends_as_its_container_did(client: Ended, state: dict[str, Any] | None, end: Ended) -> None:
    log = ["Unable to find image", "docker: Error response from daemon: no such image", "", "Run 'docker run --help'"]
    assert end_of(client, state, log) == end


def test_a_container_over_its_memory_limit_says_so() -> None:
    assert "more memory than it may" in end_of(Ended(), {"OOMKilled": True, "ExitCode": 137}, []).reason

"""A replica as arguments of `docker run`, and what docker says about a container. No daemon."""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.platform.targets.local.runs import revision

from pilotlight import contract
from pilotlight.errors import UsageError
from pilotlight.k8s.model_pins import ModelPin
from pilotlight.targets.docker.run_arguments import (
    CLIENT_ENDED,
    Daemon,
    address,
    changes_client,
    check,
    client_command,
    container_name,
    end_of,
    gpu_arguments,
    read_daemon,
    variables,
)
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.manifests.service_spec_types import ContainerSpec, Fetch, Mount
from pilotlight.targets.local.supervisor.launcher import Ended, ReplicaAddress
from pilotlight.targets.local.supervisor.replica_record import Launch
from pilotlight.targets.local.supervisor.shim import Exit

HOME, GATEWAY = Home(Path("/srv/pilotlight")), "http://127.0.0.1:8090"
SOCKETS = ReplicaAddress("unix:/srv/pilotlight/run/replicas/1")
DAEMON = Daemon(cpus=4, user="1000:1000")
OWN = ContainerSpec("main", "pilotlight/predictor:1", (), (), {"INFERENCE_MODEL_NAME": "iris"}, 8080)
VLLM = replace(OWN, name="vllm", image="vllm/vllm-openai:v1", args=("--port", "8000"), env={"HF_TOKEN": "x"}, port=8000)


def launch(container: ContainerSpec = OWN, **changes: Any) -> Launch:
    return Launch("iris-predictor-1-bcdfg", replace(revision(), container=replace(container, **changes)))


def words(container: ContainerSpec = OWN, daemon: Daemon = DAEMON, **changes: Any) -> list[str]:
    return client_command(launch(container, **changes), daemon, HOME)[0]


def test_a_container_has_the_replicas_name_and_labels_that_find_it_again() -> None:
    arguments = words()
    assert arguments[:3] == ["docker", "run", "--name=iris-predictor-1-bcdfg"]
    assert "--label=dev.pilotlight.home=/srv/pilotlight" in arguments
    assert "--label=dev.pilotlight.service=iris" in arguments
    assert arguments[-1] == OWN.image


def test_our_image_opens_no_port_has_no_capability_and_the_id_of_this_user() -> None:
    arguments = words()
    assert not [word for word in arguments if word.startswith("--publish")]
    assert {"--user=1000:1000", "--cap-drop=ALL", "--security-opt=no-new-privileges"} <= set(arguments)
    assert variables(launch(), DAEMON, HOME, GATEWAY)["INFERENCE_HOST"] == "unix:/run/pilotlight"


def test_our_image_publishes_its_ports_on_loopback_where_sockets_cannot_be_mounted() -> None:
    desktop = DAEMON._replace(mounts_sockets=False)
    published = [word for word in words(daemon=desktop) if word.startswith("--publish")]
    assert published == ["--publish=127.0.0.1::8080", "--publish=127.0.0.1::8081", "--publish=127.0.0.1::8082"]
    assert variables(launch(), desktop, HOME, GATEWAY)["INFERENCE_HOST"] == "0.0.0.0"


def test_another_image_publishes_its_port_on_loopback_and_keeps_its_user() -> None:
    arguments = words(VLLM)
    assert "--publish=127.0.0.1::8000" in arguments
    assert not [word for word in arguments if word.startswith(("--user", "--cap-drop"))]
    assert variables(launch(VLLM), DAEMON, HOME, GATEWAY) == VLLM.env


def test_a_host_port_is_published_as_written_and_names_the_container() -> None:
    published = ["--publish=127.0.0.1:8083:8080"]  # our image always listens on 8080
    assert [word for word in words(host_port=8083, port=9000) if "publish" in word] == published
    assert "--publish=0.0.0.0:8083:8080" in words(host_port=8083, host_ip="0.0.0.0")
    assert container_name(launch(name="job-1", host_port=8083)) == "job-1"
    assert container_name(launch(name="kserve-container", host_port=8083)) == "iris-predictor-1-bcdfg"


def test_on_the_machines_network_a_host_port_is_listened_on() -> None:
    options = {"network": "host"}
    arguments = words(host_port=8083, options=options)
    assert "--network=host" in arguments
    assert not [word for word in arguments if word.startswith("--publish")]
    env = variables(launch(host_port=8083, options=options), DAEMON, HOME, GATEWAY)
    assert (env["INFERENCE_HOST"], env["INFERENCE_HTTP_PORT"]) == ("127.0.0.1", "8083")


def test_arguments_hold_names_of_variables_but_for_those_that_the_client_reads() -> None:
    env = {"HF_TOKEN": "hf_secret", "PATH": "/opt/bin", "DOCKER_HOST": "tcp://a"}
    arguments, values = client_command(launch(VLLM, env=env), DAEMON, HOME)
    assert {"--env=HF_TOKEN", "--env=PATH=/opt/bin", "--env=DOCKER_HOST=tcp://a"} <= set(arguments)
    assert not [word for word in arguments if "hf_secret" in word]
    assert values == {"HF_TOKEN": "hf_secret"}
    assert [name for name in ("HTTP_PROXY", "GOOGLE_APPLICATION_CREDENTIALS", "PATHS") if changes_client(name)] == []


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


def test_folders_are_mounted_as_the_pod_says() -> None:
    mounts = (Mount("/data", "/models", read_only=True), Mount("/out", "/out"))
    assert [word for word in words(VLLM, mounts=mounts) if word.startswith("--mount")] == [
        "--mount=type=bind,source=/data,target=/models,readonly", "--mount=type=bind,source=/out,target=/out",
    ]  # fmt: skip
    assert '--mount=type=bind,"source=/a,b",target=/c' in words(mounts=(Mount("/a,b", "/c"),))


def test_gpus_are_device_requests_on_x86_and_the_nvidia_runtime_on_tegra() -> None:
    assert gpu_arguments("", 2, "requests") == ["--gpus", "2"]
    assert gpu_arguments("1,3", 0, "requests") == ["--gpus", '"device=1,3"']
    assert gpu_arguments("0,1", 0, "tegra") == [
        "--runtime=nvidia", "--env=NVIDIA_DRIVER_CAPABILITIES=all", "--env=NVIDIA_VISIBLE_DEVICES=0,1",
    ]  # fmt: skip
    assert gpu_arguments("0", 0, "none") == []
    assert gpu_arguments("", 0, "requests") == ["--env=NVIDIA_VISIBLE_DEVICES=void"]
    with_gpus = client_command(launch(), DAEMON._replace(gpus="requests"), HOME, gpus=(1, 3))[0]
    assert {'"device=1,3"', "--ulimit=memlock=-1"} <= set(with_gpus)


def test_pins_of_remote_models_and_the_cache_reach_our_image_alone() -> None:
    pins = {"s3://b/m": ModelPin("etags:1"), "/m": ModelPin("sha256:2")}
    env = variables(launch(pins=pins), DAEMON, HOME, GATEWAY)
    assert "s3://b/m" in env[contract.ENV_MODEL_PINS]
    assert "sha256:2" not in env[contract.ENV_MODEL_PINS]
    assert env[contract.ENV_CACHE_DIR] == str(HOME.cache)
    assert contract.ENV_CACHE_DIR not in variables(
        launch(env={contract.ENV_MICROSERVICE: "true"}), DAEMON, HOME, GATEWAY
    )


def test_a_container_does_not_get_what_is_of_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    names = variables(launch(), DAEMON, HOME, GATEWAY).keys()
    assert not names & {
        "PILOTLIGHT_HOME",
        "PILOTLIGHT_REPLICA",
        "CUDA_VISIBLE_DEVICES",
        "AWS_SECRET_ACCESS_KEY",
        "PATH",
    }


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
    sockets = described(Mounts=[{"Source": "/srv/run/replicas/1", "Destination": "/run/pilotlight"}])
    assert address(sockets, SOCKETS) == SOCKETS
    ports = {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "32768"}], "9/tcp": None}
    assert address(described(NetworkSettings={"Ports": ports}), SOCKETS) == ReplicaAddress("127.0.0.1", {8000: 32768})
    everywhere = {"8080/tcp": [{"HostIp": "0.0.0.0", "HostPort": "8083"}]}
    published = ReplicaAddress("127.0.0.1", {8080: 8083})
    assert address(described(NetworkSettings={"Ports": everywhere}), SOCKETS) == published
    host = described(HostConfig={"NetworkMode": "host"}, Config={"Env": ["INFERENCE_HTTP_PORT=8083"]})
    assert address(host, SOCKETS) == published


@pytest.mark.parametrize(
    ("client", "state", "end"),
    [
        (Ended(Exit(0)), {"ExitCode": 0}, Ended(Exit(0))),
        (Ended(Exit(137, 9)), {"ExitCode": 143}, Ended(Exit(143, 15))),
        (Ended(Exit(125)), {}, Ended(Exit(125), "image other:1: Error response from daemon: no such image")),
        (Ended(Exit(1)), {"ExitCode": 127, "Error": "no sh"}, Ended(Exit(127), "the container could not run: no sh")),
        (Ended(Exit(1)), None, Ended(Exit(1), "the Docker daemon does not answer")),
        (Ended(Exit(137, 9)), {"Running": True}, Ended(Exit(137, 9), CLIENT_ENDED)),
        (Ended(reason="the machine was restarted", lost=True), {"ExitCode": 255},
         Ended(Exit(255), "the machine was restarted", lost=True)),
    ],
)  # fmt: skip
def test_a_replica_ends_as_its_container_did(client: Ended, state: dict[str, Any] | None, end: Ended) -> None:
    missing = "Unable to find image 'other:1' locally"
    log = [missing, "docker: Error response from daemon: no such image", "", "Run 'docker run --help'"]
    assert end_of(client, state, log) == end


def test_a_container_over_its_memory_limit_says_so() -> None:
    assert "memory limit" in end_of(Ended(), {"OOMKilled": True, "ExitCode": 137}, []).reason


@pytest.mark.parametrize(
    ("container", "daemon_host", "problem"),
    [
        (replace(OWN, options={"docker_host": "unix:///b"}), "unix:///a", "docker_host = unix:///b, but the control"),
        (OWN, "ssh://elsewhere", "DOCKER_HOST = ssh://elsewhere: its containers cannot be reached"),
        (replace(VLLM, options={"network": "host"}), "", "listens on port 8000 of the machine itself"),
        (replace(VLLM, secret_env=(("DOCKER_AUTH_CONFIG", "iris", "k"),)), "", "env DOCKER_AUTH_CONFIG: docker reads"),
        (
            replace(VLLM, fetches=(Fetch("s3://b/m", "/m", {}, (("HOME", "iris", "k"),)),)),
            "",
            "env HOME: docker reads",
        ),
    ],
)
def test_what_containers_cannot_do_here_is_refused(container: ContainerSpec, daemon_host: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        check(container, daemon_host)


def test_what_fits_is_not_refused() -> None:
    check(replace(OWN, options={"docker_host": "unix:///a", "network": "host"}), "unix:///a")
    check(replace(VLLM, options={"network": "host"}, host_port=8000), "")


def test_models_sockets_and_cache_of_the_home_are_mounted() -> None:
    models = [str(HOME.models / "ab/content/model.onnx"), "/data/model"]
    arguments = client_command(launch(), DAEMON, HOME, models=models)[0]
    assert [word for word in arguments if word.startswith("--mount")] == [
        "--mount=type=bind,source=/data/model,target=/data/model,readonly",
        f"--mount=type=bind,source={HOME.models}/ab/content,target={HOME.models}/ab/content,readonly",
        f"--mount=type=bind,source={HOME.cache},target={HOME.cache}",
        f"--mount=type=bind,source={HOME.sockets}/iris-predictor-1-bcdfg,target=/run/pilotlight",
    ]


def test_models_of_an_image_that_cannot_fetch_are_fetched_first_and_mounted() -> None:
    fetch = Fetch("s3://b/m", "/mnt/models", {"AWS_SECRET_ACCESS_KEY": "x"}, (("TOKEN", "iris", "token"),))
    started = replace(launch(VLLM, fetches=(fetch,)), secrets={"token": "y"})
    words, env = client_command(started, DAEMON, HOME, python="/usr/bin/python3")
    assert words[:2] == ["/bin/sh", "-c"]
    assert words[3:6] == ["/usr/bin/python3", str(HOME.cache), "s3://b/m"]
    assert words[6].startswith(str(HOME.cache / "fetched"))
    assert words[7:10] == ["--", "docker", "run"]
    assert f"--mount=type=bind,source={words[6]},target=/mnt/models,readonly" in words
    assert env == {"HF_TOKEN": "x", "AWS_SECRET_ACCESS_KEY": "x", "TOKEN": "y", contract.ENV_MODEL_PINS: ""}
    assert "--env=AWS_SECRET_ACCESS_KEY" not in words
    script = [*words[:3], "/bin/echo", *words[4:8], "echo", "served"]
    assert subprocess.run(script, capture_output=True, text=True).stdout == "served\n", "the log is the server's"


def test_the_fetched_model_of_a_microservice_is_of_its_replica_alone() -> None:
    """Processes of the platform remove this folder with the replica."""

    def folder(replica: str, namespace: str = "", endpoint: str = "", host_port: int = 0) -> Path:
        container = replace(
            VLLM, host_port=host_port, fetches=(Fetch("s3://b/m", "/m", {"AWS_ENDPOINT_URL": endpoint}),)
        )
        started = Launch(replica, replace(revision(), namespace=namespace, container=container))
        return Path(client_command(started, DAEMON, HOME)[0][6])

    assert folder("a", "evil", host_port=8080).parent == HOME.copies / "a"
    assert folder("b", "acme", host_port=8080).parent == HOME.copies / "b"
    services = {folder("a", "evil"), folder("b", "acme"), folder("c", "acme", "https://other")}
    assert len(services) == 3
    assert folder("d", "acme") in services, "replicas of one namespace share it"


@pytest.mark.parametrize(
    ("policy", "words_of_docker"),
    [("Always", ["--pull=always"]), ("IfNotPresent", ["--pull=missing"]), ("Never", ["--pull=never"]), ("", [])],
)
def test_the_pull_policy_of_the_pod_is_dockers(policy: str, words_of_docker: list[str]) -> None:
    assert [word for word in words(VLLM, pull_policy=policy) if word.startswith("--pull")] == words_of_docker

"""The command inside the container: its shape per network, quoted so that nothing of a job reaches the shell."""

import json
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotlight.errors import UsageError
from pilotlight.microservices.jobs import launcher
from pilotlight.microservices.registry import container_command
from pilotlight.microservices.registry.container_command import COMMANDS, CommandInputs, build
from pilotlight.microservices.registry.records import PLATFORMS

ENV = {"TAO_API_JOB_ID": "1", "CLOUD_BASED": "False", "NOTE": "it's"}


def inner(path: str = "/models/a b", arch: str = "cosmos-rl") -> CommandInputs:
    return CommandInputs("job-1", arch, container_command.parse(path), ENV, 2)


@pytest.mark.parametrize("row", COMMANDS)
def test_every_command_begins_with_the_umask(row: str) -> None:
    assert build(row, inner()).startswith("umask 0 && ")


def test_cosmos_rl_gets_job_and_environment_as_json() -> None:
    words = shlex.split(build("cosmos-rl", inner()).removeprefix("umask 0 && "))
    assert words[0] == "cosmos-rl-inference-microservice"
    assert words[1::2] == ["--job", "--docker_env_vars"]
    job, env = map(json.loads, words[2::2])
    assert (job["job_id"], job["neural_network_name"]) == ("job-1", "cosmos-rl")
    assert job["specs"]["model_path"] == "/models/a b"
    assert env == ENV


@pytest.mark.parametrize(
    ("path", "words"),
    [("/a/b c.pt", ["--checkpoint-path", "/a/b c.pt"]), ("hf_model://nvidia/x", ["--model", "nvidia/x"])],
)
def test_cosmos_predict_gets_flags(path: str, words: list[str]) -> None:
    said = shlex.split(build("cosmos-predict2.5", inner(path)).removeprefix("umask 0 && "))
    assert said == ["cosmos_predict", "inference_microservice", "start", *words, "--port", "8080"]


def test_ours_is_a_microservice_without_ports_of_the_shared_range() -> None:
    said = shlex.split(build("pilotlight", inner()))
    assert "--microservice" in said
    assert said[said.index("--grpc-port") + 1] == said[said.index("--metrics-port") + 1] == "-1"
    assert "--admin-loopback=false" in said, "other users of the machine reach it on loopback"
    assert "--http-port" not in said
    assert said[said.index("--model-path") + 1] == "/models/a b"


def test_a_network_without_a_command_is_refused() -> None:
    with pytest.raises(UsageError, match="stranger has no container command"):
        launcher.build_job(launcher.StartRequest("stranger", "/m", "docker"), {})


def test_the_text_is_the_same_on_every_platform() -> None:
    for arch in ("pilotlight", "cosmos-predict2.5"):
        environ = {"IMAGE_COSMOS_PREDICT25": "registry.example/predict:1"}
        wishes = [launcher.StartRequest(arch, "/m", name) for name in PLATFORMS]
        assert len({launcher.build_job(wish, environ, "1").command for wish in wishes}) == 1


@given(st.text(st.characters(min_codepoint=32, exclude_characters="\x7f", exclude_categories=["Cs"]), min_size=1))
def test_no_path_is_more_than_one_word_to_a_shell(text: str) -> None:
    for row in COMMANDS:
        words = shlex.split(build(row, inner(f"/{text}")), posix=True)
        assert any(f"/{text}" in word or json.dumps(f"/{text}")[1:-1] in word for word in words)


def test_a_real_shell_runs_nothing_of_a_path() -> None:
    path = "/x'; echo broken; '$(echo broken)`echo broken`"
    said = build("cosmos-predict2.5", inner(path)).replace("cosmos_predict", "printf %s,")
    done = subprocess.run(["sh", "-c", said], capture_output=True, text=True, check=True)
    assert path in done.stdout
    assert done.stdout.count("broken") == 3


def test_every_network_of_the_package_has_a_command() -> None:
    assert all(container_command.arch(name, {}).command in COMMANDS for name in container_command.names({}))

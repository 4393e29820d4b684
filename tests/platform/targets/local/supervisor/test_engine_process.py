"""An engine of another image as a process: its command line, variables and address."""

import asyncio
from pathlib import Path

import pytest
from tests.engines.installed import install
from tests.platform.targets.local.supervisor.supervisor_harness import Stage, launch

from pilotlight.errors import PlatformError
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.manifests.service_spec_types import Fetch, Probe
from pilotlight.targets.local.supervisor import engine_process
from pilotlight.targets.local.supervisor.process_launcher import ProcessLauncher
from pilotlight.targets.local.supervisor.replica_record import Replica

HOME = Home(Path("/state"))
ARGS = ("--model=/data/m", "--port=8080", "--host", "0.0.0.0", "--seed=1")
SERVER = ("python", "-m", "vllm.entrypoints.openai.api_server")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    programs = install(tmp_path / "environment", "vllm", "llama_cpp_python")
    return {"PILOTLIGHT_ENGINE_PATH": programs, "PATH": "/usr/bin", "AWS_SECRET_ACCESS_KEY": "x", "HOME": "/home/me"}


def test_arguments_stay_but_for_the_address_and_the_pod_has_its_own_tmp(environ: dict[str, str]) -> None:
    env = {"HF_HOME": "/tmp", "PLAIN": "/tmp/x"}
    made = engine_process.prepare(launch(image="any", command=SERVER, args=ARGS, env=env), [3], HOME, "python", environ)
    folder, port = "/state/run/replicas/iris-predictor-1f3a9c07-x7k2q", made.address.ports[8080]
    programs = environ["PILOTLIGHT_ENGINE_PATH"]
    kept = [f"{programs}/python", *SERVER[1:], "--model=/data/m", "--seed=1"]
    assert made.argv == [*kept, "--host", "127.0.0.1", "--port", str(port)]
    assert made.address.host == "127.0.0.1"
    assert (made.env["CUDA_VISIBLE_DEVICES"], made.env["HF_HOME"], made.env["PLAIN"]) == ("3", folder, "/tmp/x")
    assert (made.env["TMPDIR"], made.env["PATH"]) == (folder, f"{programs}:/usr/bin")
    assert "AWS_SECRET_ACCESS_KEY" not in made.env
    none = engine_process.prepare(launch(image="any", command=SERVER, args=ARGS), [], HOME, "python", environ)
    assert none.env["CUDA_VISIBLE_DEVICES"] == ""


def test_a_model_of_a_store_is_fetched_before_the_start(environ: dict[str, str]) -> None:
    order = launch(
        image="vllm/vllm-openai", args=("/mnt/models",), env={"MODEL_PATH": "/mnt/models"},
        fetches=(Fetch("s3://b/m", "/mnt/models", {"AWS_REGION": "x"}),),
    )  # fmt: skip
    made = engine_process.prepare(order, [], HOME, "/the/python", environ)
    assert made.argv[:2] == ["/bin/sh", "-c"]
    python, cache, uri, folder, dashes, program, verb, model, *_ = made.argv[3:]
    assert (python, cache, uri, dashes) == ("/the/python", str(HOME.cache), "s3://b/m", "--")
    assert (program, verb) == (f"{environ['PILOTLIGHT_ENGINE_PATH']}/vllm", "serve")
    assert model == folder == made.env["MODEL_PATH"]
    assert folder.startswith(f"{HOME.cache}/fetched/")
    assert made.env["AWS_REGION"] == "x"


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        ("example/server", "only the Pilotlight predictor and engines run without containers"),
        ("ggml-org/llama.cpp", "llama.cpp is not installed on this machine; pip install"),
    ],
)
def test_what_cannot_be_started_is_named_at_the_deploy(
    image: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(PlatformError, match=problem):
        ProcessLauncher(HOME, "").check(launch(image=image).revision)


def test_probes_ask_the_program_that_stands_for_another(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOTLIGHT_ENGINE_PATH", environ["PILOTLIGHT_ENGINE_PATH"])
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    args = ("--model", str(tmp_path / "m.gguf"), "--metrics")
    order = launch(image="ggml-org/llama.cpp:server", args=args, readiness=Probe("/health", 8080), env={})

    async def play() -> Replica:
        async with Stage(tmp_path) as stage:
            stage.supervisor.launch(order)
            return await stage.until("ready")

    ready = asyncio.run(play())
    assert ready.checks.readiness == Probe("/v1/models", ready.port)
    assert (ready.host, ready.handle) == ("127.0.0.1", str(ready.port))

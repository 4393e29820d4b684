"""Scripts of the run-inference-service workflow: what they write we read, what we write they read, and both at once."""

import json
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.platform.microservices.jobs.conftest import Ctl, write_model
from tests.serving import RunningServer

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "top_p": 1.0, "temperature": 1.0}


def chosen(state: dict[str, Any], arch: str) -> list[str]:
    """As those scripts look for a service of an arch."""
    return [j for j, e in state.items() if j != "latest" and isinstance(e, dict) and e["network_arch"] == arch]


def asked(entry: dict[str, Any]) -> Any:
    url = f"{entry['host_url']}/v1/chat/completions"
    request = urllib.request.Request(url, json.dumps(CHAT).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]


def test_a_script_finds_and_asks_what_we_started(ctl: Ctl, model: Path) -> None:
    ctl.start(model, "--ready")
    state = ctl.registry
    (job_id,) = chosen(state, "pilotlight")
    assert state["latest"] == job_id
    assert json.loads(asked(state[job_id]))["asked"] == "hello"
    used = {entry["host_port"] for name, entry in state.items() if name != "latest"}
    assert next(port for port in range(8080, 8200) if port not in used) not in used


def test_we_find_and_ask_what_a_script_started(
    ctl: Ctl, model: Path, serve: Callable[..., RunningServer]
) -> None:  # fmt: skip
    server = serve(None, "--microservice", "--model-path", str(model), "--model-name", "model")
    theirs = {
        "platform": "local-docker", "network_arch": "qwen-of-theirs", "host_url": server.url, "host_port": server.port,
        "started_at": "2026-01-01T00:00:00+00:00", "platform_job_id": None,
    }  # fmt: skip
    path = Path(ctl.environ["PILOTLIGHT_MICROSERVICE_REGISTRY"])
    path.touch(0o600)
    path.write_text(json.dumps({"their-job": theirs, "latest": "their-job"}))
    said = ctl.do("infer", "--arch", "qwen-of-theirs", "--prompt", "hi", "--accept-defaults")
    assert json.loads(said)["asked"] == "hi"
    ours = ctl.start(model)
    assert ctl.registry["their-job"] == theirs
    ctl.do("stop", ours["job_id"])
    assert ctl.registry == {"their-job": theirs, "latest": "their-job"}
    ctl.do("stop", "their-job", "--forget")


def test_several_that_start_at_once_all_run_at_addresses_of_their_own(ctl: Ctl, model: Path) -> None:
    words = ctl.words("start", "pilotlight", "--model-path", str(model), "-o", "json")
    running = [subprocess.Popen(words, env=ctl.environ, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    told = [json.loads(each.communicate(timeout=500)[0]) for each in running]
    assert [each.returncode for each in running] == [0] * 4
    assert len({each["host_port"] for each in told}) == 4
    assert {each["job_id"] for each in told} == ctl.registry.keys() - {"latest"}
    assert ctl.registry["latest"] in {each["job_id"] for each in told}
    for each in told:
        assert "hello" in ctl.do("infer", each["job_id"], "--prompt", "hello", "--accept-defaults")


COSMOS = """#!/bin/sh
exec python3 -c 'import json, os, sys; print(json.dumps([sys.argv[1:], os.environ.get("HF_TOKEN", "")]))' "$@"
"""


def test_the_command_of_cosmos_rl_arrives_in_its_program_as_two_documents(tmp_path: Path) -> None:
    """Run by a real shell; the program stands in for the container's, and repeats what it was given."""
    from pilotlight.microservices.jobs import launcher

    program = tmp_path / "cosmos-rl-inference-microservice"
    program.write_text(COSMOS)
    program.chmod(0o755)
    wish = launcher.StartRequest("cosmos-rl", "/models/it's $HOME `x`", "docker", env={"NOTE": "a 'b' \"c\""})
    job = launcher.build_job(wish, {"HF_TOKEN": "hf_0123456789"})
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HF_TOKEN": "hf_0123456789"}
    done = subprocess.run(["sh", "-c", job.command], env=environ, capture_output=True, text=True, check=True)
    (flag, document, other, variables), token = json.loads(done.stdout)
    assert (flag, other, token) == ("--job", "--docker_env_vars", "hf_0123456789")
    assert json.loads(document)["specs"]["model_path"] == "/models/it's $HOME `x`"
    assert json.loads(variables) == job.env
    assert "hf_0123456789" not in job.command


def test_a_model_of_another_name_is_asked_without_naming_it(ctl: Ctl, tmp_path: Path) -> None:
    """A whole repository: the microservice has one model that can chat, whatever it is called."""
    write_model(tmp_path / "repository" / "some-name")
    ctl.start(tmp_path / "repository", "--ready")
    assert "hello" in ctl.do("infer", "--prompt", "hello", "--accept-defaults")

"""The verbs on this machine with a real predictor: start, infer, status, list, logs, stop, and what each refuses."""

import json
import subprocess
import time
from pathlib import Path

import pytest
from tests import fake_docker as docker_stand_in
from tests.doc_pages import page_section
from tests.onnx_models import write_model as write_onnx
from tests.platform.microservices.api.test_batches import NODES
from tests.platform.microservices.batch.conftest import DECLARED, picture
from tests.platform.microservices.jobs.conftest import Ctl, write_model

IRIS = Path(__file__).parents[4] / "examples" / "iris" / "model.onnx"
ENDS = "platformctl delete ims-a --target docker ends it"
FORGOTTEN = f"took a off the registry; if it still runs, {ENDS}\n"
SAMPLING = ("--max-tokens", "7", "--top-p", "0.5", "--temperature", "1.25", "--seed", "3")


def test_a_whole_life(ctl: Ctl, model: Path) -> None:
    started = ctl.apart("start", "pilotlight", "--model-path", str(model))
    assert started.returncode == 0, started.stderr
    (job_id,) = [name for name in ctl.registry if name != "latest"]
    url = ctl.registry[job_id]["host_url"]
    assert started.stdout.splitlines() == [
        "Inference service started.", f"  Job ID : {job_id}", "  Arch   : pilotlight",
        f"  URL    : {url}/v1/chat/completions",
    ]  # fmt: skip
    asked = ctl.run("infer", "--prompt", "hello", *SAMPLING)
    assert asked.returncode == 0, asked.stderr
    said = json.loads(asked.stdout)
    assert said["asked"] == "hello"
    assert said["sampling"]["temperature"] == 1.25
    assert (said["sampling"]["max_tokens"], said["sampling"]["top_p"], said["sampling"]["seed"]) == (7, 0.5, 3)
    assert asked.stderr.startswith(f"Sending to job_id={job_id} arch=pilotlight url={url}/v1/chat/completions\n")
    status = json.loads(ctl.do("status", "-o", "json"))
    assert (status["state"], status["model"], status["pod_status"]) == ("running", "ready", "Running")
    assert "model.loaded" in ctl.do("logs")
    header, row = ctl.do("list").splitlines()
    assert row.startswith(f"{job_id} *")
    assert row[header.index("MODEL") :].startswith("ready ")
    assert ctl.do("stop", job_id) == f"stopped {job_id}\n"
    assert ctl.registry == {}


def test_it_starts_the_platform_ends_with_it_and_comes_back_with_it(alone: Ctl, model: Path) -> None:
    started = alone.start(model, "--ready")
    assert alone.platformctl("down").returncode == 0
    status = json.loads(alone.do("status", "-o", "json"))
    assert (status["state"], status["reason"]) == ("stopped", "the platform is down; start it with platformctl up")
    assert alone.platformctl("up").returncode == 0
    assert "hello" in alone.do("infer", "--prompt", "hello", "--accept-defaults")
    assert f"ims-{started['job_id']}" in alone.platformctl("list").stdout
    alone.do("stop", "--yes")
    assert f"ims-{started['job_id']}" not in alone.platformctl("list").stdout


def test_a_log_is_followed_until_its_microservice_ends(ctl: Ctl, model: Path) -> None:
    job_id = ctl.start(model, "--ready")["job_id"]
    with subprocess.Popen(
        ctl.words("logs", job_id, "-f"), env=ctl.environ, cwd=ctl.folder, stdout=subprocess.PIPE, text=True
    ) as following:
        assert following.stdout is not None
        assert following.stdout.readline(), "it has begun"
        ctl.do("stop", job_id)
        rest = following.stdout.read()
        assert (following.wait(60), "model.loaded" in rest) == (0, True), rest


def test_several_run_at_once_and_none_is_guessed(ctl: Ctl, model: Path) -> None:
    first, second = ctl.start(model), ctl.start(model)
    assert first["host_port"] != second["host_port"]
    listed = json.loads(ctl.do("list", "-o", "json"))
    assert [(row["job_id"], row["latest"]) for row in listed] == [(first["job_id"], False), (second["job_id"], True)]
    for words in (("infer", "--prompt", "x"), ("infer", "--arch", "pilotlight", "--prompt", "x"), ("status",)):
        refused = ctl.run(*words)
        assert refused.returncode == 2
        assert first["job_id"] in refused.stderr
        assert second["job_id"] in refused.stderr
    answer = json.loads(ctl.do("infer", first["job_id"], "--prompt", "x", "--accept-defaults", "-o", "json"))
    assert "x" in answer["choices"][0]["message"]["content"]
    refused = ctl.run("stop")
    assert refused.returncode == 2
    assert second["job_id"] in refused.stderr
    assert ctl.do("stop", "--yes") == f"stopped {second['job_id']}\n"
    assert ctl.registry["latest"] == first["job_id"]


def test_defaults_are_not_taken_silently_off_a_terminal(ctl: Ctl, model: Path) -> None:
    ctl.start(model, "--ready")
    refused = ctl.run("infer", "--prompt", "x", "--max-tokens", "5")
    assert refused.returncode == 2
    for told in ("--temperature (number, default 1.0)", "--top-p (number, default 1.0)", "--accept-defaults"):
        assert told in refused.stderr
    assert "--max-tokens (" not in refused.stderr
    assert "--seed" not in refused.stderr  # its default is the model's own
    assert "Sending to" not in refused.stderr
    taken = ctl.run("infer", "--prompt", "x", "--max-tokens", "5", "--accept-defaults")
    assert "defaults: temperature=1.0, top_p=1.0" in taken.stderr
    assert json.loads(taken.stdout)["sampling"]["max_tokens"] == 5


def test_a_value_out_of_bounds_goes_as_it_is_and_the_server_refuses_it(ctl: Ctl, model: Path) -> None:
    ctl.start(model, "--ready")
    refused = ctl.run("infer", "--prompt", "x", "--temperature", "9", "--accept-defaults")
    assert refused.returncode == 2
    assert "refused with 400" in refused.stderr
    assert "temperature = 9" in refused.stderr
    (found,) = json.loads(ctl.do("status", "-o", "json"))["findings"]
    assert found["name"] == "wrong_parameters"
    assert found["cause"].startswith("the last request was refused: 400: ")
    assert "temperature = 9" in found["cause"]
    ctl.do("infer", "--prompt", "x", "--accept-defaults")
    assert json.loads(ctl.do("status", "-o", "json"))["findings"] == []


def test_infer_waits_while_the_model_loads(ctl: Ctl, tmp_path: Path) -> None:
    slow = f"import pathlib, time\nwhile not pathlib.Path({str(tmp_path / 'go')!r}).exists():\n    time.sleep(0.02)\n"
    says = (write_model(tmp_path / "plain") / "1" / "model.py").read_text()
    ctl.start(write_model(tmp_path / "slow", slow + says))
    end = time.monotonic() + 60
    while "model_loading" not in (told := json.loads(ctl.do("status", "-o", "json"))["model"]):
        assert told.startswith(("initializing", "unreachable"))  # a busy machine may take longer than a look waits
        assert time.monotonic() < end
    impatient = ctl.run("infer", "--prompt", "x", "--accept-defaults", "--wait", "0")
    assert impatient.returncode == 4
    (tmp_path / "go").touch()
    assert "x" in ctl.do("infer", "--prompt", "x", "--accept-defaults")


def test_a_model_that_cannot_load_is_given_up_with_its_reason(ctl: Ctl, tmp_path: Path) -> None:
    bad = write_model(tmp_path / "bad", "raise RuntimeError('no weights here')\n")
    failed = ctl.run("start", "pilotlight", "--model-path", str(bad), "--ready")
    assert failed.returncode == 1
    assert "Job ID : " in failed.stdout  # it runs, and can be looked at
    assert "model_load_error" in failed.stderr
    assert "no weights here" in failed.stderr
    assert ctl.run("infer", "--prompt", "x", "--accept-defaults").returncode == 1
    status = json.loads(ctl.do("status", "-o", "json"))
    assert "no weights here" in status["reason"]
    assert status["model"].startswith("model_load_error: ")
    (listed,) = json.loads(ctl.do("list", "-o", "json"))
    assert (listed["state"], listed["model"]) == ("running", status["model"])


def test_a_file_that_the_model_misses_is_diagnosed_with_what_to_do(ctl: Ctl, tmp_path: Path) -> None:
    bad = write_model(tmp_path / "bad", "open('/nowhere/weights.bin')\n")
    ctl.run("start", "pilotlight", "--model-path", str(bad), "--ready")
    shown = ctl.run("status", "-o", "json")
    (finding,) = json.loads(shown.stdout)["findings"]
    assert "/nowhere/weights.bin" in finding["cause"]
    assert finding["advice"] in shown.stderr


def test_the_hint_of_a_failed_start_names_the_one_that_failed(ctl: Ctl, model: Path, tmp_path: Path) -> None:
    ctl.start(model)
    bad = write_model(tmp_path / "bad", "raise RuntimeError('no weights here')\n")
    failed = ctl.run("start", "pilotlight", "--model-path", str(bad), "--ready")
    job_id = ctl.registry["latest"]
    assert f"see platformctl microservice logs {job_id}" in failed.stderr
    assert "no weights here" in ctl.do("logs", job_id)


def test_a_whole_request_needs_no_flags_and_goes_as_it_is(ctl: Ctl, model: Path, tmp_path: Path) -> None:
    ctl.start(model, "--ready")
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}))
    asked = ctl.run("infer", "--body", str(body))
    assert asked.returncode == 0, asked.stderr
    assert "defaults:" not in asked.stderr
    missing = ctl.run("infer", "--body", str(tmp_path / "none.json"))
    assert (missing.returncode, "none.json cannot be read: No such file" in missing.stderr) == (2, True)
    assert json.loads(asked.stdout)["sampling"]["max_tokens"] == 9


def test_a_model_that_does_not_chat_is_asked_by_tensors(ctl: Ctl, tmp_path: Path) -> None:
    started = ctl.start(IRIS, "--ready")
    assert started["url"] == f"{started['host_url']}/v2/models/model/infer"
    assert json.loads(ctl.do("status", "-o", "json"))["url"] == started["url"]
    refused = ctl.run("infer", "--prompt", "hello", "--accept-defaults")
    assert refused.returncode == 2
    assert "this model does not chat" in refused.stderr
    assert f"platformctl microservice infer {started['job_id']} --body FILE" in refused.stderr
    example = json.loads(refused.stderr[refused.stderr.index('{"inputs"') :])
    example["inputs"][0]["data"] = [5.1, 3.5, 1.4, 0.2]
    body = tmp_path / "body.json"
    body.write_text(json.dumps(example))
    asked = ctl.run("infer", "--body", str(body), "-o", "json")
    assert asked.returncode == 0, asked.stderr
    assert f"url={started['url']}\n" in asked.stderr
    outputs = json.loads(asked.stdout)["outputs"]
    assert ctl.do("infer", "--body", str(body)).startswith(f"{outputs[0]['name']} {outputs[0]['datatype']} ")
    example["inputs"][0]["name"] = "nonsense"
    body.write_text(json.dumps(example))
    wrong = ctl.run("infer", "--body", str(body))
    assert wrong.returncode == 2
    assert "nonsense" in wrong.stderr


def test_a_network_of_pictures_says_what_to_type_instead_of_a_prompt(ctl: Ctl) -> None:
    started = json.loads(ctl.do("start", "classification", "--model-path", str(IRIS), "-o", "json"))
    assert started["url"].endswith("/v2/models/model/infer")
    refused = ctl.run("infer", "--prompt", "what is it?", "--accept-defaults")
    assert refused.returncode == 2
    assert "classification does not chat" in refused.stderr
    assert '--image FILE without a prompt, or --body FILE with V2\'s tensors, {"inputs": ' in refused.stderr
    missing = ctl.run("infer", "--image", "x.png")
    assert (missing.returncode, "x.png: there is no such file" in missing.stderr) == (2, True)


def test_pictures_are_sent_to_a_classifier_and_named_by_its_labels(ctl: Ctl, tmp_path: Path) -> None:
    shapes = {"x": ("FP32", ("n", 3, "h", "w"))}, {"y": ("FP32", ("n", 3))}
    folder = write_onnx(tmp_path / "models", "model", NODES, *shapes)
    (folder / "parameters.yaml").write_text(DECLARED)
    for colour in ("red", "blue"):
        (tmp_path / f"{colour}.png").write_bytes(picture(colour))
    started = json.loads(ctl.do("start", "classification", "--model-path", str(folder), "-o", "json"))
    asked = ctl.run("infer", "--image", "red.png", "--image", str(tmp_path / "blue.png"), "--parameter", "top_k=1")
    assert asked.returncode == 0, asked.stderr
    assert [line.split()[:2] for line in asked.stdout.splitlines()] == [["red.png", "red"], ["blue.png", "blue"]]
    assert f"Sending to job_id={started['job_id']} arch=classification url={started['url']}\n" in asked.stderr
    one = json.loads(ctl.do("infer", "--image", "red.png", "-o", "json"))
    assert (one["response"], len(one["predictions"][0]["classes"])) == ("red", 3)
    wrong = ctl.run("infer", "--image", "red.png", "--parameter", "top_k=no")
    assert (wrong.returncode, 'top_k = "no", must be a whole number' in wrong.stderr) == (2, True)
    ctl.do("stop", "--yes")
    home = Path(ctl.environ["PILOTLIGHT_HOME"])
    assert not [path for path in home.rglob(f"*{started['job_id']}*") if path.is_file()]


def test_what_ends_at_once_is_told_and_taken_back(ctl: Ctl, model: Path) -> None:
    failed = ctl.run("start", "pilotlight", "--model-path", str(model), "--env", "INFERENCE_LOAD_TIMEOUT_S=never")
    assert failed.returncode == 1
    assert "it exited immediately" in failed.stderr
    assert "never" in failed.stderr
    assert ctl.registry == {}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("start",), "network_arch is missing"),
        (("start", "pilotlight"), "model_path is missing"),
        (("start", "pilotlight", "--model-path", "s3://b/m"), "no access to cloud storage"),
        (("start", "pilotlight", "--model-path", "/m", "--num-gpus", "0"), "num_gpus = 0"),
        (("start", "pilotlight", "--model-path", "/nowhere"), "does not exist"),
        (("start", "stranger", "--model-path", "/m"), "stranger has no container command"),
        (("start", "pilotlght", "--model-path", "/m"), "did you mean pilotlight?"),
        (("start", "pilotlight", "--model-path", "/m", "--partition", "a"), "--partition is not an option of local"),
        (("start", "stranger", "--model-path", "/m"), "there are classification, classification_pyt"),
        (("start", "cosmos-rl", "--model-path", "/"), "use --platform docker"),
        (("start", "cosmos-rl", "--model-path", "/", "--partition", "x"), "--partition is not an option"),
        (("start", "pilotlight", "--model-path", "/", "--env", "HF_TOKEN=x"), "HF_TOKEN is a secret"),
        (("start", "pilotlight", "--model-path", "/", "--secret", "HF_TOKEN"), "HF_TOKEN is not set"),
        (("start", "cosmos-rl", "--platform", "slurm", "--model-path", "/m"), "partition"),
        (
            ("start", "cosmos-rl", "--platform", "kubernetes", "--model-path", "/m"),
            "kubernetes needs image_pull_secret",
        ),
        (("infer", "--prompt", "x"), "no microservice is running"),
        (("infer", "--prompt", "x", "--timeout", "10"), "must be at least 300"),
        (("stop",), "no microservice is running"),
        (("status", "1234"), "no microservice has the job id 1234"),
    ],
)
def test_what_is_missing_or_wrong_is_named(ctl: Ctl, words: tuple[str, ...], told: str) -> None:
    refused = ctl.run(*words)
    assert refused.returncode in (2, 3)
    assert told in refused.stderr
    assert refused.stdout == ""
    assert ctl.registry == {}


def test_a_request_of_another_network_is_stopped_before_it_is_sent(ctl: Ctl, tmp_path: Path) -> None:
    """Nothing listens at the address: what is refused was refused here."""
    dead = {"platform": "docker", "network_arch": "cosmos-rl", "host_url": "http://localhost:1", "started_at": "2026"}
    path = Path(ctl.environ["PILOTLIGHT_MICROSERVICE_REGISTRY"])
    path.touch(0o600)
    path.write_text(json.dumps({"a": dead, "latest": "a"}))
    plain = ctl.run("infer", "--prompt", "x", "--accept-defaults")
    assert "must have an image_url or a video_url" in plain.stderr
    foreign = ctl.run("infer", "--prompt", "x", "--image", "https://a/b.jpg", "--guidance", "7", "--accept-defaults")
    assert "guidance is a field of cosmos-predict2.5" in foreign.stderr
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"messages": [{"role": "user", "content": "x"}], "num_steps": 3}))
    whole = ctl.run("infer", "--body", str(body), "--accept-defaults")
    assert "num_steps is a field of" in whole.stderr
    assert plain.returncode == foreign.returncode == whole.returncode == 2
    assert "Sending to" not in plain.stderr + foreign.stderr + whole.stderr
    assert ctl.do("stop", "--yes", "--forget") == FORGOTTEN


def test_a_platform_that_does_not_answer_is_told_and_not_taken_for_an_end(ctl: Ctl, tmp_path: Path) -> None:
    environ = docker_stand_in.installed(tmp_path)
    (tmp_path / "away").touch()
    entry = {"platform": "docker", "network_arch": "cosmos-rl", "host_url": "http://localhost:1", "started_at": "2026"}
    path = Path(ctl.environ["PILOTLIGHT_MICROSERVICE_REGISTRY"])
    path.touch(0o600)
    path.write_text(json.dumps({"a": entry, "latest": "a"}))
    told = json.loads(ctl.do("status", "-o", "json", **environ))
    assert (told["state"], told["pod_status"]) == ("unknown", "Unknown")
    assert [each["name"] for each in told["findings"]] == ["platform_unreachable"]
    assert "docker inspect failed: error during connect" in told["findings"][0]["cause"]
    written = ctl.run("logs", **environ)
    assert (written.returncode, "its platform does not respond" in written.stderr) == (1, True)
    refused = ctl.run("stop", "a", **environ)
    assert (refused.returncode, set(ctl.registry)) == (1, {"a", "latest"})
    assert "platformctl microservice stop a --forget" in refused.stderr
    assert ctl.do("stop", "a", "--forget", **environ) == FORGOTTEN


def test_every_verb_has_help_with_an_example(ctl: Ctl) -> None:
    for verb in ("start", "infer", "status", "list", "stop", "logs"):
        assert "Example: platformctl microservice" in ctl.do(verb, "--help")
    told = ctl.do("start", "--help")
    for flag in (
        "--partition", "--account", "--namespace", "--image-pull-secret", "--instance-id", "--cloud-cred-id",
        "--workspace-group-id", "--resource-shape", "--dedicated-node-group",
    ):  # fmt: skip
        assert flag in told
    sections = {part.partition(":")[0]: part for part in told.split("\nOptions")}
    assert "--partition" in sections[" of slurm"]
    assert "--namespace" not in sections[""] + sections[" of slurm"]
    assert "--model-path" in sections[""]


def test_a_network_of_ones_own_needs_one_file(ctl: Ctl, model: Path, tmp_path: Path) -> None:
    page = page_section("docs/how-to/migrate-tao.md", "Inference microservices")
    (tmp_path / "archs").mkdir()
    (tmp_path / "archs" / "my-network.config.json").write_text(page.partition("```json\n")[2].partition("```")[0])
    environ = {"PILOTLIGHT_ARCHS": str(tmp_path / "archs")}
    started = json.loads(ctl.do("start", "my-network", "--model-path", str(model), "-o", "json", **environ))
    assert started["network_arch"] == "my-network"
    assert "hi" in ctl.do("infer", "--arch", "my-network", "--prompt", "hi", "--accept-defaults", **environ)

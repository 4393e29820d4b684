"""What a version must answer before it serves, and what is known of one that answered nothing yet."""

import json
import logging
from pathlib import Path
from typing import Any, cast

import pytest
from tests.onnx_models import write_add_sub, write_python
from tests.predictor.in_process_server import House, play, replace_file, write_ensemble, write_times

from pilotlight_predictor.errors import BackendFailed, LoadFailed, PredictorError
from pilotlight_predictor.models.warmup import describe_failure
from pilotlight_predictor.protocols.status_and_metrics import status

DECLARED = 'INPUTS = {"x": ("FP32", [-1, 1])}\nOUTPUTS = {"y": ("FP32", [-1, 1])}\n'
# Fails for everything but 7.
ONLY_SEVEN = DECLARED + (
    'def check(x):\n    if x.max() != 7:\n        raise KeyError("no such row")\n\n\n'
    'def predict(x):\n    check(x)\n    return {"y": x}\n'
)
UNDECLARED = "import numpy\n\n\ndef predict(x):\n    return {'y': x * 2}\n"
BAD_REQUEST = DECLARED + (
    "from pilotlight_predictor.errors import BadRequest\n\n\n"
    'def predict(x):\n    if x.max() < 1:\n        raise BadRequest("x must be positive")\n    return {"y": x}\n'
)
TRITON = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        error = pb_utils.TritonError("x must be positive", pb_utils.TritonError.{code})
        return [pb_utils.InferenceResponse(error=error) for _ in requests]
"""
TRITON_CONFIG = (
    'backend: "python" max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ] '
    'output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]'
)
CALLS = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            call = pb_utils.InferenceRequest(
                model_name="other", requested_output_names=["y"], inputs=request.inputs()
            ).exec()
            if call.has_error():
                raise pb_utils.TritonModelException(call.error().message())
            answers.append(pb_utils.InferenceResponse(call.output_tensors()))
        return answers
"""


def v2(value: float, **changes: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [value], **changes}]}


async def started(repository: Path, **model: Any) -> House:
    return await House(repository, model=model).start()


def test_a_model_that_raises_for_zeros_is_not_ready_and_its_last_line_and_place_are_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        write_python(tmp_path, "m", ONLY_SEVEN)
        house = await started(tmp_path)
        readiness = house.server.readiness()
        assert not readiness.ready
        made_up = "model 'm': warm-up failed (zeros that the server made up: x [1, 1]): "
        assert readiness.reason.startswith(f"{made_up}KeyError: 'no such row' (1/model.py:5)")
        assert "example.json beside its file, or give one by --example (serve), or turn" in readiness.reason
        assert "--set spec.predictor.model.warmup=none (deploy) or --warmup none (serve)" in readiness.reason

    play(scene())
    (raised,) = [record.exc_info for record in caplog.records if record.exc_info]
    assert raised[0] is KeyError, "its traceback is in the log, once"


@pytest.mark.parametrize(
    ("source", "config"),
    [(BAD_REQUEST, ""), (TRITON.format(code="INVALID_ARG"), TRITON_CONFIG)],
    ids=["ours", "triton's"],
)
def test_zeros_that_are_a_bad_request_say_nothing_about_the_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, source: str, config: str
) -> None:
    async def scene() -> None:
        write_python(tmp_path, "m", source, config)
        house = await started(tmp_path)
        assert house.server.readiness().ready
        assert not house.registry.find("m").verified
        shown: Any = status(house.server, cast(Any, None))
        assert json.loads(b"".join(shown.body))["warmup_failure"] == "x must be positive"

    with caplog.at_level(logging.WARNING):
        play(scene())
    assert "model 'm' is unverified, its warm-up with zeros failed: x must be positive" in caplog.text


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (12, "its declared inputs do not fit the model: the model rejects the input: "),
        (-1, ""),  # a variable dimension, of which zeros have one: says nothing about the model
    ],
)
def test_declared_inputs_that_contradict_a_torch_module_fail_the_load(
    tmp_path: Path, columns: int, reason: str
) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"0.weight": torch.zeros(2, 11), "0.bias": torch.zeros(2)}, tmp_path / "model.pt")
    (tmp_path / "model.py").write_text(
        f"import torch\nINPUTS = {{'x': ('FP32', [-1, {columns}])}}\nOUTPUTS = {{'y': ('FP32', [-1, 2])}}\n"
        "def build():\n    return torch.nn.Sequential(torch.nn.Linear(11, 2))\n"
    )

    async def scene() -> None:
        readiness = (await House(model={"path": str(tmp_path)}).start()).server.readiness()
        assert (readiness.ready, reason in readiness.reason) == (not reason, True)

    play(scene())


@pytest.mark.parametrize("code", ["INTERNAL", "UNAVAILABLE", "UNSUPPORTED"])
def test_every_other_error_of_triton_fails_the_load(tmp_path: Path, code: str) -> None:
    async def scene() -> None:
        write_python(tmp_path, "m", TRITON.format(code=code), TRITON_CONFIG)
        house = await started(tmp_path)
        assert "(zeros that the server made up: x [1, 1]): x must be positive;" in house.server.readiness().reason

    play(scene())


@pytest.mark.parametrize("where", ["m/1/example.json", "m/example.json"])
@pytest.mark.parametrize("body", [v2(7), {"instances": [[7]]}], ids=["v2", "v1"])
def test_an_example_in_the_models_folder_takes_the_place_of_zeros(
    tmp_path: Path, where: str, body: dict[str, Any]
) -> None:
    async def scene() -> None:
        write_python(tmp_path, "m", ONLY_SEVEN)
        (tmp_path / where).write_text(json.dumps(body))
        house = await started(tmp_path)
        assert house.server.readiness().ready
        assert house.registry.find("m").verified

    play(scene())


def test_an_example_lies_next_to_a_model_file(tmp_path: Path) -> None:
    async def scene() -> None:
        (tmp_path / "model.py").write_text(ONLY_SEVEN)
        (tmp_path / "example.json").write_text(json.dumps(v2(7)))
        house = await House(model={"path": str(tmp_path / "model.py")}).start()
        assert house.registry.find("model").verified

    play(scene())


def test_the_example_of_the_setting_wins(tmp_path: Path) -> None:
    async def scene() -> None:
        write_python(tmp_path, "m", ONLY_SEVEN)
        (tmp_path / "m/example.json").write_text(json.dumps(v2(1)))
        (tmp_path / "seven.json").write_text(json.dumps(v2(7)))
        house = await House(model={"path": str(tmp_path / "m"), "example": str(tmp_path / "seven.json")}).start()
        assert house.server.readiness().ready

    play(scene())


def test_the_example_of_the_setting_may_be_the_request_itself(tmp_path: Path) -> None:
    async def scene() -> None:
        write_python(tmp_path, "m", ONLY_SEVEN)
        house = await House(model={"path": str(tmp_path / "m"), "example": json.dumps(v2(7))}).start()
        assert house.registry.find("m").verified
        house = await House(model={"path": str(tmp_path / "m"), "example": json.dumps(v2(7, name="z"))}).start()
        assert (
            "(model.example or --example) is not a valid request for the model: unexpected"
            in house.server.readiness().reason
        )
        house = await House(model={"path": str(tmp_path / "m"), "example": json.dumps(v2(1))}).start()
        assert "warm-up failed (the example (model.example or --example)): KeyError" in house.server.readiness().reason

    play(scene())


def test_a_bad_request_of_an_example_fails_the_load(tmp_path: Path) -> None:
    async def scene() -> None:
        write_python(tmp_path, "m", BAD_REQUEST)
        (tmp_path / "m/example.json").write_text(json.dumps(v2(0)))
        house = await started(tmp_path)
        assert "warm-up failed (example.json): x must be positive" in house.server.readiness().reason

    play(scene())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "example.json is not a valid request for the model: the body is not valid JSON"),
        ("[]", "the body must be a JSON object"),
        ("{}", "the JSON has neither inputs (V2) nor instances (V1)"),
        (json.dumps(v2(1, datatype="FP23")), "inputs[0].datatype = 'FP23', must be one of"),
        (json.dumps(v2(1, name="z")), "example.json is not a valid request for the model: unexpected"),
        (json.dumps({"instances": [["a"]]}), "instances has 'a', must be a number for FP32"),
    ],
)
def test_a_malformed_example_fails_the_load_in_one_sentence(tmp_path: Path, text: str, reason: str) -> None:
    async def scene() -> None:
        write_times(tmp_path, "m", 2)
        (tmp_path / "m/example.json").write_text(text)
        house = await started(tmp_path)
        assert reason in house.server.readiness().reason
        assert "\n" not in house.server.readiness().reason

    play(scene())


def test_an_example_that_is_not_there_is_named(tmp_path: Path) -> None:
    async def scene() -> None:
        write_times(tmp_path, "m", 2)
        house = await House(model={"path": str(tmp_path / "m"), "example": "nowhere.json"}).start()
        assert "nowhere.json cannot be read: No such file" in house.server.readiness().reason

    play(scene())


def test_one_example_cannot_be_for_several_models(tmp_path: Path) -> None:
    async def scene() -> None:
        for name in ("a", "b"):
            write_times(tmp_path, name, 2)
        with pytest.raises(
            LoadFailed, match=r"applies to one model, but .* has 2: put an example\.json into the folder"
        ):
            await House(model={"path": str(tmp_path), "example": "one.json"}).start()

    play(scene())


def test_without_the_automatic_warm_up_a_model_is_unverified_until_it_answers(tmp_path: Path) -> None:
    async def scene() -> None:
        write_python(tmp_path, "m", ONLY_SEVEN)
        house = await started(tmp_path, warmup="none")
        served = house.registry.find("m")
        assert house.server.readiness().ready
        assert not served.verified
        assert isinstance(await house.ask("m", 1), BackendFailed)
        assert not served.verified
        assert await house.ask("m", 7) == 7
        assert served.verified

    play(scene())


def test_a_transformer_is_not_sent_zeros_since_its_predictor_may_be_starting(tmp_path: Path) -> None:
    async def scene() -> None:
        write_python(tmp_path, "m", ONLY_SEVEN)
        house = await started(tmp_path, predictor_host="127.0.0.1:1")
        assert house.server.readiness().ready
        assert not house.registry.find("m").verified

    play(scene())


def test_a_model_without_declared_inputs_and_an_ensemble_are_unverified_until_they_answer(tmp_path: Path) -> None:
    async def scene() -> None:
        write_python(tmp_path, "bare", UNDECLARED)
        write_times(tmp_path, "part", 2)
        write_ensemble(tmp_path, "ensemble", "part")
        house = await started(tmp_path)
        versions = {name: house.registry.find(name) for name in ("bare", "part", "ensemble")}
        assert {name: served.verified for name, served in versions.items()} == {
            "bare": False, "part": True, "ensemble": False,
        }  # fmt: skip
        assert await house.ask("bare", 2) == 4
        assert await house.ask("ensemble", 2) == 4
        assert all(served.verified for served in versions.values())

    play(scene())


def test_a_model_whose_call_of_another_comes_too_early_is_ready_and_unverified(tmp_path: Path) -> None:
    """Both are loaded at once, so that the order is open: the other one is loaded only when the caller is there."""

    async def scene() -> None:
        write_python(tmp_path, "caller", CALLS, TRITON_CONFIG)
        slow = (
            f"import pathlib, time\nwhile not pathlib.Path({str(tmp_path / 'go')!r}).exists():\n    time.sleep(0.01)\n"
        )
        write_python(tmp_path, "other", slow + DECLARED + "def predict(x):\n    return {'y': x}\n")
        house = House(tmp_path)
        loaded = house.registry.on_version

        def go_on(served: Any) -> None:
            loaded(served)
            (tmp_path / "go").touch()

        house.registry.on_version = go_on
        await house.start()
        assert house.server.readiness().ready
        assert not house.registry.find("caller").verified
        assert await house.ask("caller", 3) == 3
        assert house.registry.find("caller").verified

    play(scene())


def test_a_reload_whose_warm_up_fails_leaves_the_version_that_serves(tmp_path: Path) -> None:
    """As a poll finds a file that was half written: it can be imported, and raises NameError."""

    async def scene() -> None:
        write_times(tmp_path, "m", 2)
        house = await House(tmp_path, mode="poll").start()
        replace_file(tmp_path / "m/1/model.py", DECLARED + "def predict(x):\n    return {'y': x * factor}\n")
        await house.polled()
        assert await house.ask("m", 3) == 6
        reason = house.reasons()["m/1"]
        assert "the last reload failed, the version loaded before keeps serving: warm-up failed" in reason
        assert "NameError: name 'factor' is not defined (1/model.py:4)" in reason
        assert house.server.readiness().ready

    play(scene())


def test_a_new_version_whose_warm_up_fails_does_not_replace_the_earlier_one(tmp_path: Path) -> None:
    async def scene() -> None:
        write_times(tmp_path, "m", 2)
        house = await House(tmp_path, mode="poll").start()
        write_python(tmp_path, "m", ONLY_SEVEN, version=2)
        await house.polled()
        assert await house.ask("m", 3) == 6
        assert house.states() == {"m/1": "READY", "m/2": "UNAVAILABLE"}

    play(scene())


def test_a_load_by_call_whose_warm_up_fails_fails_and_what_served_goes_on(tmp_path: Path) -> None:
    async def scene() -> None:
        write_times(tmp_path, "m", 2)
        house = await House(tmp_path, mode="explicit", model={"load_models": ("m",)}).start()
        replace_file(tmp_path / "m/1/model.py", ONLY_SEVEN)
        with pytest.raises(LoadFailed, match="KeyError: 'no such row'"):
            await house.control.load("m", None, {})
        assert await house.ask("m", 3) == 6

    play(scene())


def test_a_reloaded_version_is_not_verified_by_the_answers_of_the_one_before(tmp_path: Path) -> None:
    async def scene() -> None:
        write_python(tmp_path, "m", UNDECLARED)
        house = await House(tmp_path, mode="poll").start()
        assert await house.ask("m", 2) == 4
        replace_file(tmp_path / "m/1/model.py", UNDECLARED.replace("* 2", "* 3"))
        await house.polled()
        assert not house.registry.find("m").verified

    play(scene())


def test_a_quick_model_without_a_warm_up_is_not_run_on_the_event_loop_at_first(tmp_path: Path) -> None:
    async def scene() -> None:
        write_add_sub(tmp_path, "m")
        zeros = await started(tmp_path)
        none = await started(tmp_path, warmup="none")
        assert zeros.registry.find("m").executor.inline_call() is not None
        assert none.registry.find("m").executor.inline_call() is None

    play(scene())


def test_the_place_is_the_innermost_frame_of_the_models_own_code(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("import json\n\n\ndef predict():\n    inner()\n\n\ndef inner():\n    json.loads('{')\n")
    module: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), module)
    failed = BackendFailed("opaque")
    try:
        module["predict"]()
    except ValueError as error:
        failed.__cause__ = error
    assert describe_failure(failed, tmp_path).endswith("(model.py:9)")
    assert describe_failure(failed, tmp_path).startswith("JSONDecodeError: Expecting property name")
    assert describe_failure(PredictorError("a sentence"), tmp_path) == "a sentence"
    assert describe_failure(ValueError(), tmp_path) == "ValueError"

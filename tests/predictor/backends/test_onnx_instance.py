"""ONNX files by onnxruntime: on the device asked for, or aloud on the CPU."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.onnx_models import write_identity

from pilotlight_predictor.backends import onnxruntime as backends_onnxruntime
from pilotlight_predictor.backends.base import Device
from pilotlight_predictor.errors import BadRequest, LoadFailed


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_identity(tmp_path, "m", "FP32") / "1/model.onnx"


def test_without_a_gpu_it_runs_on_the_cpu_and_says_so(
    model: Path, spec: Any, ask: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with caplog.at_level(logging.WARNING, logger="pilotlight"):
        instance = backends_onnxruntime.load(spec(model, device=Device("cuda", 0)))
    (answer,) = instance.execute([ask(x=np.array([1.5], "f4"))])
    assert answer["y"].array.tolist() == [1.5]
    assert instance._session.get_providers() == ["CPUExecutionProvider"]
    (record,) = caplog.records
    assert record.getMessage().startswith("model 'm' requests cuda:0 but runs on the CPU: this onnxruntime has no CUDA")


def test_on_the_cpu_nothing_is_said(model: Path, spec: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="pilotlight"):
        backends_onnxruntime.load(spec(model))
    assert caplog.records == []


def test_a_precision_that_has_no_effect_is_warned_about(
    model: Path, spec: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="pilotlight"):
        backends_onnxruntime.load(spec(model, precision="fp16"))
    (record,) = caplog.records
    assert record.getMessage() == "precision = fp16 has no effect on the ONNX model 'm': export it so"


def test_the_device_and_its_number_are_asked_of_onnxruntime(
    model: Path, spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime

    asked: list[Any] = []

    class Session(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, path: str, options: Any, providers: Any) -> None:
            asked.append((providers, options.intra_op_num_threads))
            super().__init__(path, options, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(
        onnxruntime, "get_available_providers", lambda: [backends_onnxruntime.CUDA, "CPUExecutionProvider"]
    )
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None, raising=False)
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    backends_onnxruntime.load(spec(model, device=Device("cuda", 2), threads=3))
    assert asked == [([(backends_onnxruntime.CUDA, {"device_id": 2}), "CPUExecutionProvider"], 3)]


def test_a_newer_ir_version_is_told_in_one_line_with_the_version_to_set(model: Path, spec: Any) -> None:
    import onnx

    newer = onnx.load(model)
    newer.ir_version = 99
    onnx.save(newer, model)
    with pytest.raises(LoadFailed) as failed:
        backends_onnxruntime.load(spec(model))
    message = str(failed.value)
    assert "Unsupported model IR version: 99, max supported IR version: " in message
    assert "; set model.ir_version = " in message
    assert "onnx.helper.make_model(..., ir_version=" in message
    assert not any(internal in message for internal in ("\n", ".cc:", "onnxruntime::"))


def test_weights_that_are_missing_beside_the_file_are_named(model: Path, spec: Any) -> None:
    import onnx
    from onnx import helper, numpy_helper

    added = onnx.load(model)
    added.graph.initializer.append(numpy_helper.from_array(np.ones(300, "f4"), "w"))
    added.graph.node[0].CopyFrom(helper.make_node("Add", ["x", "w"], ["y"]))
    onnx.save(added, model, save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    backends_onnxruntime.load(spec(model))
    (model.parent / "model.onnx.data").unlink()
    with pytest.raises(LoadFailed, match=r": its weights are in model\.onnx\.data, which is missing beside it; keep"):
        backends_onnxruntime.load(spec(model))


def test_a_category_that_the_encoder_does_not_know_is_the_clients_mistake(tmp_path: Path, spec: Any, ask: Any) -> None:
    from onnx import TensorProto, helper, save

    node = helper.make_node(
        "OneHotEncoder", ["plan"], ["y"], domain="ai.onnx.ml", cats_strings=["free", "pro"], zeros=0
    )
    plan = helper.make_tensor_value_info("plan", TensorProto.STRING, ["n", 1])
    graph = helper.make_graph([node], "g", [plan], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    save(helper.make_model(graph, opset_imports=versions, ir_version=10), tmp_path / "model.onnx")
    instance = backends_onnxruntime.load(spec(tmp_path / "model.onnx"))
    (known,) = instance.execute([ask(plan=np.array([[b"pro"]], object))])
    assert known["y"].array.ravel().tolist() == [0, 1]
    with pytest.raises(BadRequest, match=r"the model rejects the input: .*Unknown Category"):
        instance.execute([ask(plan=np.array([[b""]], object))])


def test_a_file_that_is_no_onnx_is_told(tmp_path: Path, spec: Any) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no onnx")
    with pytest.raises(LoadFailed, match=r"model\.onnx is not an ONNX model that onnxruntime can load"):
        backends_onnxruntime.load(spec(tmp_path / "model.onnx"))

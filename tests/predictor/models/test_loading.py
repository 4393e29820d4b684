"""How one version is loaded: devices, files, batching by default, warm-up, and what a failure leaves behind."""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.eventually import eventually_async
from tests.onnx_models import Dims, write_add_sub, write_model, write_python
from tests.predictor.in_process_server import House, play, write_times

from pilotlight_predictor.backends.base import Answer, Device, TensorInstance
from pilotlight_predictor.backends.device_placement import gpu_count, instance_devices
from pilotlight_predictor.backends.onnxruntime import OnnxInstance
from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.models import loader
from pilotlight_predictor.models import warmup as warmup_module
from pilotlight_predictor.repository.model_config import InstanceGroup

# Writes a line for each thing that is done to it; samples above 5 are refused.
NOTING = """
INPUTS = {{"x": ("FP32", [-1, 1])}}
OUTPUTS = {{"y": ("FP32", [-1, 1])}}


def note(line):
    with open({notes!r}, "a") as notes:
        notes.write(line + "\\n")


class Model:
    def initialize(self, args):
        note("initialize")

    def execute(self, inputs):
        x = inputs["x"]
        note(f"execute {{x.shape}} {{x.max():g}}")
        if x.max() > 5 or x.shape[0] > 3:
            raise ValueError("too much")
        return {{"y": x}}

    def finalize(self):
        note("finalize")
"""
WARMUP = """
backend: "python"
max_batch_size: 8
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 1 ] }} ]
instance_group [ {{ count: {instances} kind: KIND_CPU }} ]
model_warmup [ {{ name: "sample" batch_size: {rows} count: {count}
  inputs {{ key: "x" value: {{ data_type: TYPE_FP32 dims: [ 1 ] {source} }} }} }} ]
"""


async def started(house: House) -> None:
    await house.start()


def noting(repository: Path, config: str = "") -> Path:
    notes = repository.parent / "notes"
    write_python(repository, "m", NOTING.format(notes=str(notes)), config)
    return notes


def warmup(rows: int = 1, count: int = 1, instances: int = 1, source: str = "zero_data: true") -> str:
    return WARMUP.format(rows=rows, count=count, instances=instances, source=source)


def test_the_configured_warm_up_runs_on_every_instance_before_it_serves(tmp_path: Path) -> None:
    async def scene() -> None:
        notes = noting(tmp_path / "models", warmup(rows=2, count=3, instances=2))
        house = await House(tmp_path / "models").start()
        assert house.server.readiness().ready
        assert notes.read_text().split("\n")[:-1] == ["initialize"] * 2 + ["execute (2, 1) 0"] * 6

    play(scene())


@pytest.mark.parametrize("config", ["", 'backend: "python"', 'backend: "torch" default_model_filename: "model.py"'])
def test_without_model_code_only_models_of_data_are_loaded(tmp_path: Path, config: str) -> None:
    async def scene() -> None:
        notes = noting(tmp_path / "models", config)
        write_add_sub(tmp_path / "models", "data")
        house = await House(tmp_path / "models", model={"code": False}).start()
        assert house.states() == {"data/1": "READY", "m/1": "UNAVAILABLE"}
        assert "which can run code, and --model-code is false" in house.reasons()["m/1"]
        assert not notes.exists()

    play(scene())


def test_a_sample_comes_from_a_file_beside_the_model(tmp_path: Path) -> None:
    async def scene() -> None:
        notes = noting(tmp_path / "models", warmup(source='input_data_file: "sample"'))
        (tmp_path / "models/m/warmup").mkdir()
        (tmp_path / "models/m/warmup/sample").write_bytes(b"\x00\x00\x40\x40")
        house = await House(tmp_path / "models").start()
        assert house.server.readiness().ready
        assert "execute (1, 1) 3" in notes.read_text()

    play(scene())


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (warmup(rows=4), "warm-up failed (model_warmup)"),
        (warmup(source='input_data_file: "nowhere"'), "cannot read nowhere for input 'x'"),
    ],
)
def test_a_configured_warm_up_that_fails_fails_the_load_and_frees_the_instances(
    tmp_path: Path, config: str, reason: str
) -> None:
    async def scene() -> None:
        notes = noting(tmp_path / "models", config)
        house = await House(tmp_path / "models").start()
        assert reason in house.server.readiness().reason
        assert notes.read_text().count("initialize") == notes.read_text().count("finalize") == 1

    play(scene())


def test_a_model_that_refuses_zeros_is_asked_once_and_onnxruntime_prints_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros of 1 × 3 and 1 × 4 cannot be multiplied."""
    inputs: dict[str, tuple[str, Dims]] = {"a": ("FP32", ("n", 3)), "b": ("FP32", ("m", 4))}
    write_model(tmp_path, "m", [("MatMul", ["a", "b"], ["y"])], inputs, {"y": ("FP32", ("k", 4))}, "max_batch_size: 0")
    asked: list[Any] = []
    real = OnnxInstance.run

    def run(self: OnnxInstance, inputs: Any) -> Any:
        asked.append(inputs)
        return real(self, inputs)

    monkeypatch.setattr(OnnxInstance, "run", run)
    with caplog.at_level(logging.WARNING):
        play(started(House(tmp_path)))
    assert "its warm-up with zeros failed: the model rejects the input" in caplog.text
    assert len(asked) == 1
    assert "onnxruntime" not in capfd.readouterr().err


@pytest.mark.parametrize("answer", [{}, ValueError("no zeros, please")], ids=["outputs", "a failure in its place"])
def test_only_a_trial_that_was_answered_counts_as_quick(answer: Answer) -> None:
    """A failure is quicker than any answer: a model judged by it would hold up the event loop."""

    class Fixed(TensorInstance):
        def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
            return [answer] * len(batch)

    assert (warmup_module.measure(Fixed(), InferRequest("m", {})) > 0) == (answer == {})


def test_a_load_that_hangs_fails_with_the_setting_to_change_and_is_freed_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        notes, hangs = noting(tmp_path / "models"), threading.Event()
        real = loader.read_labels

        def slow(*args: Any) -> Any:
            assert hangs.wait(60)
            return real(*args)

        monkeypatch.setattr(loader, "read_labels", slow)
        house = await House(tmp_path / "models", model={"load_timeout_s": 0.05}).start()
        assert house.server.readiness().reason == "model 'm': loading took longer than 0.05 s (--load-timeout)"
        hangs.set()
        await eventually_async(
            lambda: notes.exists() and "finalize" in notes.read_text()
        )  # the load may just have begun

    play(scene())


def test_batching_settings_hold_for_models_that_bring_no_configuration(tmp_path: Path) -> None:
    async def scene() -> None:
        write_add_sub(tmp_path, "bare")
        write_add_sub(tmp_path, "own", config="max_batch_size: 4")
        house = await House(tmp_path, performance={"max_batch_size": 16, "batch_timeout_ms": 2.5}).start()
        bare, own = house.registry.find("bare").config, house.registry.find("own").config
        assert (bare.max_batch_size, own.max_batch_size) == (16, 4)
        assert bare.dynamic_batching is not None
        assert bare.dynamic_batching.max_queue_delay_us == 2500
        none = await House(tmp_path, performance={"max_batch_size": 0}).start()
        assert none.registry.find("bare").config.max_batch_size == 0

    play(scene())


def test_the_instances_of_bare_models_are_counted_by_the_setting(tmp_path: Path) -> None:
    async def scene() -> None:
        notes = noting(tmp_path / "models")
        await House(tmp_path / "models", performance={"instance_count": 3}).start()
        assert notes.read_text().count("initialize") == 3

    play(scene())


CPU = Device()


@pytest.mark.parametrize(
    ("groups", "wish", "gpus", "expected"),
    [
        ([], "auto", 0, [CPU]),
        ([], "auto", 2, [Device("cuda", 0), Device("cuda", 1)]),  # one per GPU, as Triton
        ([], "cuda:1", 2, [Device("cuda", 1)]),
        ([], "cuda:5", 2, [CPU]),
        ([InstanceGroup(3, "CPU")], "auto", 2, [CPU] * 3),
        ([InstanceGroup(2, "GPU", (1,))], "cpu", 2, [Device("cuda", 1)] * 2),
        ([InstanceGroup(1, "GPU")], "auto", 2, [Device("cuda", 0), Device("cuda", 1)]),
        ([InstanceGroup(2)], "auto", 0, [CPU] * 2),
        ([InstanceGroup(1, "CPU"), InstanceGroup(1, "GPU", (0,))], "auto", 1, [CPU, Device("cuda", 0)]),
    ],
)
def test_where_instances_go(groups: list[InstanceGroup], wish: str, gpus: int, expected: list[Device]) -> None:
    assert instance_devices(groups, wish, gpus) == expected


@pytest.mark.parametrize("group", [InstanceGroup(1, "GPU"), InstanceGroup(1, "AUTO", (3,))])
def test_a_gpu_that_is_not_there_is_told_with_what_to_write_instead(group: InstanceGroup) -> None:
    with pytest.raises(LoadFailed, match="but this machine has 0 GPUs; use kind: KIND_CPU"):
        instance_devices([group], "auto", 0)


def test_gpus_are_counted_by_their_device_nodes_and_what_is_visible(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert gpu_count(tmp_path, {}) == 2
    assert gpu_count(tmp_path, {"CUDA_VISIBLE_DEVICES": "1"}) == 1
    assert gpu_count(tmp_path, {"CUDA_VISIBLE_DEVICES": ""}) == 0
    assert gpu_count(tmp_path / "nothing", {}) == 0


@pytest.mark.parametrize(
    ("capability", "default", "expected"),
    [("9.0", "", 9), ("8.0", "", 8), (None, "other.py", 1), ("7.5", "other.py", 1)],
)
def test_the_file_is_chosen_by_the_gpus_compute_capability(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capability: str | None, default: str, expected: float
) -> None:
    async def scene() -> None:
        monkeypatch.setattr(loader, "compute_capability", lambda index: capability)
        write_capable(tmp_path, default)
        house = await House(tmp_path).start()
        assert await house.ask("m") == expected

    play(scene())


def test_a_capability_without_a_file_is_told_with_those_that_have_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        monkeypatch.setattr(loader, "compute_capability", lambda index: "7.5")
        write_capable(tmp_path, "")
        house = await House(tmp_path).start()
        assert "files for compute capability 8.0, 9.0, but this GPU has compute capability 7.5" in (
            house.server.readiness().reason
        )

    play(scene())


def write_capable(repository: Path, default: str) -> None:
    pairs = "".join(f'cc_model_filenames {{ key: "{n}.0" value: "cc{n}.py" }} ' for n in (8, 9))
    named = f'default_model_filename: "{default}"' if default else ""
    write_times(repository, "m", 1, f'backend: "python" {pairs} {named}')
    version = repository / "m/1"
    text = (version / "model.py").read_text()
    (version / "model.py").rename(version / "other.py")
    for number in (8, 9):
        (version / f"cc{number}.py").write_text(text.replace("* 1", f"* {number}"))


ENDINGS = (
    "known endings: .onnx, .pt, .pt2, .safetensors, .py, .joblib, .pkl, .pickle, .skops, .bst, .json, .ubj, .txt, .cbm,"
    " .savedmodel, .graphdef, .plan, .netdef"
)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("x.zip", ".zip files"), ("weights", "files without an ending"), ("x.gguf", ".gguf files")],
)
def test_a_file_that_no_backend_runs_is_told_the_endings_that_are_run(tmp_path: Path, name: str, kind: str) -> None:
    async def scene() -> None:
        (tmp_path / name).write_bytes(b"")
        house = await House(model={"path": str(tmp_path / name)}).start()
        (reason,) = house.reasons().values()
        said = ENDINGS if name != "x.gguf" else "llama.cpp runs it: platformctl deploy x.gguf"
        assert reason.endswith(f"{name}: no backend for {kind}; {said}")

    play(scene())


MIXED = "sequence_batching of a decoupled model"
UNSERVED = [
    ("max_batch_size: 4 sequence_batching { } model_transaction_policy { decoupled: true }", MIXED),
    (
        "max_batch_size: 4 batch_input { kind: BATCH_ELEMENT_COUNT target_name: 'n' data_type: TYPE_FP32 "
        "source_input: 'x' }",
        "batch_input",
    ),
]


@pytest.mark.parametrize(("config", "field"), UNSERVED)
def test_what_would_change_the_answers_and_is_not_served_is_refused(tmp_path: Path, config: str, field: str) -> None:
    async def scene() -> None:
        write_times(tmp_path, "m", 2, config)
        house = await House(tmp_path).start()
        assert house.reasons() == {
            "m/1": f"m: {field} is not supported; remove it (docs/reference/http-api.md, Differences)"
        }

    play(scene())


def test_a_model_that_answers_once_cannot_be_made_decoupled(tmp_path: Path) -> None:
    async def scene() -> None:
        write_times(tmp_path, "m", 2, "model_transaction_policy { decoupled: true }")
        house = await House(tmp_path).start()
        assert "m: model_transaction_policy.decoupled is true, but the model answers" in house.reasons()["m/1"]

    play(scene())


IDLE = """
optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } eager_batching: true }
instance_group [ { kind: KIND_CPU rate_limiter { priority: 2 } } ]
model_operations { op_library_filename: "ops.so" }
model_repository_agents { agents { name: "checksum" } }
"""


def test_what_has_no_effect_is_told_once_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_times(tmp_path, "m", 2, IDLE)
    write_times(tmp_path, "plain", 2, "optimization { input_pinned_memory { enable: true } }")
    with caplog.at_level(logging.WARNING):
        play(started(House(tmp_path)))
    told = [record.getMessage() for record in caplog.records if "without effect" in record.getMessage()]
    assert told == [
        "the configuration of model 'm' has settings without effect: model_operations, model_repository_agents, "
        "optimization.execution_accelerators, optimization.eager_batching, instance_group.rate_limiter"
    ]

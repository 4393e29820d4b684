"""Files of torch.export.save: what they declare, and what of them is refused."""

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.predictor.backends.planted import Planted, planted

from pilotlight.wire.model_formats.batch_dimension import fixed_batch
from pilotlight_predictor.backends.base import LoadSpec
from pilotlight_predictor.backends.torch import backend, safe_load
from pilotlight_predictor.core.tensors import TensorSpec, tensor
from pilotlight_predictor.errors import BadRequest, LoadFailed
from pilotlight_predictor.models.input_validation import InputValidator
from pilotlight_predictor.repository.model_config import ModelConfig, TensorConfig

torch = pytest.importorskip("torch")


pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")


X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x: Any, *, scale: Any) -> Any:
        logits = self.layer(x) * scale
        return {"probs": logits.softmax(-1), "label": logits.argmax(-1)}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "model.pt2"
    rows = torch.export.Dim("rows", min=1, max=64)
    shapes = {"x": {0: rows}, "scale": {0: rows}}
    examples = (torch.zeros(2, 4),), {"scale": torch.ones(2, 1)}
    torch.export.save(torch.export.export(Classifier().eval(), *examples, dynamic_shapes=shapes), path)
    return path


def test_an_exported_program_declares_its_tensors(exported: Path, spec: Callable[..., LoadSpec]) -> None:
    instance = backend.load(spec(exported))
    assert instance.inputs == [TensorSpec("x", "FP32", (-1, 4)), TensorSpec("scale", "FP32", (-1, 1))]
    assert instance.outputs == [TensorSpec("probs", "FP32", (-1, 3)), TensorSpec("label", "INT64", (-1,))]
    outputs = instance.run({"x": tensor(X), "scale": tensor(np.ones((2, 1), np.float32))})
    np.testing.assert_allclose(outputs["probs"].array.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(outputs["label"].array, outputs["probs"].array.argmax(axis=1))


def test_an_exported_program_is_read_without_torch(exported: Path) -> None:

    code = (
        "import sys; from pathlib import Path; from pilotlight_predictor.backends.torch import safe_load as formats;"
        "print(formats.read_program(Path(sys.argv[1])).batchable, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(exported)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
    assert safe_load.read_program(exported).batchable


def test_a_fixed_batch_of_an_exported_program_is_read(exported: Path, tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.Linear(4, 3).eval(), (torch.zeros(2, 4),))
    torch.export.save(program, tmp_path / "fixed.pt2")
    (tmp_path / "cut.pt2").write_bytes(exported.read_bytes()[:100])
    files = (tmp_path / "fixed.pt2", exported, tmp_path / "cut.pt2", tmp_path / "none.pt2")
    assert [fixed_batch(file) for file in files] == [2, 0, 0, 0]
    rules = InputValidator(ModelConfig("m", backend="torch", inputs=(TensorConfig("x", "FP32", (2, 4)),)))
    for shape, fix in (
        ((3, 4), "; its batch size was fixed .*: use dynamic_shapes of torch.export.export"),
        ((2, 6), ""),
    ):
        with pytest.raises(BadRequest, match=rf"expected \[2, 4\], got \{list(shape)}{fix}$"):
            rules.check_input("x", "FP32", shape)


def test_an_exported_program_takes_the_configured_names(exported: Path, spec: Any, config: Any) -> None:
    declared = config(
        {"INPUT__0": ("FP32", (4,)), "INPUT__1": ("FP32", (1,))}, {"OUTPUT__1": ("INT64", ())}, max_batch_size=8
    )
    instance = backend.load(spec(exported, declared))
    assert [tensor.name for tensor in instance.inputs] == ["INPUT__0", "INPUT__1"]
    assert instance.outputs == [TensorSpec("OUTPUT__1", "INT64", (-1,))]
    outputs = instance.run({"INPUT__0": tensor(X), "INPUT__1": tensor(np.ones((2, 1), np.float32))})
    assert outputs["OUTPUT__1"].array.shape == (2,)


def test_an_input_that_breaks_a_guard_is_the_clients_fault(exported: Path, spec: Callable[..., LoadSpec]) -> None:
    instance = backend.load(spec(exported))
    with pytest.raises(BadRequest, match="the model rejects the input"):
        instance.run({"x": tensor(np.ones((2, 5), np.float32)), "scale": tensor(np.ones((2, 1), np.float32))})


def test_an_exported_program_keeps_its_precision(exported: Path, spec: Callable[..., LoadSpec]) -> None:
    with pytest.raises(LoadFailed, match=r"precision = fp16, but model\.pt2 was exported with its types fixed"):
        backend.load(spec(exported, precision="fp16"))


def write_planted(exported: Path, path: Path) -> None:
    """torch.export.load reads the sample inputs with plain pickle when they are not mere tensors."""
    import io

    buffer = io.BytesIO()
    torch.save(((Planted(),), {}), buffer)
    with zipfile.ZipFile(exported) as original, zipfile.ZipFile(path, "w") as changed:
        for name in original.namelist():
            changed.writestr(name, buffer.getvalue() if "sample_inputs" in name else original.read(name))


def test_a_pickle_inside_an_exported_program_is_refused(exported: Path, tmp_path: Path, spec: Any) -> None:
    path = tmp_path / "model.pt2"
    write_planted(exported, path)
    with pytest.raises(LoadFailed, match=r"a pickle \(__builtin__.exec\).*--trust-pickle model.pt2="):
        backend.load(spec(path))
    assert not planted()


@pytest.mark.parametrize("name", ["aotinductor/model/model.so", "constants/custom_obj_0"])
def test_compiled_code_beside_an_exported_program_is_refused(
    name: str, exported: Path, tmp_path: Path, spec: Any
) -> None:
    """torch.export.load opens libraries of AOTInductor that are in the same archive."""
    path = tmp_path / "model.pt2"
    path.write_bytes(exported.read_bytes())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{archive.namelist()[0].partition('/')[0]}/data/{name}", b"\x7fELF")
    with pytest.raises(LoadFailed, match=rf"compiled code \(data/{name}\).*--trust-pickle model.pt2="):
        backend.load(spec(path))


def test_an_exported_program_overwritten_after_it_was_looked_at_runs_no_code(
    exported: Path, tmp_path: Path, spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, load = tmp_path / "model.pt2", torch.export.load
    path.write_bytes(exported.read_bytes())
    write_planted(exported, tmp_path / "other.pt2")

    def overwrite_then_load(file: Any) -> Any:
        path.write_bytes((tmp_path / "other.pt2").read_bytes())
        return load(file)

    monkeypatch.setattr(torch.export, "load", overwrite_then_load)
    with pytest.raises(LoadFailed, match=r"a pickle \(__builtin__.exec\)"):
        backend.load(spec(path))
    assert not planted()


@pytest.mark.parametrize("pinned", [False, True])
def test_an_exported_program_replaced_after_it_was_looked_at_is_not_read(
    exported: Path, tmp_path: Path, spec: Any, monkeypatch: pytest.MonkeyPatch, pinned: bool
) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(exported.read_bytes())
    write_planted(exported, tmp_path / "other.pt2")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    load = torch.export.load

    def replace_then_load(file: Any) -> Any:
        (tmp_path / "other.pt2").replace(path)
        return load(file)

    monkeypatch.setattr(torch.export, "load", replace_then_load)
    instance = backend.load(spec(path, trusted_pickles={"model.pt2": digest} if pinned else {}))
    assert [each.name for each in instance.inputs] == ["x", "scale"]
    assert not planted()

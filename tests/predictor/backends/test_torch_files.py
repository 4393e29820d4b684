"""Every form of a torch file, and what is refused."""

import hashlib
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.predictor.backends.planted import Planted, planted

from pilotlight_predictor.backends.base import LoadSpec
from pilotlight_predictor.backends.torch import backend
from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.core.tensors import Tensor, TensorSpec, tensor
from pilotlight_predictor.errors import BadRequest, LoadFailed

torch = pytest.importorskip("torch")


pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")


MODULE = """
    import torch

    class Net(torch.nn.Module):
        def __init__(self, width=3):
            super().__init__()
            self.first = torch.nn.Linear(4, width)
            self.last = torch.nn.Linear(width, 2)

        def forward(self, x):
            return self.last(self.first(x).relu())

    def build():
        return Net()
"""


X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def net(source: Callable[..., Path]) -> tuple[Path, Any, Any]:
    """A folder with model.py, the module it builds, and what that answers to X."""
    from pilotlight_predictor.backends.python.source import UserModule

    path = source(MODULE)
    torch.manual_seed(0)
    module = UserModule(path, path.parent).module.build().eval()
    return path.parent, module, module(torch.from_numpy(X)).detach().numpy()


def answer(load_spec: LoadSpec, **inputs: Any) -> Any:
    instance = backend.load(load_spec)
    wrapped = {name: value if isinstance(value, Tensor) else tensor(value) for name, value in inputs.items()}
    outputs = instance.run(wrapped)
    instance.close()
    return next(iter(outputs.values())).array


def test_safetensors_fill_the_module_beside_them(net: tuple[Path, Any, Any], spec: Callable[..., LoadSpec]) -> None:
    from safetensors.torch import save_file

    folder, module, expected = net
    save_file(module.state_dict(), folder / "model.safetensors")
    np.testing.assert_allclose(answer(spec(folder / "model.safetensors"), x=X), expected, rtol=1e-6)


def test_weights_on_their_way_to_a_module_that_cannot_be_built_have_come_before_that_is_told(
    net: tuple[Path, Any, Any], spec: Callable[..., LoadSpec], config: Any
) -> None:
    """Then they are nobody's, and whoever loads the model again finds room on the GPU."""
    from msgspec.structs import replace
    from safetensors.torch import save_file

    folder, module, _ = net
    save_file(module.state_dict(), folder / "model.safetensors")
    waited: list[str] = []
    transfer = SimpleNamespace(wait=lambda: waited.append("come"))
    wanted = replace(spec(folder / "model.safetensors", config(parameters={"MODULE": "Missing"})), prefetched=transfer)
    with pytest.raises(LoadFailed, match="Missing"):
        backend.load(wanted)
    assert waited == ["come"]


def test_a_class_named_by_module_is_built(net: tuple[Path, Any, Any], spec: Any, config: Any) -> None:
    from safetensors.torch import save_file

    folder, module, expected = net
    save_file(module.state_dict(), folder / "model.safetensors")
    named = config(parameters={"MODULE": "Net"})
    np.testing.assert_allclose(answer(spec(folder / "model.safetensors", named), x=X), expected, rtol=1e-6)
    with pytest.raises(LoadFailed, match=r"model\.py of 'm' has no Missing"):
        backend.load(spec(folder / "model.safetensors", config(parameters={"MODULE": "Missing"})))


def test_shards_in_a_directory_are_joined(net: tuple[Path, Any, Any], spec: Callable[..., LoadSpec]) -> None:
    from safetensors.torch import save_file

    folder, module, expected = net
    weights = module.state_dict()
    for number, layer in enumerate(("first", "last")):
        shard = {name: value for name, value in weights.items() if name.startswith(layer)}
        save_file(shard, folder / f"model-{number + 1}-of-2.safetensors")
    np.testing.assert_allclose(answer(spec(folder), x=X), expected, rtol=1e-6)


def checkpoint(form: str, weights: dict[str, Any]) -> Any:
    """A file of torch.save, as tutorials, DataParallel and Lightning write it."""
    renamed = {f"{form}{name}": value for name, value in weights.items()}
    return {
        "plain": weights,
        "state_dict": {"state_dict": weights, "epoch": 3},
        "model_state_dict": {"epoch": 3, "model_state_dict": weights, "optimizer_state_dict": {"lr": 1.0}, "loss": 0.1},
        "model": {"model": weights, "epoch": 3},
        "own name": {"net": weights, "optimizer": {"state": {0: {"step": torch.ones(1)}}, "lr": 0.1}, "epoch": 3},
        "module.": renamed,
        "model.": {"state_dict": {**renamed, "loss.weight": torch.ones(2)}, "pytorch-lightning_version": "2.6"},
    }[form]


@pytest.mark.parametrize("name", ["model.pt", "model.pth", "last.ckpt"])
@pytest.mark.parametrize("form", ["plain", "state_dict", "model_state_dict", "model", "own name", "module.", "model."])
def test_a_state_dict_fills_the_module(net: tuple[Path, Any, Any], spec: Any, name: str, form: str) -> None:
    folder, module, expected = net
    torch.save(checkpoint(form, module.state_dict()), folder / name)
    np.testing.assert_allclose(answer(spec(folder / name), x=X), expected, rtol=1e-6)


def test_weights_under_two_prefixes_are_not_guessed(net: tuple[Path, Any, Any], spec: Any) -> None:
    folder, module, _ = net
    twice = {f"{prefix}.{name}": value for prefix in ("model", "ema") for name, value in module.state_dict().items()}
    torch.save({"state_dict": twice}, folder / "model.pt")
    with pytest.raises(LoadFailed, match=r"(?s)does not fit the module of model.py.*ema.first"):
        backend.load(spec(folder / "model.pt"))


def test_the_only_module_class_of_model_py_needs_no_build(source: Any, net: tuple[Path, Any, Any], spec: Any) -> None:
    path = source(MODULE.replace("def build():", "def other():"))
    torch.save(net[1].state_dict(), path.parent / "model.pt")
    np.testing.assert_allclose(answer(spec(path.parent / "model.pt"), x=X), net[2], rtol=1e-6)


PARTS = """
    import torch

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4))

        def forward(self, x):
            return x * self.weight

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Layer()

        def forward(self, x):
            return self.layer(x)
"""


@pytest.mark.parametrize(("suffix", "text"), [("pt", PARTS), ("safetensors", PARTS), ("pt", "from net import *")])
def test_of_several_module_classes_the_one_with_the_names_of_the_weights_is_built(
    source: Any, spec: Any, suffix: str, text: str
) -> None:
    from safetensors.torch import save_file

    file = source(text, net=PARTS).parent / f"model.{suffix}"
    (torch.save if suffix == "pt" else save_file)({"layer.weight": torch.full((4,), 2.0)}, file)
    np.testing.assert_allclose(answer(spec(file), x=X), 2 * X)


def test_several_module_classes_of_which_none_is_sure_ask_for_build(source: Any, spec: Any) -> None:
    file = source(PARTS).parent / "model.pt"
    torch.save({"other": torch.ones(4)}, file)
    with pytest.raises(
        LoadFailed, match=r"model\.py has 2 modules: Layer, Net; define build\(\) that returns the one to serve"
    ):
        backend.load(spec(file))


def test_a_module_class_that_needs_arguments_asks_for_build(source: Any, spec: Any) -> None:
    code = MODULE.replace("width=3", "width").replace("def build():", "def other():")
    file = source(code).parent / "model.pt"
    torch.save({"w": torch.ones(2)}, file)
    needs = r"Net needs arguments \(width\): define build\(\) in model\.py that returns Net\(width=…\)"
    with pytest.raises(LoadFailed, match=needs):
        backend.load(spec(file))


def test_a_build_that_raises_is_told_with_the_frames_of_model_py_alone(source: Any, spec: Any) -> None:
    import traceback

    file = source(MODULE.replace("return Net()", "return Net(1 / 0)")).parent / "model.pt"
    torch.save({"w": torch.ones(2)}, file)
    with pytest.raises(LoadFailed, match=r"model\.py could not build its module: ZeroDivisionError") as failed:
        backend.load(spec(file))
    assert failed.value.__cause__ is not None
    frames = traceback.extract_tb(failed.value.__cause__.__traceback__)
    assert [Path(frame.filename).name for frame in frames] == ["model.py"]


def test_weights_beside_a_module_in_another_file_ask_to_rename_it(tmp_path: Path, spec: Any) -> None:
    (tmp_path / "broken.py").write_text("def")
    (tmp_path / "net.py").write_text("import torch\nclass Net(torch.nn.Module): ...\n")
    torch.save({"w": torch.ones(2)}, tmp_path / "model.pt")
    hint = r"holds only weights: net\.py defines Net: if it is that class, write `from net import Net` into a model\.py"
    with pytest.raises(LoadFailed, match=hint):
        backend.load(spec(tmp_path / "model.pt"))


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("class Block(nn.Module): ...\nclass Net(nn.Module):\n    def f(self): self.b = Block()\n",
         r"net\.py defines Block, Net: write `from net import Net` into a model\.py"),
        ("class Net(nn.Module): ...\nclass Wide(Net): ...\n", r"defines Net, Wide: write `from net import Wide` into"),
        ("class A(nn.Module): ...\nclass B(nn.Module): ...\n",
         r"defines A, B: write `from net import A`, or the class that you saved, into a model\.py"),
    ],
)  # fmt: skip
def test_of_a_network_and_its_blocks_the_network_is_proposed(tmp_path: Path, code: str, hint: str, spec: Any) -> None:
    (tmp_path / "net.py").write_text(f"from torch import nn\n{code}")
    torch.save({"w": torch.ones(2)}, tmp_path / "model.pt")
    with pytest.raises(LoadFailed, match=hint):
        backend.load(spec(tmp_path / "model.pt"))


def test_weights_that_do_not_fit_name_the_keys(net: tuple[Path, Any, Any], spec: Callable[..., LoadSpec]) -> None:
    from safetensors.torch import save_file

    folder, module, _ = net
    weights = module.state_dict()
    weights["surplus"] = weights.pop("last.bias")
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(LoadFailed, match=r"does not fit the module of model.py: Missing.*last.bias.*surplus"):
        backend.load(spec(folder / "model.safetensors"))


def test_weights_of_another_size_say_how_to_build_the_module(source: Any, spec: Callable[..., LoadSpec]) -> None:
    code = "class Net(torch.nn.Linear):\n    def __init__(self, classes=5):\n        super().__init__(2, classes)\n"
    file = source(f"import torch\n\n{code}").with_name("model.pt")
    torch.save(torch.nn.Linear(2, 10).state_dict(), file)
    fix = r"define build\(\) in model\.py that returns Net\(…\) with the arguments it was trained with"
    with pytest.raises(LoadFailed, match=rf"size mismatch for weight: .*{fix}"):
        backend.load(spec(file))


def test_weights_alone_ask_for_a_module(tmp_path: Path, spec: Callable[..., LoadSpec]) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "model.pt")
    with pytest.raises(LoadFailed, match=r"put a model.py next to it with the class of the module, or with build\(\)"):
        backend.load(spec(tmp_path / "model.pt"))


def test_a_damaged_file_is_told(net: tuple[Path, Any, Any], spec: Callable[..., LoadSpec]) -> None:
    folder = net[0]
    for name in ("model.safetensors", "model.pt"):
        (folder / name).write_bytes(b"\x00" * 100)
        with pytest.raises(LoadFailed, match=name):
            backend.load(spec(folder / name))


TIED = """
    import torch

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(10, 4)
            self.head = torch.nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("scale", torch.full((1,), 2.0), persistent=False)

        def forward(self, x):
            return self.head(self.embed(x)) * self.scale

    build = Tied
"""


def test_tied_weights_and_buffers_that_no_file_holds(source: Any, spec: Callable[..., LoadSpec]) -> None:
    """safetensors keeps one name of a shared tensor; a buffer that is not saved must come from the constructor."""
    from safetensors.torch import save_file

    path = source(TIED)
    weight = torch.arange(40, dtype=torch.float32).reshape(10, 4)
    save_file({"embed.weight": weight}, path.parent / "model.safetensors")
    found = answer(spec(path.parent / "model.safetensors"), x=np.array([3], np.int64))
    np.testing.assert_allclose(found, (weight[3] @ weight.T * 2).numpy()[None])


def test_nothing_is_initialised_only_to_be_replaced(source: Any) -> None:
    """2 GB of parameters cost neither their memory nor the import of torch's compiler, which the meta device brings."""
    import subprocess
    import sys

    code = (
        "import resource, sys, torch;"
        "from pilotlight_predictor.backends.torch.module_factory import build_uninitialised;"
        "from pilotlight_predictor.backends.torch.modules import load_weights;"
        "memory = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "memory_before, modules_before = memory(), len(sys.modules);"
        "weights = {'weight': torch.empty(1, 1).expand(500_000, 1000)};"
        "module = load_weights(build_uninitialised(lambda: torch.nn.Embedding(500_000, 1000)), weights, 'cpu', 'f');"
        "print(memory() - memory_before, len(sys.modules) - modules_before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    kilobytes, modules = (int(number) for number in done.stdout.split())
    assert kilobytes < 200_000
    assert modules < 50


def test_half_a_configuration_of_torchscript_is_completed(
    net: tuple[Path, Any, Any], spec: Callable[..., LoadSpec], config: Any
) -> None:
    folder, module, expected = net
    torch.jit.trace(module, torch.from_numpy(X)).save(folder / "model.pt")
    x, y = {"x": ("FP32", (-1, 4))}, {"y": ("FP32", (-1, 2))}
    for some in (config(x), config({}, y), config(x, y)):
        np.testing.assert_allclose(answer(spec(folder / "model.pt", some), x=X), expected, rtol=1e-6)


def test_a_real_torchscript_model_hears_no_speech_in_silence(spec: Any, config: Any, ask: Any) -> None:
    found = find_spec("silero_vad")
    if found is None or found.origin is None:
        pytest.skip("silero_vad is not installed")
    path = Path(found.origin).parent / "data" / "silero_vad.jit"
    declared = config({"x": ("FP32", (-1, -1)), "sr": ("INT64", (1,))}, {"output": ("FP32", (-1, 1))})
    instance = backend.load(spec(path, declared))
    silence = ask(x=np.zeros((1, 512), np.float32), sr=np.array([16000]))
    outputs = instance.execute([silence])[0]
    assert outputs["output"].array.shape == (1, 1)
    assert outputs["output"].array[0, 0] < 0.1
    with pytest.raises(BadRequest, match="too short"):
        instance.execute([ask(x=np.zeros((1, 9), np.float32), sr=np.array([16000]))])
    with pytest.raises(BadRequest, match=r"input 'sr' has shape \[2\], must be a single number"):
        instance.execute([ask(x=np.zeros((1, 512), np.float32), sr=np.array([8000, 16000]))])


def test_a_pickle_with_code_is_refused_with_what_to_set(tmp_path: Path, spec: Callable[..., LoadSpec]) -> None:
    path = tmp_path / "model.pt"
    torch.save(Planted(), path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(LoadFailed, match=f"set --trust-pickle model.pt={digest} ") as refused:
        backend.load(spec(path))
    manifest = f"""spec.predictor.model.env=[{{name: INFERENCE_TRUST_PICKLE, value: "model.pt={digest}"}}]"""
    assert f"(for a manifest: --set '{manifest}')" in str(refused.value)
    assert refused.value.__suppress_context__  # torch advises weights_only=False
    assert not planted()


def test_a_pinned_pickle_must_be_the_file_vouched_for(tmp_path: Path, spec: Callable[..., LoadSpec]) -> None:
    path = tmp_path / "model.pt"
    torch.save(Planted(), path)
    with pytest.raises(
        LoadFailed,
        match=r"was pinned: its SHA-256 was 0{64} and is .{64}; if you trust its author, set --",
    ):
        backend.load(spec(path, trusted_pickles={"model.pt": "0" * 64}))
    assert not planted()


def test_a_pinned_pickled_module_runs(tmp_path: Path, spec: Callable[..., LoadSpec]) -> None:
    path = tmp_path / "model.pt"
    module = torch.nn.Linear(4, 2)
    torch.save(module, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    found = answer(spec(path, trusted_pickles={"model.pt": digest.upper()}), input=X)
    np.testing.assert_allclose(found, module(torch.from_numpy(X)).detach().numpy(), rtol=1e-6)


@pytest.fixture
def whole(net: tuple[Path, Any, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A whole module whose class is of the training script, as torch.save(model, FILE) writes it."""
    import __main__

    monkeypatch.setattr(__main__, "Net", type(net[1]), raising=False)
    monkeypatch.setattr(type(net[1]), "__module__", "__main__")
    torch.save(net[1], net[0] / "whole.pt")
    monkeypatch.undo()
    return net[0] / "whole.pt"


def test_the_class_of_a_whole_module_is_found_in_model_py(whole: Path, net: tuple[Path, Any, Any], spec: Any) -> None:
    pins = {"whole.pt": hashlib.sha256(whole.read_bytes()).hexdigest()}
    instance = backend.load(spec(whole, trusted_pickles=pins))
    assert instance.inputs == [TensorSpec("x", "FP32", (-1, 4))]
    np.testing.assert_allclose(instance.run({"x": tensor(X)})["OUTPUT__0"].array, net[2], rtol=1e-6)


@pytest.mark.parametrize("layout", ["file", "package", "beside model.py"])
def test_classes_of_a_whole_module_are_found_in_the_modules_beside_it(layout: str, tmp_path: Path, spec: Any) -> None:
    script = tmp_path / "train"
    folder = script / "nets" if layout == "package" else script
    folder.mkdir(parents=True)
    (folder / "layers_here.py").write_text(
        "import torch\nclass Half(torch.nn.Module):\n    def forward(self, x): return x / 2"
    )
    prefix = "nets." if layout == "package" else ""
    code = (
        f"import torch\nfrom {prefix}layers_here import Half\nclass Net(torch.nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.scale = Half()\n    def forward(self, x): return self.scale(x)"
    )
    (folder / "net_here.py").write_text(code)
    save = f"import torch; from {prefix}net_here import Net; torch.save(Net(), 'whole.pt')"
    subprocess.run([sys.executable, "-c", save], cwd=script, check=True)
    if layout == "beside model.py":
        (script / "model.py").write_text("INPUTS = {'x': ('FP32', [-1, 3])}")
    whole = script / "whole.pt"
    pins = {"whole.pt": hashlib.sha256(whole.read_bytes()).hexdigest()}
    instance = backend.load(spec(whole, trusted_pickles=pins))
    if layout == "beside model.py":
        assert [each.shape for each in instance.inputs] == [(-1, 3)]
    (answer,) = instance.execute([InferRequest("m", {"x": tensor(np.ones((1, 3), np.float32))})])
    assert answer["OUTPUT__0"].array.tolist() == [[0.5] * 3]
    assert not {"net_here", "layers_here", "nets"} & set(sys.modules), "isolated, as the modules of a Python model are"


def test_a_whole_module_without_its_class_says_where_to_put_it(whole: Path, spec: Any) -> None:
    pins = {"whole.pt": hashlib.sha256(whole.read_bytes()).hexdigest()}
    (whole.parent / "model.py").unlink()
    with pytest.raises(
        LoadFailed, match=r"needs __main__\.Net, .* define or import Net in a model\.py in the folder of whole\.pt"
    ):
        backend.load(spec(whole, trusted_pickles=pins))

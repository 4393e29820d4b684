"""The models of load.py: one of ResNet-50's size and one of BERT-base's, with random weights, in every way of serving.

`write` makes a repository in which each is served by one, two and three instances, with and without CUDA graphs; the
names say which: resnet-1-graphs. Weights lie there once.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

LARGEST = 32  # rows of a batch
RESNET = """
import torch

INPUTS = {"x": ("UINT8", [-1, 3, SIZE, SIZE])}
OUTPUTS = {"y": ("FP32", [-1, 1000])}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = NET

    def train(self, mode=True):
        super().train(mode)
        return self.to(memory_format=torch.channels_last)  # once the weights are there

    def forward(self, x):
        dtype = next(self.parameters()).dtype
        return self.net((x.to(dtype) / 255).contiguous(memory_format=torch.channels_last))


build = Net
"""
RESNET_50 = "__import__('torchvision').models.resnet50()"
SMALL_NET = """torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(),
            torch.nn.Linear(128, 1000))"""
BERT = """
import torch
from torch.nn import Embedding, LayerNorm, Linear, Module, ModuleList
from torch.nn.functional import gelu, scaled_dot_product_attention

INPUTS = {"x": ("INT64", [-1, 128])}
OUTPUTS = {"y": ("FP32", [-1, WIDTH])}


class Layer(Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = Linear(WIDTH, 3 * WIDTH), Linear(WIDTH, WIDTH)
        self.up, self.down = Linear(WIDTH, 4 * WIDTH), Linear(4 * WIDTH, WIDTH)
        self.first, self.second = LayerNorm(WIDTH), LayerNorm(WIDTH)

    def forward(self, h):
        rows, length, _ = h.shape
        q, k, v = self.qkv(h).view(rows, length, 3, WIDTH // 64, 64).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, length, WIDTH)
        h = self.first(h + self.out(seen))
        return self.second(h + self.down(gelu(self.up(h))))


class Bert(Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = Embedding(30522, WIDTH), Embedding(512, WIDTH)
        self.norm, self.pool = LayerNorm(WIDTH), Linear(WIDTH, WIDTH)
        self.layers = ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x):
        h = self.norm(self.words(x) + self.places.weight[: x.shape[1]])
        for layer in self.layers:
            h = layer(h)
        return torch.tanh(self.pool(h[:, 0]))


build = Bert
"""


class Way(NamedTuple):
    """One way in which a model is served."""

    model: str
    instances: int
    graphs: bool

    @property
    def name(self) -> str:
        return f"{self.model}-{self.instances}-{'graphs' if self.graphs else 'eager'}"


WAYS = [Way(model, count, graphs) for model in ("resnet", "bert") for graphs in (True, False) for count in (3, 2, 1)]


def sources(small: bool) -> dict[str, str]:
    width, layers, size = (64, 2, 32) if small else (768, 12, 224)
    resnet = RESNET.replace("SIZE", str(size)).replace("NET", SMALL_NET if small else RESNET_50)
    return {"resnet": resnet, "bert": BERT.replace("WIDTH", str(width)).replace("LAYERS", str(layers))}


def rows_of(model: str, rows: int, small: bool, seed: int = 0) -> "np.ndarray[Any, Any]":
    generator = np.random.default_rng(seed)
    if model == "bert":
        return generator.integers(0, 30522, (rows, 128), np.int64)
    size = 32 if small else 224
    return generator.integers(0, 256, (rows, 3, size, size), np.uint8)


def module(folder: Path, model: str, device: str) -> Any:
    """As a plain program has it: built, loaded, moved."""
    import torch
    from safetensors.torch import load_file

    space: dict[str, Any] = {}
    exec((folder / "weights" / model / "model.py").read_text(), space)
    made = space["build"]().half() if device == "cuda" else space["build"]()
    made.load_state_dict(load_file(folder / "weights" / model / "model.safetensors"))
    return made.to(torch.device(device)).eval()


def write(folder: Path, small: bool, device: str) -> None:
    """In a process of its own, for it imports torch."""
    import torch
    from safetensors.torch import save_file

    for model, source in sources(small).items():
        weights = folder / "weights" / model
        weights.mkdir(parents=True)
        (weights / "model.py").write_text(source)
        torch.manual_seed(0)
        space: dict[str, Any] = {}
        exec(source, space)
        with torch.device(device):
            made = space["build"]().to(torch.float16 if device == "cuda" else torch.float32)
        save_file({name: value.contiguous().cpu() for name, value in made.state_dict().items()},
                  weights / "model.safetensors")  # fmt: skip
    for way in WAYS:
        version = folder / "models" / way.name / "1"
        version.mkdir(parents=True)
        for file in ("model.py", "model.safetensors"):
            (version / file).hardlink_to(folder / "weights" / way.model / file)
        (version.parent / "config.pbtxt").write_text("\n".join(settings(way)))


def settings(way: Way) -> Iterator[str]:
    yield 'backend: "torch"'
    yield f"max_batch_size: {LARGEST}"
    yield "dynamic_batching { max_queue_delay_microseconds: 1000 }"
    yield f"instance_group [ {{ count: {way.instances} }} ]"
    if way.graphs:
        yield "optimization { cuda { graphs: true } }"

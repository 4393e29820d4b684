"""Imports that the layers alone do not forbid: transports in codecs, heavy libraries at the top of a module."""

import ast
import sys
from pathlib import Path

import pytest
from tests.architecture.source_tree import Import, Module, modules, within

PREDICTOR = "pilotlight_predictor"
SDK = "pilotlight.sdk"
# What a simulation does with batches is what the predictor does; the module is pure.
BATCHES = ("pilotlight.simulation.stations", f"{PREDICTOR}.scheduling.batching")

# Codecs of the protocols: functions of bytes and tensors, without a transport.
CODECS = (
    "json_values", "v1_codec", "v2.request_codec", "v2.response_codec", "v2.request_templates", "openai.request",
    "openai.response", "openai.tensors", "predict.codec", "trtis.request", "trtis.response", "trtis.text_protobuf",
)  # fmt: skip

# Which package must not import what, beyond the layers, and why. A prefix stands for all that lies below it.
FORBIDDEN = (
    ("pilotlight.targets", ("pilotlight.spec", "pilotlight.plan", "pilotlight.render"), "a target sees only manifests"),
    (
        "pilotlight",
        (PREDICTOR, "platformctl"),
        "the control plane stands below both; of its packages sdk alone calls verbs",
    ),
    (PREDICTOR, ("platformctl", "click"), "an image of a predictor has no command line"),
    *(
        (f"{PREDICTOR}.protocols.{name}", (f"{PREDICTOR}.frontends", f"{PREDICTOR}.scheduling"), "codecs are pure")
        for name in CODECS
    ),
    (f"{PREDICTOR}.metrics", ("prometheus_client",), "the hot path counts in plain integers"),
)

# Imported inside the function that needs them: import time is the first part of every cold start.
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
        if not (within(module.name, SDK) and within(found.target, "platformctl"))
        if not (module.name == BATCHES[0] and within(found.target, BATCHES[1]))
        if any(within(found.target, target) for target in targets)
    ]


@pytest.mark.parametrize(("importer", "targets", "reason"), FORBIDDEN, ids=[row[0] for row in FORBIDDEN])
def test_forbidden_imports_do_not_occur(importer: str, targets: tuple[str, ...], reason: str) -> None:
    assert not breaches(importer, targets), reason


OF_LOGS = {  # with the first object, and the first pattern
    "pilotlight.wire.request_log.sinks": "obstore", "pilotlight.wire.request_log.redaction": "re2",
}  # fmt: skip
VERIFICATION = "pilotlight.jwt_verification"  # imports PyJWT with the first JWT


@pytest.mark.parametrize("package", ["pilotlight.contract", "pilotlight.wire"])
def test_what_both_sides_share_needs_the_standard_library_only(package: str) -> None:
    def foreign(module: Module, found: Import) -> bool:
        shared = within(found.target, package) or within(found.target, VERIFICATION)
        logged = within(found.target, OF_LOGS.get(module.name, module.name))
        return found.target.split(".")[0] not in sys.stdlib_module_names and not shared and not logged

    shared = [module for module in modules() if within(module.name, package)]
    assert shared
    assert not [m.place(found.line) for m in shared for found in m.imports if foreign(m, found)]


def test_only_the_full_server_of_the_predictor_imports_aiohttp() -> None:
    importers = {m.name for m in modules() if any(within(found.target, "aiohttp") for found in m.imports)}
    assert {name for name in importers if within(name, PREDICTOR)} == {
        f"{PREDICTOR}.frontends.http.aiohttp_server",
        f"{PREDICTOR}.frontends.http.websocket",
    }


def test_heavy_libraries_are_imported_inside_functions() -> None:
    assert not [
        f"{module.place(found.line)}: {found.target}"
        for module in modules()
        for found in module.imports
        if found.at_top and any(within(found.target, name) for name in HEAVY)
    ]


def test_an_import_that_breaks_an_arrow_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = ast.parse("def f():\n    from aiohttp import web\n")
    culprit = Module(f"{PREDICTOR}.protocols.v3", Path(__file__), tree, 2)
    monkeypatch.setitem(globals(), "modules", lambda: (culprit,))
    assert len(breaches(f"{PREDICTOR}.protocols", ("aiohttp",))) == 1

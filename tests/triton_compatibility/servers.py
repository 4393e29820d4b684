"""The servers that cases are sent to: the models that each has at start, and flags that both programs know."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.differential.models import HEAD, write_models

ADD_STEP: Final = (
    'input_map { key: "a" value: "a" } input_map { key: "b" value: "b" } output_map { key: "sum" value: "sum" }'
)
CUSTOM: Final = "configs/custom.pbtxt"
ECHO_PARAMETERS: Final = """\
import json


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(json.loads(request.parameters() or "{}")) for request in requests]

    def respond(self, parameters):
        import numpy as np

        text = json.dumps(parameters, sort_keys=True).encode()
        return pb_utils.InferenceResponse([pb_utils.Tensor("parameters", np.array([text], object))])
"""
OPTIONAL: Final = """\
class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(inputs_of(request)) for request in requests]

    def respond(self, given):
        return pb_utils.InferenceResponse([pb_utils.Tensor("c", sum(given.values()))])
"""
REPEAT: Final = """\
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            number, sender = inputs_of(request)["n"], request.get_response_sender()
            count = int(number[0])
            for _ in range(1 if count == -2 else count):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("m", number)]))
            if count < 0:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("no more numbers")))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
SLOW: Final = """\
import time


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(1)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", inputs_of(each)["x"])]) for each in requests]
"""
ZERO: Final = """\
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", inputs_of(each)["x"][:0])]) for each in requests]
"""
ENSEMBLE: Final = f"""\
platform: "ensemble"
ensemble_scheduling {{ step [ {{ model_name: "add2" model_version: -1 {ADD_STEP} }} ] }}
"""


class Server(NamedTuple):
    """`models`: all that its repository has, or everything if it is empty; `load`: those of explicit mode."""

    flags: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    load: tuple[str, ...] = ()


GROUPS: Final = "shared-memory,model-config,model-repository,statistics,trace,logging:admin-key=secret"
SERVERS: Final = {
    "plain": Server(
        load=(
            "add", "add2", "types", "versions", "fails", "echo_parameters", "optional", "repeat", "zero", "ensemble",
            "slow", "slow_ensemble",
        )
    ),
    "small": Server(("--http-max-input-size=4096",), ("add", "types", "versions")),
    "shm": Server((), ("add",)),
    "poll": Server(("--model-control-mode=poll", "--repository-poll-secs=60"), ("add",)),
    "config": Server(("--model-config-name=custom",), ("configured", "plain", "other"), ("configured", "plain")),
    "restricted": Server(
        (
            "--http-restricted-api=inference:infer-key=infer-value", f"--http-restricted-api={GROUPS}",
            "--grpc-restricted-protocol=inference:infer-key=infer-value", f"--grpc-restricted-protocol={GROUPS}",
        ),
        ("add", "versions"),
    ),
    "forward": Server(
        tuple(f"--{name}-header-forward-pattern=my_|^headers$|^timeout$" for name in ("http", "grpc")),
        ("echo_parameters",),
    ),
    "keepalive": Server(
        ("--grpc-keepalive-time=1000", "--grpc-http2-max-ping-strikes=0", "--grpc-max-connection-age=600000"),
        ("add", "slow"),
    ),
    "pings": Server(
        (
            "--grpc-keepalive-time=1000", "--grpc-keepalive-timeout=500", "--grpc-keepalive-permit-without-calls=true",
            "--grpc-http2-min-recv-ping-interval-without-data=200", "--grpc-http2-max-ping-strikes=2",
        ),
        ("add",),
    ),
    "silence": Server(("--grpc-keepalive-time=1000", "--grpc-keepalive-timeout=500"), ("add",)),
    "trace": Server(
        (
            "--trace-config=triton,file=trace.json", "--trace-config=triton,log-frequency=1", "--trace-config=rate=1",
            "--trace-config=level=TIMESTAMPS", "--trace-config=level=TENSORS",
        ),
        ("add",),
    ),
    "age": Server(("--grpc-max-connection-age=500", "--grpc-max-connection-age-grace=500"), ("add",)),
    **{
        level: Server((f"--grpc-infer-response-compression-level={level}",), ("add2",))
        for level in ("none", "low", "medium", "high")
    },
}  # fmt: skip


def write_repository(folder: Path, server: Server) -> Path:
    write_models(folder)
    x, y = ("x", "INT32", "1"), ("y", "INT32", "1")
    add = (folder / "add" / "1" / "model.py").read_text()
    four = [("a", "FP32", "4"), ("b", "FP32", "4"), ("sum", "FP32", "4"), ("difference", "FP32", "4")]
    for name in ("add2", "configured", "plain", "other"):
        _write(folder, name, add, four[:2], four[2:], "max_batch_size: 8")
    custom = (folder / "configured" / "config.pbtxt").read_text().replace("max_batch_size: 8", "max_batch_size: 4")
    (folder / "configured" / "configs").mkdir()
    (folder / "configured" / CUSTOM).write_text(custom)
    _write(folder, "ensemble", "", four[:2], four[2:3], "max_batch_size: 8\n" + ENSEMBLE)
    _write(folder, "echo_parameters", HEAD + ECHO_PARAMETERS, [x], [("parameters", "STRING", "1")])
    _write(
        folder,
        "optional",
        HEAD + OPTIONAL,
        [("a", "INT32", "1"), ("b", "INT32", "1 ] optional: true #")],
        [("c", "INT32", "1")],
    )
    decoupled = "model_transaction_policy { decoupled: true }"
    _write(folder, "repeat", HEAD + REPEAT, [("n", "INT32", "1")], [("m", "INT32", "1")], decoupled)
    _write(folder, "slow", HEAD + SLOW, [x], [y])
    steps = 'step [ { model_name: "slow" model_version: -1 input_map { key: "x" value: "x" }'
    steps = f'platform: "ensemble" ensemble_scheduling {{ {steps} output_map {{ key: "y" value: "y" }} }} ] }}'
    _write(folder, "slow_ensemble", "", [x], [y], steps)
    _write(folder, "zero", HEAD + ZERO, [x], [("y", "INT32", "-1")])
    _write(folder, "bad_config", "", [x], [y], "nix: 1")
    _write(folder, "no_version", "", [x], [y])
    shutil.rmtree(folder / "no_version" / "1")
    (folder / "no_config" / "1").mkdir(parents=True)
    for each in folder.iterdir():
        if server.models and each.name not in server.models:
            shutil.rmtree(each)
    return folder


def edit(repository: Path, file: str, source: str | None) -> None:
    """Remove a file, or write it: `@MODEL:N` is the configuration of a model with another maximum batch size."""
    path = repository / file
    if source is None:
        path.unlink()
        return
    model, _, size = source.removeprefix("@").partition(":")
    text = (repository / model / "config.pbtxt").read_text().replace("max_batch_size: 8", f"max_batch_size: {size}")
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def start_flags(server: Server) -> Sequence[str]:
    explicit = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in server.load)]
    return [*server.flags, *(explicit if server.load else [])]


def _write(
    folder: Path,
    name: str,
    source: str,
    inputs: Sequence[tuple[str, str, str]],
    outputs: Sequence[tuple[str, str, str]],
    more: str = "",
) -> None:
    (folder / name / "1").mkdir(parents=True)
    if source:
        (folder / name / "1" / "model.py").write_text(source)
    lines = [f'name: "{name}"', *([] if "ensemble" in more else ['backend: "python"']), more]
    for kind, tensors in (("input", inputs), ("output", outputs)):
        for tensor, datatype, dims in tensors:
            dims = f"{dims}\n" if "#" in dims else f"{dims} ]"
            lines.append(f'{kind} {{ name: "{tensor}" data_type: TYPE_{datatype} dims: [ {dims} }}')
    (folder / name / "config.pbtxt").write_text("\n".join(lines) + "\n")

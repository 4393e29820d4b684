"""The gRPC cases: small unary calls side by side, and how often a server holds a large request at once."""

import math
import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.environments import ROOT
from bench.load import BenchError, Load, parse
from bench.machine import Cores, on_core
from bench.models import IMAGE_SHAPE, IRIS_ROW
from bench.processes import Running, cpu_seconds
from bench.rpc_load import METHOD
from bench.subject import Figures, Subject

CONNECTIONS: Final = ((1, 1), (1, 8), (8, 8))  # rows of a request, connections
WARM_UP_S: Final = 1.0
PICTURES: Final = 32  # of 602 KB each: a message whose copies stand out from everything else that a server does
SENDINGS: Final = 3
UNLIMITED: Final = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


def grpc_load(subject: Subject, seconds: float) -> Figures:
    """Unary ModelInfer of the small classifier, tensors as bytes."""
    if not subject.server.grpc:
        return {}
    figures: Figures = {}
    with subject.serving("iris", grpc=True) as server:
        for rows, connections in CONNECTIONS:
            body, length = _prepared(subject, server, rows)
            _send(server, body, length, connections, WARM_UP_S, subject.cores)
            before = cpu_seconds(server.pid)
            load = _send(server, body, length, connections, seconds, subject.cores)
            cpu = cpu_seconds(server.pid) - before
            prefix = f"grpc.r{rows}c{connections}"
            figures |= {
                f"{prefix}.rps": load.rps,
                f"{prefix}.p50_ms": load.p50_ms,
                f"{prefix}.p99_ms": load.p99_ms,
                f"{prefix}.errors": load.errors,
                f"{prefix}.load_cpu": load.load_cpu,
                f"{prefix}.server_cpu": cpu / seconds,
                f"{prefix}.cpu_us": cpu / max(load.rps * seconds, 1) * 1e6,
            }
    return figures


def copies(subject: Subject, seconds: float) -> Figures:
    """What one request of 19 MB adds to the peak of the server's resident memory, in sizes of its message.

    1 is the message as it came from the network; every further copy that is held beside it counts one more.
    """
    if not subject.server.grpc:
        return {}
    pictures = np.random.default_rng(1).random((PICTURES, *IMAGE_SHAPE[1:]), np.float32)
    message = infer_message("image", pictures)
    with subject.serving("image", grpc=True) as server:
        _check(_first_answer(server, infer_message("image", pictures[:1])), list(pictures[0].mean(axis=(0, 1))))
        grown = [_peak_growth(server, message) / len(message) for _ in range(SENDINGS)]
    return {"copies.messages": statistics.median(grown)}


def infer_message(model: str, x: Any) -> bytes:
    """A ModelInferRequest as Triton's client writes it: tensors as bytes."""
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[x.tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=x.shape)
    return bytes(request.SerializeToString())


def _prepared(subject: Subject, server: Running, rows: int) -> tuple[Path, int]:
    """The request in a file, and the length of the answer, whose numbers must be those of onnxruntime itself."""
    message = infer_message("iris", np.array([IRIS_ROW] * rows, np.float32))
    body = subject.work / f"iris-{rows}.grpc"
    body.write_bytes(message)
    answer = _first_answer(server, message)
    _check(answer, list(subject.payloads["iris"].answer) * rows)
    return body, len(answer)


def _first_answer(server: Running, message: bytes) -> bytes:
    import grpc

    try:
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options=UNLIMITED) as channel:
            return bytes(channel.unary_unary(METHOD.decode())(message, timeout=30, wait_for_ready=True))
    except grpc.RpcError as error:
        raise BenchError(f"the first call gave {error.code().name}: {error.details()}") from None


def _check(answer: bytes, expected: Sequence[float]) -> None:
    from tritonclient.grpc import service_pb2

    response = service_pb2.ModelInferResponse.FromString(answer)
    raw = response.raw_output_contents
    values = np.frombuffer(raw[0], "<f4") if raw else response.outputs[0].contents.fp32_contents
    if len(values) != len(expected) or not all(map(_close, values, expected)):
        raise BenchError(f"the first call gave {list(values)}, onnxruntime itself gives {list(expected)}")


def _close(value: float, expected: float) -> bool:
    return math.isclose(value, expected, rel_tol=1e-4, abs_tol=1e-6)


def _send(server: Running, body: Path, length: int, connections: int, seconds: float, cores: Cores) -> Load:
    command = [sys.executable, "-m", "bench.rpc_load", str(server.grpc_port), str(connections), str(seconds)]
    before = _children_cpu()
    with on_core(cores.load):
        done = subprocess.run([*command, str(length), str(body)], capture_output=True, text=True, check=False, cwd=ROOT)
    load = parse(done.stdout + done.stderr)
    return replace(load, load_cpu=(_children_cpu() - before) / seconds)


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _peak_growth(server: Running, message: bytes) -> int:
    """Bytes; the kernel's own high-water mark is set back first."""
    process = Path(f"/proc/{server.pid}")
    (process / "clear_refs").write_text("5")
    before = _status_bytes(process, "VmRSS")
    _first_answer(server, message)
    return _status_bytes(process, "VmHWM") - before


def _status_bytes(process: Path, field: str) -> int:
    lines = (process / "status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))

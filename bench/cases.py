"""What is measured: one function per case, each from a fresh start of the server to a few named figures."""

import statistics
from collections.abc import Callable, Mapping

from bench.client_cases import python_client
from bench.huggingface_models import classifier_subjects, loop_rps
from bench.load import WARM_UP_S, BenchError, Target, send, send_beside_flood
from bench.machine import on_core
from bench.models import iris_payload
from bench.own_cases import copy_mb_s, imports_s, sink_mb_s, workers
from bench.processes import Running, alone_mb, cpu_seconds, settled_memory_mb
from bench.rpc_cases import copies, grpc_load
from bench.servers import OURS
from bench.subject import Figures, Subject, check_answer
from bench.table_models import TABLES

JSON_CONNECTIONS = (1, 32, 256)
BINARY_CONNECTIONS = (1, 8)
FLOOD_CONNECTIONS = 64
CROWD_CONNECTIONS = 256
TABLE_CONNECTIONS = 32
STARTS = 2


def json_load(subject: Subject, seconds: float) -> Figures:
    """Small requests as JSON, with growing concurrency; then each with an id of its own, so that no two are alike."""
    figures: Figures = {}
    with subject.serving("iris") as server:
        target = subject.target(server, "iris")
        send(target, JSON_CONNECTIONS[1], WARM_UP_S, subject.cores)
        for connections in JSON_CONNECTIONS:
            figures |= _measured(subject, server, target, connections, seconds, f"json.c{connections}")
        numbered = iris_payload(subject.models["iris"], numbered=True)
        check_answer(server.port, "iris", numbered)
        target = subject.target(server, "iris", numbered)
        figures |= _measured(subject, server, target, JSON_CONNECTIONS[1], seconds, "json.id")
    return figures


def binary_load(subject: Subject, seconds: float) -> Figures:
    """One large tensor as binary: how fast bytes reach the model."""
    if not subject.server.binary:
        return {}
    figures: Figures = {}
    with subject.serving("image") as server:
        target = subject.target(server, "image")
        send(target, BINARY_CONNECTIONS[1], WARM_UP_S, subject.cores)
        for connections in BINARY_CONNECTIONS:
            prefix = f"binary.c{connections}"
            figures |= _measured(subject, server, target, connections, seconds, prefix)
            figures[f"{prefix}.mb_s"] = figures[f"{prefix}.rps"] * len(target.payload.body) / 1e6
    return figures


def big_tensor(subject: Subject, seconds: float) -> Figures:
    """10 MB as binary on one connection, and for ours what this machine's memory and loopback would allow."""
    if not subject.server.binary:
        return {}
    with subject.serving("wide") as server:
        target = subject.target(server, "wide")
        send(target, 1, WARM_UP_S, subject.cores)
        figures = _measured(subject, server, target, 1, seconds, "big.c1")
    if not figures["big.c1.rps"]:
        raise BenchError(f"no answer to 10 MB came within {seconds:g} s")
    figures["big.c1.mb_s"] = figures["big.c1.rps"] * len(target.payload.body) / 1e6
    if subject.server.name == OURS:
        figures["big.sink_mb_s"] = sink_mb_s(subject, target, seconds)
        figures["big.copy_mb_s"] = copy_mb_s(len(target.payload.body), subject.cores)
        figures["big.sink_percent"] = 100 * figures["big.c1.mb_s"] / figures["big.sink_mb_s"]
    return figures


def start_time(subject: Subject, seconds: float) -> Figures:
    """From exec until the model's ready answer; the cases before have brought its files into the page cache."""
    times: list[float] = []
    for _ in range(STARTS):
        with subject.serving("iris") as server:
            times.append(server.ready_s)
    ours = {"start.imports_s": imports_s(subject)} if subject.server.name == OURS else {}
    return {"start.ready_s": statistics.mean(times), **ours}


def idle_memory(subject: Subject, seconds: float) -> Figures:
    """After the model is ready and has answered once."""
    with subject.serving("iris") as server:
        return {"memory.idle_mb": settled_memory_mb(server.pid, weigh=alone_mb)}


def fairness(subject: Subject, seconds: float) -> Figures:
    """What a flood on one model does to the p99 of another model in the same server."""
    with subject.serving("iris", "quiet") as server:
        quiet, flood = subject.target(server, "quiet"), subject.target(server, "iris")
        return _beside(subject, quiet, flood, FLOOD_CONNECTIONS, seconds, "fairness")


def crowded(subject: Subject, seconds: float) -> Figures:
    """What 256 connections do to the p99 of one more on the same model."""
    with subject.serving("iris") as server:
        target = subject.target(server, "iris")
        return _beside(subject, target, target, CROWD_CONNECTIONS, seconds, "crowd")


def tables(subject: Subject, seconds: float) -> Figures:
    """Files of scikit-learn, XGBoost and LightGBM, beside MLServer's runtimes: small requests, and the cold start."""
    if subject.server.name not in {OURS, "mlserver"}:
        return {}
    figures: Figures = {}
    for name in TABLES:
        with subject.serving(name) as server:
            figures[f"tables.{name}.ready_s"] = server.ready_s
            target = subject.target(server, name)
            send(target, TABLE_CONNECTIONS, WARM_UP_S, subject.cores)
            figures |= _measured(subject, server, target, TABLE_CONNECTIONS, seconds, f"tables.{name}")
    return figures


def huggingface(subject: Subject, seconds: float) -> Figures:
    """Text classifiers beside MLServer's runtime, which has the better of two rates: with and without batching."""
    figures: Figures = {}
    for batching, with_models in classifier_subjects(subject).items():
        for name, model in with_models.models.items():
            prefix = f"huggingface.{name}{batching}"
            with with_models.serving(name) as server:
                figures[f"{prefix}.ready_s"] = server.ready_s
                target = with_models.target(server, name)
                send(target, TABLE_CONNECTIONS, WARM_UP_S, subject.cores)
                figures |= _measured(subject, server, target, TABLE_CONNECTIONS, seconds, prefix)
            figures[f"huggingface.{name}.best_rps"] = max(
                figures[f"{prefix}.rps"], figures.get(f"huggingface.{name}.best_rps", 0.0)
            )
            if subject.server.name == OURS:
                with on_core(subject.cores.server):
                    figures[f"huggingface.{name}.loop_rps"] = loop_rps(
                        subject.environment, model, TABLE_CONNECTIONS, seconds
                    )
    return figures


CASES: Mapping[str, Callable[[Subject, float], Figures]] = {
    "json": json_load,
    "binary": binary_load,
    "big": big_tensor,
    "grpc": grpc_load,
    "copies": copies,
    "start": start_time,
    "memory": idle_memory,
    "fairness": fairness,
    "crowd": crowded,
    "workers": workers,
    "tables": tables,
    "python_client": python_client,
    "huggingface": huggingface,
}


def _measured(
    subject: Subject, server: Running, target: Target, connections: int, seconds: float, prefix: str
) -> Figures:
    before = cpu_seconds(server.pid)
    load = send(target, connections, seconds, subject.cores)
    return {
        f"{prefix}.server_cpu": (cpu_seconds(server.pid) - before) / seconds,
        f"{prefix}.rps": load.rps,
        f"{prefix}.p50_ms": load.p50_ms,
        f"{prefix}.p99_ms": load.p99_ms,
        f"{prefix}.errors": load.errors,
        f"{prefix}.load_cpu": load.load_cpu,
    }


def _beside(subject: Subject, quiet: Target, flood: Target, flooding: int, seconds: float, prefix: str) -> Figures:
    send(quiet, 1, WARM_UP_S, subject.cores)
    alone = send(quiet, 1, seconds, subject.cores)
    beside, flooded = send_beside_flood(quiet, flood, flooding, seconds, subject.cores)
    if not alone.rps or not beside.rps:
        raise BenchError(f"no answer came within {seconds:g} s beside {flooding} connections")
    return {
        f"{prefix}.alone_p50_ms": alone.p50_ms,
        f"{prefix}.beside_p50_ms": beside.p50_ms,
        f"{prefix}.alone_p99_ms": alone.p99_ms,
        f"{prefix}.beside_p99_ms": beside.p99_ms,
        f"{prefix}.factor": beside.p99_ms / alone.p99_ms,
        f"{prefix}.flood_rps": flooded.rps,
        f"{prefix}.errors": alone.errors + beside.errors + flooded.errors,
    }

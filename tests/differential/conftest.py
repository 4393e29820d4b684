"""Both servers with the same models, asked every case once and in order; tests look up what each of them said."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.differential.case import HttpCase, RpcCase
from tests.differential.differences import Aspects
from tests.differential.grpc_client import RpcAsking
from tests.differential.http_client import http_aspects
from tests.differential.models import AT_START, write_models
from tests.differential.tables import HTTP, RPC
from tests.differential.triton import Triton, running_triton
from tests.judges.gomodules import Unavailable
from tests.judges.verdict import absent
from tests.serving import RunningServer

Both = Mapping[str, tuple[Aspects, Aspects]]  # case → Triton's answer, ours


class Pair(NamedTuple):
    triton: Triton
    ours: RunningServer


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Each has a repository of its own: neither may disturb the other's files."""
    folder = tmp_path_factory.mktemp("differential")
    mine = ["--model-repository", str(write_models(folder / "ours")), "--compat", "triton", "--grpc-port", "0"]
    mine += ["--warmup", "none"]  # one of the models always fails
    mine += ["--model-control-mode", "explicit", *(f"--load-model={name}" for name in AT_START)]
    with ExitStack() as stack:
        yield Pair(_judge(stack, folder), stack.enter_context(RunningServer(folder, *mine)))


def _judge(stack: ExitStack, folder: Path) -> Triton:
    try:
        return stack.enter_context(running_triton(write_models(folder / "theirs"), AT_START, folder))
    except Unavailable as reason:
        absent(reason)


@pytest.fixture(scope="session")
def http_answers(pair: Pair) -> Both:
    return {case.name: _both(case, pair.triton.port, pair.ours.port) for case in HTTP}


def _both(case: HttpCase, theirs: int, ours: int) -> tuple[Aspects, Aspects]:
    return http_aspects(case, theirs), http_aspects(case, ours)


@pytest.fixture(scope="session")
def rpc_answers(pair: Pair) -> Both:
    listening: dict[str, Any] = pair.ours.wait_for_event("grpc.listening")
    theirs, ours = RpcAsking(pair.triton.grpc_port), RpcAsking(int(listening["grpc_port"]))
    try:
        return {case.name: _both_rpc(case, theirs, ours) for case in RPC}
    finally:
        theirs.close()
        ours.close()


def _both_rpc(case: RpcCase, theirs: RpcAsking, ours: RpcAsking) -> tuple[Aspects, Aspects]:
    return theirs.aspects(case), ours.aspects(case)

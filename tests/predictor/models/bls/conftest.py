"""One server with models written for Triton, and Triton's own clients for it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tests.predictor.models.bls.triton_models import write_models
from tests.serving import RunningServer

Ask = Callable[..., None]


@pytest.fixture(scope="session")
def triton_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("triton"))


@pytest.fixture(scope="session")
def triton_server(triton_repository: Path, serve_session: Callable[..., RunningServer]) -> RunningServer:
    return serve_session(triton_repository, "--grpc-port", "0", "--warmup", "none")


@pytest.fixture(scope="session")
def triton_address(triton_server: RunningServer) -> str:
    return f"127.0.0.1:{triton_server.wait_for_event('grpc.listening')['grpc_port']}"


@pytest.fixture
def triton_client(triton_address: str) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(triton_address) as made:
        yield made


class Stream:
    """ModelStreamInfer through Triton's client, and what came back."""

    def __init__(self, client: triton.InferenceServerClient) -> None:
        self._client = client
        self._heard: Queue[tuple[Any, Any]] = Queue()
        client.start_stream(lambda result, error: self._heard.put((result, error)))

    def ask(self, model: str, numbers: list[int], name: str = "", **fields: Any) -> None:
        self._client.async_stream_infer(model, [numbers_in(numbers)], request_id=name, **fields)

    def next(self) -> Any:
        """The next answer, or its error."""
        result, error = self._heard.get(timeout=20)
        return result.get_response() if error is None else error

    def until_final(self) -> list[Any]:
        answers = [self.next()]
        while not answers[-1].parameters["triton_final_response"].bool_param:
            answers.append(self.next())
        return answers

    def close(self, *, cancel: bool = False) -> None:
        self._client.stop_stream(cancel_requests=cancel)


@pytest.fixture
def stream(triton_client: triton.InferenceServerClient) -> Iterator[Stream]:
    made = Stream(triton_client)
    yield made
    made.close(cancel=True)


def numbers_in(numbers: list[int], name: str = "IN") -> triton.InferInput:
    made = triton.InferInput(name, [len(numbers)], "INT32")
    made.set_data_from_numpy(np.array(numbers, np.int32))
    return made


def number_of(response: Any, output: str = "OUT") -> int:
    index = [each.name for each in response.outputs].index(output)
    return int(np.frombuffer(response.raw_output_contents[index], np.int32)[0])

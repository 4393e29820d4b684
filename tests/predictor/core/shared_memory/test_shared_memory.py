"""System shared memory, judged by Triton's own clients and its own shared-memory library."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm
from tests.onnx_models import write_add_sub, write_identity
from tests.predictor.frontends.grpc.conftest import grpc_address
from tests.serving import RunningServer
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

Serve = Callable[..., RunningServer]
SIZE = 4096
A = np.arange(4, dtype=np.float32).reshape(1, 4)
B = np.ones((1, 4), np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, serve_module: Serve) -> RunningServer:
    repository = tmp_path_factory.mktemp("models")
    write_add_sub(repository, "add_sub", config="max_batch_size: 8")
    write_identity(repository, "words", "BYTES")
    return serve_module(repository, "--grpc-port", "0", "--allow-shared-memory")


@pytest.fixture(params=["http", "grpc"])
def library(request: pytest.FixtureRequest) -> Any:
    return triton_http if request.param == "http" else triton_grpc


@pytest.fixture
def client(server: RunningServer, library: Any) -> Iterator[Any]:
    with connected(server, library) as made:
        yield made
        made.unregister_system_shared_memory()


@contextmanager
def connected(server: RunningServer, library: Any) -> Iterator[Any]:
    address = server.address if library is triton_http else grpc_address(server)
    made = library.InferenceServerClient(address)
    yield made
    made.close()


@pytest.fixture
def region() -> Iterator[tuple[Any, str]]:
    """A handle of Triton's library, and the region's key."""
    key = f"/pilotlight_test_{os.getpid()}"
    handle = shm.create_shared_memory_region("data", key, SIZE)
    yield handle, key
    with suppress(shm.SharedMemoryException):
        shm.destroy_shared_memory_region(handle)


def shared_inputs(library: Any) -> list[Any]:
    a, b = (library.InferInput(name, [1, 4], "FP32") for name in "ab")
    a.set_shared_memory("data", 16)
    b.set_shared_memory("data", 16, offset=16)
    return [a, b]


def test_tensors_are_read_from_a_region_and_written_into_it(client: Any, library: Any, region: tuple[Any, str]) -> None:
    handle, key = region
    client.register_system_shared_memory("data", key, SIZE)
    shm.set_shared_memory_region(handle, [A, B])
    total = library.InferRequestedOutput("sum")
    total.set_shared_memory("data", 16, offset=64)
    difference = library.InferRequestedOutput("difference")
    answer = client.infer("add_sub", shared_inputs(library), outputs=[total, difference])
    assert shm.get_contents_as_numpy(handle, np.float32, [1, 4], offset=64).tolist() == (A + B).tolist()
    assert answer.as_numpy("difference").tolist() == (A - B).tolist()
    told = answer.get_output("sum")
    parameters = told["parameters"] if isinstance(told, dict) else _plain(told.parameters)
    place = {"shared_memory_region": "data", "shared_memory_byte_size": 16, "shared_memory_offset": 64}
    assert parameters == place


def _plain(parameters: Any) -> dict[str, Any]:
    return {key: getattr(value, value.WhichOneof("parameter_choice")) for key, value in parameters.items()}


def test_a_tensor_may_lie_in_a_region_and_another_in_the_request(
    client: Any, library: Any, region: tuple[Any, str]
) -> None:
    handle, key = region
    client.register_system_shared_memory("data", key, SIZE)
    shm.set_shared_memory_region(handle, [A])
    first = library.InferInput("a", [1, 4], "FP32")
    first.set_shared_memory("data", 16)
    second = library.InferInput("b", [1, 4], "FP32")
    second.set_data_from_numpy(B)
    assert client.infer("add_sub", [first, second]).as_numpy("sum").tolist() == (A + B).tolist()


def test_strings_lie_in_regions_too(client: Any, library: Any, region: tuple[Any, str]) -> None:
    handle, key = region
    client.register_system_shared_memory("data", key, SIZE)
    words = np.array([b"one", "zwölf".encode()], np.object_)
    shm.set_shared_memory_region(handle, [serialize_byte_tensor(words)])
    x = library.InferInput("x", [2], "BYTES")
    x.set_shared_memory("data", 4 + 3 + 4 + 6)
    y = library.InferRequestedOutput("y")
    y.set_shared_memory("data", 512, offset=1024)
    client.infer("words", [x], outputs=[y])
    assert shm.get_contents_as_numpy(handle, np.object_, [2], offset=1024).tolist() == words.tolist()


def test_regions_are_listed_and_forgotten(client: Any, region: tuple[Any, str]) -> None:
    _, key = region
    client.register_system_shared_memory("data", key, 100, offset=8)
    told = client.get_system_shared_memory_status()
    found = told if isinstance(told, list) else [_region(each) for each in told.regions.values()]
    assert found == [{"name": "data", "key": key, "offset": 8, "byte_size": 100}]
    client.get_system_shared_memory_status("data")
    client.unregister_system_shared_memory("data")
    with pytest.raises(InferenceServerException, match="Unable to find system shared memory region: 'data'"):
        client.get_system_shared_memory_status("data")


def _region(told: Any) -> dict[str, Any]:
    return {"name": told.name, "key": told.key, "offset": told.offset, "byte_size": told.byte_size}


def test_a_request_for_a_region_that_is_not_there_is_told(client: Any, library: Any) -> None:
    with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'data'"):
        client.infer("add_sub", shared_inputs(library))


@pytest.mark.parametrize(("offset", "size"), [(SIZE - 15, 16), (SIZE, 16), (0, SIZE + 1)])
def test_nothing_beyond_a_region_is_read(
    client: Any, library: Any, region: tuple[Any, str], offset: int, size: int
) -> None:
    client.register_system_shared_memory("data", region[1], SIZE)
    inputs = shared_inputs(library)
    inputs[0].set_shared_memory("data", size, offset=offset)
    with pytest.raises(InferenceServerException, match="Invalid offset"):
        client.infer("add_sub", inputs)


def test_an_output_that_does_not_fit_its_place_is_refused(client: Any, library: Any, region: tuple[Any, str]) -> None:
    client.register_system_shared_memory("data", region[1], SIZE)
    total = library.InferRequestedOutput("sum")
    total.set_shared_memory("data", 8, offset=64)
    with pytest.raises(InferenceServerException, match="at least 16 bytes"):
        client.infer("add_sub", shared_inputs(library), outputs=[total])


@pytest.mark.parametrize("key", ["", "/", "..", "/..", "/a/b", "../etc/passwd", "//etc", "a\0b", "x" * 300])
def test_only_names_of_shared_memory_objects_are_opened(server: RunningServer, key: str) -> None:
    answer = server.post("/v2/systemsharedmemory/region/r/register", {"key": key, "byte_size": 1})
    assert (answer.status, "key = " in answer.error) == (400, True)


def test_links_folders_and_short_objects_are_refused(server: RunningServer, region: tuple[Any, str]) -> None:
    link = Path("/dev/shm") / f"pilotlight_link_{os.getpid()}"
    folder = Path("/dev/shm") / f"pilotlight_folder_{os.getpid()}"
    link.symlink_to("/etc/hostname")
    folder.mkdir()
    try:
        for key, size in ((link.name, 1), (folder.name, 1), (region[1], SIZE + 1), (region[1], 0)):
            answer = server.post("/v2/systemsharedmemory/region/r/register", {"key": key, "byte_size": size})
            assert answer.status == 400, answer.body
    finally:
        link.unlink()
        folder.rmdir()


def test_a_name_is_registered_once(client: Any, region: tuple[Any, str]) -> None:
    client.register_system_shared_memory("data", region[1], SIZE)
    with pytest.raises(InferenceServerException, match="already in manager"):
        client.register_system_shared_memory("data", region[1], SIZE)


def test_a_region_that_was_made_shorter_harms_nobody(client: Any, library: Any, region: tuple[Any, str]) -> None:
    client.register_system_shared_memory("data", region[1], SIZE)
    os.truncate(f"/dev/shm{region[1]}", 0)
    with pytest.raises(InferenceServerException, match="shrank after it was registered"):
        client.infer("add_sub", shared_inputs(library))
    assert client.is_server_live()


def test_memory_of_a_gpu_is_refused_and_there_is_none_to_list(client: Any, library: Any) -> None:
    client.unregister_cuda_shared_memory()
    told = client.get_cuda_shared_memory_status()
    assert not (told if isinstance(told, list) else told.regions)
    with pytest.raises(InferenceServerException, match="Unable to find cuda shared memory region: 'gpu'"):
        client.get_cuda_shared_memory_status("gpu")
    with pytest.raises(InferenceServerException, match="memory of a GPU cannot be shared") as refused:
        client.register_cuda_shared_memory("gpu", b"aGFuZGxl", 0, 16)
    assert str(refused.value.status()) == ("501" if library is triton_http else "StatusCode.UNIMPLEMENTED")


def test_shared_memory_is_off_unless_it_is_allowed(zoo: Path, serve: Serve, library: Any) -> None:
    with connected(serve(zoo, "--grpc-port", "0"), library) as client:
        for call in (
            client.get_system_shared_memory_status,
            lambda: client.register_system_shared_memory("r", "/r", 1),
        ):
            with pytest.raises(InferenceServerException, match="--allow-shared-memory"):
                call()
        with pytest.raises(InferenceServerException, match="--allow-shared-memory"):
            client.infer("add_sub", shared_inputs(library))


def test_regions_are_for_admins(zoo: Path, serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    server = serve(zoo, "--allow-client-shm", "true", "--admin-token-file", str(tmp_path / "token"))
    assert server.get("/v2/systemsharedmemory/status").status == 403
    assert server.get("/v2/systemsharedmemory/status", {"Authorization": "Bearer secret"}).json() == []

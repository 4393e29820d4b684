"""The second round of attacks: on the control process by orgs and strangers, on admin rights, by ONNX files."""

import ctypes
import gzip
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest
from tests.embedded import FLOWER, IRIS, Platform
from tests.eventually import eventually
from tests.onnx_models import write_model
from tests.security.test_org_quotas import Attack
from tests.serving import RunningServer

from pilotlight.errors import UsageError
from pilotlight.microservices.registry.model_kinds import FILE
from pilotlight.targets.local.supervisor.isolation.model_copy import copy_model

pytestmark = pytest.mark.security
IP_LOCAL_PORT_RANGE = 51  # of Linux 6.3
NOBODY = 65534
BAR_S = 1.5  # a noisy machine; unmended each of these attacks took at least twice as long


@pytest.fixture(scope="module")
def attack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attack]:
    folder = tmp_path_factory.mktemp("orgs")
    env = {
        "PILOTLIGHT_MICROSERVICE_REGISTRY": str(folder / "registry.json"),
        "PILOTLIGHT_WORKSPACE_ROOTS": str(folder / "roots"),
    }
    with Platform(folder / "home", env) as platform:
        yield Attack(platform, folder / "roots")


@pytest.fixture(scope="module")
def microservice(attack: Attack) -> Iterator[str]:
    """The path of a microservice of the org evil, whose model is data alone."""
    model = attack.roots / "evil" / "model"
    model.mkdir()
    (model / "model.onnx").write_bytes(IRIS.read_bytes())
    at = attack.experiment()
    started = attack.ok("POST", f"{at}/inference_microservice/start", attack.train(at, "model/model.onnx"))
    job = f"{at}/jobs/{started['job_id']}/inference_microservice"
    eventually(lambda: attack.ok("GET", f"{job}/status")["model_loaded"], "the model", pause_s=0.1)
    yield job
    attack.ok("POST", f"{job}/stop")


def longest_stall(port: int, act: Callable[[], object]) -> float:
    """Return the longest time that /healthz took while `act` ran."""
    ended, worst = threading.Event(), 0.0

    def run() -> None:
        try:
            act()
        finally:
            ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    while not ended.wait(0.01):
        before = time.monotonic()
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        connection.close()
        worst = max(worst, time.monotonic() - before)
    thread.join()
    return worst


def test_a_request_of_many_lists_does_not_stall_the_control_process(attack: Attack, microservice: str) -> None:
    assert attack.ask("POST", f"{microservice}/inference", FLOWER).status == 200
    body = b'{"inputs":[' + b"[]," * (4 << 20) + b"1]}"
    statuses: list[int] = []
    stall = longest_stall(
        attack.platform.address.port,
        lambda: statuses.append(attack.ask("POST", f"{microservice}/inference", body).status),
    )
    assert (statuses, stall < BAR_S) == ([400], True), stall


def test_what_lies_in_place_of_the_parameters_is_not_told_and_blocks_nobody(attack: Attack, microservice: str) -> None:
    file, secret = attack.roots / "evil" / "model" / FILE, attack.roots / "secret"
    secret.write_text("root:*:20228:0:99999:7:::")
    file.symlink_to(secret)
    reply = attack.ask("POST", f"{microservice}/inference", FLOWER)
    assert (reply.status, b"root" in reply.body) == (400, False), reply.body
    file.unlink()
    os.mkfifo(file)
    assert [attack.ask("POST", f"{microservice}/inference", FLOWER).status for _ in range(3)] == [400] * 3
    file.unlink()
    assert attack.ask("POST", f"{microservice}/inference", FLOWER).status == 200


def test_a_stranger_neither_stalls_nor_breaks_the_login(attack: Attack) -> None:
    def login(body: bytes, **headers: str) -> int:
        connection = HTTPConnection("127.0.0.1", attack.platform.address.port, timeout=60)
        with suppress(BrokenPipeError):
            connection.request("POST", "/api/v1/login", body, headers)
        status = connection.getresponse().status
        connection.close()
        return status

    packed = gzip.compress(bytes(1 << 29), 1)
    statuses: list[int] = []
    stall = longest_stall(
        attack.platform.address.port, lambda: statuses.append(login(packed, **{"Content-Encoding": "gzip"}))
    )
    assert (statuses, stall < BAR_S) == ([415], True), stall
    assert login(b'{"ngc_key": "a", "ngc_org_name": ' + b"[" * 3000) == 400
    assert "Traceback" not in attack.platform.log()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("half_closed", [False, True], ids=["closed", "half closed"])
def test_the_port_of_another_connection_makes_no_admin(tmp_path: Path, half_closed: bool) -> None:
    """The attacker's connection has ended, and one of the operator's, to another server, has the same port."""
    model = tmp_path / "models" / "iris" / "1"
    model.mkdir(parents=True)
    (model / "model.onnx").write_bytes(IRIS.read_bytes())
    flags = ("--model-repository", str(tmp_path / "models"), "--model-control-mode", "explicit", "--load-model", "iris")
    head = b"POST /v2/repository/models/iris/unload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
    with (
        RunningServer(tmp_path, *flags) as server,
        socket.create_server(("127.0.0.1", 0)) as other,
        socket.create_connection(other.getsockname()) as own,
    ):
        port = own.getsockname()[1]
        pid = os.fork()
        if pid == 0:
            try:
                os.setresuid(NOBODY, NOBODY, NOBODY)
                connection = socket.socket()
                connection.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("I", port << 16 | port))
                connection.connect(("127.0.0.1", server.port))
                connection.sendall(head)
                connection.shutdown(socket.SHUT_WR) if half_closed else connection.close()
                if half_closed:
                    connection.settimeout(10)
                    connection.recv(100)
            except OSError:
                os._exit(1)
            finally:
                os._exit(0)
        if os.waitpid(pid, 0)[1]:
            pytest.skip("this kernel does not let a client choose its port so")
        assert server.infer("iris", FLOWER).status == 200


@pytest.mark.parametrize("location", ["../secret", "sub/../../secret", "/ABSOLUTE/secret", "link"])
def test_external_data_of_an_onnx_model_stays_in_its_folder(tmp_path: Path, location: str) -> None:
    import onnxruntime
    from onnx import TensorProto, helper

    (tmp_path / "secret").write_text("opens everything")
    (tmp_path / "model" / "sub").mkdir(parents=True)
    (tmp_path / "model" / "link").symlink_to(tmp_path / "secret")
    tensor = TensorProto(name="w", data_type=TensorProto.UINT8, dims=[8], data_location=TensorProto.EXTERNAL)
    place = location.replace("/ABSOLUTE", str(tmp_path))
    for key, value in (("location", place), ("offset", "0"), ("length", "8")):
        tensor.external_data.add(key=key, value=value)
    ends = [helper.make_tensor_value_info(name, TensorProto.UINT8, [8]) for name in "xy"]
    node = helper.make_node("BitwiseXor", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "spy", ends[:1], ends[1:], [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    file = tmp_path / "model" / "model.onnx"
    file.write_bytes(model.SerializeToString())
    with pytest.raises(Exception, match=r"(?i)external data"):
        onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])


def test_a_link_in_place_of_the_model_during_its_start_serves_nobody_elses(attack: Attack) -> None:
    theirs = write_model(
        attack.roots / "acme", "private", [("Identity", ["x"], ["theirs"])],
        {"x": ("FP32", ("n", 4))}, {"theirs": ("FP32", ("n", 4))},
    )  # fmt: skip
    model, link = attack.roots / "evil/swapped/model.onnx", attack.roots / "evil/swapped/link"
    model.parent.mkdir()
    model.write_bytes(IRIS.read_bytes())
    link.symlink_to(theirs / "1/model.onnx")
    at = attack.experiment()
    copies, before = attack.platform.home.copies, set(attack.platform.home.copies.glob("*"))
    job_id = attack.ok("POST", f"{at}/inference_microservice/start", attack.train(at, "swapped/model.onnx"))["job_id"]
    # All checks of the API are done when a copy is begun, and its process is yet to read the model.
    eventually(lambda: set(copies.glob("*")) - before, "the copy", pause_s=0.0005)
    link.replace(model)
    job = f"{at}/jobs/{job_id}/inference_microservice"

    def settled() -> bool:
        status = attack.ok("GET", f"{job}/status")
        return bool(status["model_loaded"]) or status["status"] == "error"

    eventually(settled, "the end of its start", pause_s=0.1)
    model.unlink()
    model.write_bytes(IRIS.read_bytes())  # since the path is checked with each request
    assert b"theirs" not in attack.ask("POST", f"{job}/inference", FLOWER).body
    attack.ok("POST", f"{job}/stop")
    assert set(copies.glob("*")) == before


@pytest.mark.parametrize("swapped", ["model", "model/1", "model/1/model.onnx"])
def test_links_that_come_and_go_while_a_model_is_copied_are_not_followed(tmp_path: Path, swapped: str) -> None:
    for org in ("evil", "acme"):
        (tmp_path / org / "model/1").mkdir(parents=True)
        (tmp_path / org / "model/1/model.onnx").write_text(org)
    link, ended = tmp_path / "evil/link", threading.Event()
    link.symlink_to(tmp_path / "acme" / swapped)

    def swap() -> None:
        libc, exchange, here = ctypes.CDLL(None), 2, -100
        first, second = os.fsencode(link), os.fsencode(tmp_path / "evil" / swapped)
        while not ended.is_set():
            assert libc.renameat2(here, first, here, second, exchange) == 0

    thread, outcomes = threading.Thread(target=swap), []
    thread.start()
    try:
        for number in range(400):
            try:
                copy = copy_model(tmp_path / "evil/model/1/model.onnx", tmp_path / str(number), sandboxed=False)
                outcomes.append(copy.read_text())
            except UsageError:
                outcomes.append("refused")
    finally:
        ended.set()
        thread.join()
    assert set(outcomes) == {"evil", "refused"}

"""The ways to a service on one machine: path, Host, a port of its own, IPv6; and what travels them, large or slow."""

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from tests import ipv6
from tests.e2e.embedded.models import python_service, slow, write_model
from tests.embedded import FLOWER, Platform, serverless
from tests.http_reply import Reply
from tests.ports import free_range

from pilotlight.errors import PlatformError

INFER = "/v2/models/iris/infer"
ECHO = """
INPUTS = {"x": ("FP32", [1, -1])}
OUTPUTS = {"y": ("FP32", [1, -1])}


def predict(x):
    return x + 1
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    home = tmp_path_factory.mktemp("shared") / "home"
    with Platform(home, flags=("--service-ports", str(free_range(20)))) as running:
        running.deploy(serverless())
        running.wait_phase("Ready")
        running.wait(lambda: "port" in running.status().urls, "its own port")
        yield running


def own_port(platform: Platform, name: str = "iris") -> int:
    return int(platform.status(name).urls["port"].rpartition(":")[2])


def asked(port: int, path: str, body: bytes, headers: dict[str, str], host: str = "127.0.0.1") -> Reply:
    connection = HTTPConnection(host, port, timeout=100)
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    reply = Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    connection.close()
    return reply


@pytest.mark.parametrize("host", ["iris.default.localhost", "iris.default", "iris.default.svc.cluster.local"])
def test_a_host_name_leads_to_its_service_whatever_its_port_and_case(platform: Platform, host: str) -> None:
    for written in (host, f"{host}:{platform.address.gateway_port}", host.upper()):
        assert platform.ask(INFER, headers={"Host": written}).status == 200


def test_a_service_has_a_port_of_its_own_which_it_keeps(platform: Platform) -> None:
    port = own_port(platform)
    assert asked(port, INFER, json.dumps(FLOWER).encode(), {}).status == 200
    platform.deploy(serverless("second"))
    platform.wait_phase("Ready", name="second")
    platform.wait(lambda: "port" in platform.status("second").urls, "the second one's port")
    assert own_port(platform, "second") != port
    assert asked(own_port(platform, "second"), INFER, json.dumps(FLOWER).encode(), {}).status == 404
    platform.target.delete(("default", "second"))
    for _ in range(3):
        platform.kill_control()
        platform.start()
        again = f"http://127.0.0.1:{port}"
        platform.wait(lambda: platform.status().urls.get("port") == again, "its port, told again")  # noqa: B023
        assert asked(port, INFER, json.dumps(FLOWER).encode(), {}).status == 200


@pytest.mark.skipif(not ipv6.available(), reason="this machine has no IPv6")
def test_localhost_may_mean_either_address(platform: Platform) -> None:
    for port, path in ((platform.address.gateway_port, f"/iris{INFER}"), (own_port(platform), INFER)):
        assert asked(port, path, json.dumps(FLOWER).encode(), {}, host="::1").status == 200


@pytest.mark.parametrize("path", ["/iris", "/iris/", "/default/iris", "/default/iris/"])
def test_a_path_without_a_rest_reaches_the_root_of_the_service(platform: Platform, path: str) -> None:
    straight = asked(own_port(platform), "/", b"{}", {})
    reached = platform.ask(path, {})
    assert (reached.status, reached.body) == (straight.status, straight.body)


def test_who_asks_for_nobody_is_told_so(platform: Platform) -> None:
    assert platform.ask(f"/nobody{INFER}").status == 404
    assert platform.ask(f"/iris@nothing{INFER}").status == 404
    assert platform.ask("/healthz", None).body == b"ok\n"


@pytest.mark.parametrize("name", ["v1", "v2", "api", "metrics", "console", "healthz"])
def test_names_of_the_gateways_own_paths_are_refused(platform: Platform, name: str) -> None:
    with pytest.raises(PlatformError, match=f"{name}.*choose another"):
        platform.deploy(serverless(name))


def test_eight_mebibytes_pass_both_ways_as_they_are(platform: Platform, tmp_path: Path) -> None:
    platform.deploy(python_service(write_model(tmp_path, ECHO), name="echo"))
    platform.wait_phase("Ready", name="echo")
    count = 2 << 20
    data = bytes([0, 0, 128, 63]) * count  # 1.0 as FP32
    inputs = [{"name": "x", "shape": [1, count], "datatype": "FP32", "parameters": {"binary_data_size": len(data)}}]
    asks = {"inputs": inputs, "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    head = json.dumps(asks).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    reply = asked(platform.address.gateway_port, "/echo/v2/models/echo/infer", head + data, headers)
    assert reply.status == 200, reply.body[:300]
    length = int(reply.headers["inference-header-content-length"])
    assert reply.body[length:] == bytes([0, 0, 0, 64]) * count  # 2.0
    platform.target.delete(("default", "echo"))


@pytest.mark.long
def test_a_request_of_more_than_a_minute_is_answered_through_a_quiet_connection(
    platform: Platform, tmp_path: Path
) -> None:
    platform.deploy(python_service(write_model(tmp_path)))
    platform.wait_phase("Ready", name="slow")
    body = json.dumps(slow(65.0)).encode()
    assert asked(platform.address.gateway_port, "/slow/v2/models/slow/infer", body, {}).status == 200

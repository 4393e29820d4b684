"""A real Prometheus as canaries ask it: what it answers, and every way in which it does not."""

import json
import math
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from pilotlight.errors import PlatformError
from pilotlight.prometheus import client
from pilotlight.prometheus.client import query_prometheus, unavailable_reason
from pilotlight.targets.local.control_process_launcher import Address
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.target import Sample
from pilotlight.wire.environments.install_command import install_command
from platformctl.commands.platform.up import prometheus_line
from platformctl.doctor import local_checks

VECTOR = [
    {"metric": {"__name__": "up", "pod": "a"}, "value": [1700000000.5, "3"]},
    {"metric": {"pod": "b"}, "value": [1700000000.5, "NaN"]},
]
ANSWERS = {
    "up": (200, {"status": "success", "data": {"resultType": "vector", "result": VECTOR}}),
    "1": (200, {"status": "success", "data": {"resultType": "scalar", "result": [1700000000, "1"]}}),
    "7": (200, {"status": "success", "data": {"resultType": "scalar", "result": [1700000000, "7"]}}),
    "none": (200, {"status": "success", "data": {"resultType": "vector", "result": []}}),
    "up{": (400, {"status": "error", "errorType": "bad_data", "error": "unclosed left brace"}),
}


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer(urlsplit(self.path).query)

    def do_POST(self) -> None:
        self.answer(self.rfile.read(int(self.headers["content-length"])).decode())

    def answer(self, form: str) -> None:
        query = parse_qs(form)["query"][0]
        code, document = ANSWERS.get(query, (200, None))
        body = json.dumps(document).encode() if document is not None else b"<html>not me</html>"
        self.send_response(code)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is slow."""
    monkeypatch.setattr(client, "TIMEOUT_S", 60.0)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Page) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_every_element_comes_with_its_labels(server: str) -> None:
    first, second = query_prometheus(server, "up")
    assert first == Sample({"pod": "a"}, 3.0, 1700000000.5)
    assert (second.labels, math.isnan(second.value)) == ({"pod": "b"}, True)


def test_one_number_is_a_sample_without_labels(server: str) -> None:
    assert query_prometheus(server, "7") == [Sample({}, 7.0, 1700000000.0)]


def test_nothing_is_an_answer_too(server: str) -> None:
    assert query_prometheus(server, "none") == []


def test_a_query_that_it_cannot_read_is_told_in_its_words(server: str) -> None:
    with pytest.raises(PlatformError, match=r"rejected the query: .*unclosed left brace"):
        query_prometheus(server, "up{")


def test_what_is_no_prometheus_is_named(server: str) -> None:
    with pytest.raises(PlatformError, match=r"Prometheus at http://127\.0\.0\.1:\d+ cannot be queried"):
        query_prometheus(server, "anything else")


def test_nobody_at_that_address_is_named() -> None:
    with pytest.raises(PlatformError, match="cannot be queried"):
        query_prometheus("http://127.0.0.1:9", "up")


def test_what_is_missing_to_ask_it_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_api_client", None)
    with pytest.raises(PlatformError, match=re.escape(install_command("prometheus"))):
        query_prometheus("http://127.0.0.1:9", "up")


def test_whether_it_answers_is_asked(server: str) -> None:
    assert unavailable_reason(server) == ""
    assert "refused" in unavailable_reason("http://127.0.0.1:9")
    assert prometheus_line(server) == f"Prometheus answers at {server}"
    assert prometheus_line("http://127.0.0.1:9").startswith("Prometheus at http://127.0.0.1:9 does not answer: ")


def address(prometheus: str) -> Address:
    return Address(2, 3, "1", 1, 4, prometheus)


def test_doctor_checks_it_without_a_client_library(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_api_client", None)
    assert local_checks.prometheus(Home(tmp_path), address(server)).level == "ok"


def test_doctor_says_to_stop_a_running_platform_before_one_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "prometheus"
    program.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    started = f"platformctl up --prometheus starts {program}"
    assert local_checks.prometheus(Home(tmp_path), None).message == f"not running; {started}"
    assert local_checks.prometheus(Home(tmp_path), address("")).message == (
        f"not running; platformctl down, then {started}"
    )


def test_doctor_says_that_nothing_answers_there(tmp_path: Path) -> None:
    found = local_checks.prometheus(Home(tmp_path), address("http://127.0.0.1:9"))
    assert found.level == "warn"
    assert "does not answer" in found.message

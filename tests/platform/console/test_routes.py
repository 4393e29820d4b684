"""Who may ask the console's routes, over HTTP as a browser and as an attacker would."""

import asyncio
import json
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from tests.platform.api.conftest import TOKEN, Served

from pilotlight.console import areas, routes
from pilotlight.console.sessions import HEADER_PROOF, POLICY, cookie_name, is_same_origin
from pilotlight.control_plane.app import AREAS

HOST = "127.0.0.1:8091"
MIRRORED = [
    (route.method, route.path.replace("{path:v[12]/.*}", "v2/models").format(namespace="a", name="b"))
    for area in areas(AREAS)
    if area.name in ("console", "console reading")
    for route in area.routes
]


@dataclass
class Visitor:
    """A browser's part of HTTP: its cookies, and the headers that it adds by itself."""

    port: int
    cookie: str = ""
    proof: str = ""
    answered: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, body: Any = None, **changed: str | None) -> tuple[int, Any]:
        own = {
            "Origin": f"http://127.0.0.1:{self.port}", "Sec-Fetch-Site": "same-origin", "Cookie": self.cookie,
            HEADER_PROOF: self.proof,
        }  # fmt: skip
        headers = {**own, **{name.replace("_", "-"): value for name, value in changed.items()}}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {name: text for name, text in headers.items() if text})
            answer = connection.getresponse()
            self.answered = {name.lower(): value for name, value in answer.getheaders()}
            text = answer.read().decode()
            if self.answered.get("content-type") == "application/x-ndjson":
                return answer.status, [json.loads(line) for line in text.splitlines()]
            return answer.status, json.loads(text) if text.startswith(("{", "[")) else text
        finally:
            connection.close()

    def enter(self, token: str = TOKEN, **changed: str | None) -> int:
        status, told = self.ask("POST", "/console/api/login", {"token": token}, **changed)
        if status == 200:
            self.cookie, self.proof = self.answered["set-cookie"].partition(";")[0], told["proof"]
        return status


@pytest.fixture
def visitor(api: Served) -> Visitor:
    return Visitor(api.port)


@pytest.mark.parametrize(
    ("method", "origin", "site", "passes"),
    [
        ("GET", None, "", True),
        ("GET", None, "same-origin", True),
        ("GET", None, "none", True),  # typed into the address bar
        ("GET", None, "same-site", False),  # a page on another port of this machine
        ("GET", None, "cross-site", False),
        ("GET", "http://evil.example", "", False),
        ("POST", None, "same-origin", False),  # every browser names the origin of what changes something
        ("POST", f"http://{HOST}", "same-origin", True),
        ("PUT", f"http://{HOST}", "", True),
        ("DELETE", "http://127.0.0.1:8090", "same-site", False),
        ("POST", "http://127.0.0.1:8090", "", False),
        ("POST", "null", "cross-site", False),
        ("POST", f"http://{HOST}.evil.example", "", False),
    ],
)
def test_only_our_own_page_passes(method: str, origin: str | None, site: str, passes: bool) -> None:
    assert is_same_origin(method, origin, site, HOST) is passes


def test_two_platforms_on_one_machine_have_two_cookies() -> None:
    assert cookie_name("127.0.0.1:8091") != cookie_name("127.0.0.1:9091")
    assert cookie_name("localhost") == cookie_name("[::1]") == "pilotlight_console"


def test_the_token_opens_a_session_whose_cookie_no_script_reads_and_no_other_site_sends(visitor: Visitor) -> None:
    assert visitor.enter() == 200
    words = {word.strip().lower() for word in visitor.answered["set-cookie"].split(";")}
    assert {"httponly", "samesite=strict", "path=/console"} <= words
    assert "secure" not in words  # it is plain HTTP on loopback; TLS adds it
    assert visitor.ask("GET", "/console/api/session")[0] == 200


def test_a_proxy_that_ends_tls_leaves_the_cookie_secure(visitor: Visitor) -> None:
    assert visitor.enter(Origin=f"https://127.0.0.1:{visitor.port}") == 200
    assert "secure" in visitor.answered["set-cookie"].lower()


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x"])
def test_a_wrong_token_opens_nothing(visitor: Visitor, token: str) -> None:
    assert visitor.enter(token) == 401
    assert "set-cookie" not in visitor.answered


@pytest.mark.parametrize("origin", [None, "http://evil.example", "http://127.0.0.1:1", "null"])
def test_no_other_page_can_log_somebody_in(visitor: Visitor, origin: str | None) -> None:
    assert visitor.enter(Origin=origin) == 403


@pytest.mark.parametrize(("method", "path"), MIRRORED)
def test_no_route_is_open_without_a_session(visitor: Visitor, method: str, path: str) -> None:
    assert visitor.ask(method, path)[0] == 401
    visitor.enter()
    assert visitor.ask(method, path, **{HEADER_PROOF: None})[0] == 401  # the cookie alone
    assert visitor.ask(method, path, Cookie=None)[0] == 401  # the proof alone
    assert visitor.ask(method, path, Cookie=None, **{HEADER_PROOF: None}, Authorization=f"Bearer {TOKEN}")[0] == 401


def test_a_forged_change_is_refused_though_the_browser_sends_the_cookie(api: Served, visitor: Visitor) -> None:
    visitor.enter()
    path = "/console/api/v1/namespaces/default/services/iris/scale"
    forged = visitor.ask("PUT", path, {"maxReplicas": 0}, Origin="http://127.0.0.1:8090", Sec_Fetch_Site="same-site")
    assert forged[0] == 403
    assert "does not come from the console" in forged[1]["error"]
    assert not api.engine.bounds


def test_who_logs_out_is_out(visitor: Visitor) -> None:
    visitor.enter()
    assert visitor.ask("DELETE", "/console/api/session")[0] == 200
    assert visitor.ask("GET", "/console/api/session")[0] == 401


def test_a_link_logs_in_once(api: Served, visitor: Visitor) -> None:
    ticket = api.target.console().ticket
    assert visitor.enter(ticket) == 200
    assert visitor.enter(ticket) == 401


def test_a_read_only_session_sees_services_and_changes_nothing(api: Served, visitor: Visitor) -> None:
    assert visitor.enter(api.target.console(read_only=True).ticket) == 200
    assert visitor.ask("GET", "/console/api/session")[1]["read_only"] is True
    assert visitor.ask("GET", "/console/api/v1/services")[0] == 200
    for method, path in MIRRORED:
        if method != "GET" and not path.endswith(("/session", "/query_range")) and "/ask/" not in path:
            assert visitor.ask(method, path)[0] == 403, (method, path)
    for path in ("live", "releases", "manifest"):  # which may hold Secrets
        assert visitor.ask("GET", f"/console/api/v1/namespaces/default/services/iris/{path}")[0] == 403
    assert visitor.ask("DELETE", "/console/api/session")[0] == 200


def test_a_session_makes_no_tickets(visitor: Visitor) -> None:
    visitor.enter()
    assert visitor.ask("POST", "/api/v1/console/tickets", {})[0] == 401


def test_the_page_cannot_end_the_platform(api: Served, visitor: Visitor) -> None:
    visitor.enter()
    assert visitor.ask("POST", "/console/api/v1/shutdown", {})[0] in (401, 404)
    assert not api.drained


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/console", 200), ("/console/static/app.js", 200), ("/console/static/nothing.js", 404),
        ("/console/api/session", 401), ("/console/nowhere", 401),
    ],
)  # fmt: skip
def test_every_reply_has_the_policy(visitor: Visitor, path: str, status: int) -> None:
    assert visitor.ask("GET", path)[0] == status
    assert visitor.answered["content-security-policy"] == POLICY
    assert visitor.answered["x-content-type-options"] == "nosniff"
    assert visitor.answered["x-frame-options"] == "DENY"
    assert "unsafe" not in POLICY


@pytest.mark.parametrize(
    "path",
    [
        "/console/static/..%2froutes.py", "/console/static/../routes.py", "/console/static/%2e%2e/sessions.py",
        "/console/static/..%2f..%2fapi%2fstatic%2fdocs.html", "/console/static/%2fetc%2fpasswd", "/console/static/",
    ],
)  # fmt: skip
def test_only_files_of_the_page_are_served(visitor: Visitor, path: str) -> None:
    assert visitor.ask("GET", "/console/static/app.js")[0] == 200
    assert visitor.ask("GET", path)[0] == 401, "no route without a token matches"


@pytest.mark.parametrize("name", ["../routes.py", "../../api/static/docs.html", "/etc/hosts.html", "", ".."])
def test_a_file_outside_the_folder_is_not_found_though_a_route_matched(name: str) -> None:
    assert asyncio.run(routes.file(make_mocked_request("GET", "/", match_info={"file": "app.js"}))).status == 200
    with pytest.raises(web.HTTPNotFound):
        asyncio.run(routes.file(make_mocked_request("GET", "/", match_info={"file": name})))


def test_another_host_is_refused_here_too(visitor: Visitor) -> None:
    assert visitor.ask("GET", "/console", Host="evil.example")[0] == 403


def test_no_more_of_a_login_is_read_than_one_can_have(visitor: Visitor) -> None:
    assert visitor.enter("x" * 5000) == 413

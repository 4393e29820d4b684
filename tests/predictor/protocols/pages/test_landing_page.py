"""The page at /: for browsers only, true in every line, deaf to attacks, silent to strangers."""

import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.onnx_models import write_identity, write_python
from tests.predictor.protocols.pages.conftest import ATTACK, EVIL_TENSOR
from tests.serving import Answer, RunningServer

from pilotlight_predictor.protocols.pages.landing_page import address

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"}
ALIVE = {"status": "alive"}
VOID = frozenset({"meta", "link", "img", "br"})


class Page(HTMLParser):
    """Lines of `code` elements by class and model, all elements, and their attributes."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: set[str] = set()
        self.calls: dict[tuple[str, str], str] = {}
        self.heading = ""
        self._open: list[tuple[str, str]] = []
        self.feed(answer.body.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self._open.append((tag, dict(attrs).get("class") or ""))
        if tag == "h2":
            self.heading = ""

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self._open]
        if "h2" in tags:
            self.heading += data
        kind = next((of for tag, of in self._open if tag == "code"), "")
        if kind:
            self.calls[kind, self.heading] = self.calls.get((kind, self.heading), "") + data


def page_of(server: RunningServer, headers: dict[str, str] | None = None) -> Page:
    answer = server.get("/", {**BROWSER, **(headers or {})})
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    return Page(answer)


@pytest.mark.parametrize(
    "accept",
    ["", "*/*", "application/json", "text/html;q=0.5, application/json", "text/html;q=0, */*", "text/html, */*",
     "text/html;q=x", "text/html;q=", "text/html;q=nan", "text/html;q=\xb2", "application/json, text/html"],
)  # fmt: skip
def test_clients_that_do_not_prefer_html_get_the_status_of_v1(server: RunningServer, accept: str) -> None:
    answer = server.get("/", {"Accept": accept} if accept else {})
    assert (answer.status, answer.json()) == (200, ALIVE)


MODELS = (
    "add_sub",
    "example",
    "echo",
    "flowers",
    "image",
    "sequence",
    "twice",
    "counts",
    "lengths",
    "tiny",
    "plain",
    ATTACK,
)


@pytest.mark.parametrize("name", MODELS)
def test_the_curl_line_of_a_model_is_answered(pages: RunningServer, name: str) -> None:
    lines = page_of(pages).calls["curl", name]
    done = subprocess.run(["bash", "-c", f'curl() {{ command curl -fsS "$@"; }}\n{lines}'], capture_output=True)
    assert done.returncode == 0, (lines, done.stderr)
    answer = done.stdout.decode()
    assert "model_version" in answer or '"object"' in answer, answer[:300]
    assert "uid=" not in answer


@pytest.mark.parametrize("name", MODELS)
def test_the_python_lines_of_a_model_are_answered(pages: RunningServer, name: str) -> None:
    program = page_of(pages).calls["python", name]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, (program, done.stderr[-2000:])
    assert done.stdout.strip()
    assert ("pilotlight.Client" in program) == (name not in {"sequence", "counts", "lengths", "tiny", "plain"})
    assert ("openai" in program) == (name in {"lengths", "tiny", "plain"})


def test_names_of_models_tensors_and_hosts_are_text(pages: RunningServer) -> None:
    evil = '"><script>alert(3)</script>'
    forwarded = {f"X-Forwarded-{name}": evil for name in ("Host", "Prefix", "Proto", "For")}
    answers = [pages.get("/", BROWSER), pages.get("/", {**BROWSER, **forwarded})]
    for answer in answers:
        page, text = Page(answer), answer.body.decode()
        assert page.elements.count("script") == 1  # our own
        assert not {"img", "iframe"} & set(page.elements)
        assert not [name for name in page.attributes if name.startswith("on")]
        assert ATTACK not in text
        assert EVIL_TENSOR not in text
        assert "alert(3)" not in text
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy


@pytest.mark.parametrize("host", ["a$(id)", "a'b", 'a"b', "a b", "<b>", "a\nb", "ä", "[::1]'", "a:b", "a:1234567", ""])
def test_a_host_that_is_no_name_and_port_is_not_shown(host: str) -> None:
    assert address({"host": host, "x-forwarded-proto": "https'"}, tls=False) == "http://localhost"


@pytest.mark.parametrize("host", ["models.example.com", "127.0.0.1:8080", "[::1]:8080", "xn--4ca"])
def test_the_address_is_the_one_that_the_client_used(host: str) -> None:
    assert address({"host": host}, tls=False) == f"http://{host}"
    assert address({"host": host}, tls=True) == address({"host": host, "x-forwarded-proto": "https"}, tls=False)
    assert address({"host": host, "x-forwarded-prefix": "/a/b@next/"}, tls=False) == f"http://{host}/a/b@next"
    for prefix in ("/", "iris", "/a'b", "/a$(id)", "//a", "/a/b?", "/<b>", "/a, /b"):
        assert address({"host": host, "x-forwarded-prefix": prefix}, tls=False) == f"http://{host}"


def test_the_page_says_what_fails_and_refreshes(tmp_path: Path, serve: Callable[..., RunningServer]) -> None:
    write_identity(tmp_path, "good", "FP32")
    write_python(tmp_path, "broken", "raise RuntimeError('<b>no weights</b>')\n")
    server = serve(tmp_path, ready=False)
    server.wait_for_event("failed")
    text = server.get("/", BROWSER).body.decode()
    assert "&lt;b&gt;no weights&lt;/b&gt;" in text
    assert 'http-equiv="refresh"' in text
    assert "/v2/models/good/infer" in text


def test_strangers_learn_no_names(tmp_path: Path, serve: Callable[..., RunningServer]) -> None:
    write_identity(tmp_path / "models", "secret_model", "FP32")
    (tmp_path / "token").write_text("s3cret")
    server = serve(tmp_path / "models", "--api-token-file", str(tmp_path / "token"), "--service-name", "hidden-service")
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        page, document = server.get("/", {**BROWSER, **headers}), server.get("/openapi.json", headers)
        assert (page.status, document.status) == (401, 401)
        assert page.headers["www-authenticate"] == "Bearer"
        for word in (b"secret_model", b"hidden-service", b"s3cret"):
            assert word not in page.body + document.body + server.get("/docs", headers).body
        assert server.get("/", headers).json() == ALIVE
    known = {"Authorization": "Bearer s3cret"}
    page = page_of(server, known)
    assert 'Authorization: Bearer $TOKEN"' in page.calls["curl", "secret_model"]
    lines, environment = page.calls["curl", "secret_model"], {"TOKEN": "s3cret", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", lines], env=environment, capture_output=True)
    assert b'"outputs"' in done.stdout
    document = server.get("/openapi.json", known).json()
    assert document["security"] == [{"bearer": []}]
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"


@pytest.mark.parametrize("flags", [("--docs", "false"), ("--enable_docs_url=False",)])
def test_the_pages_can_be_turned_off(
    tmp_path: Path, serve: Callable[..., RunningServer], flags: tuple[str, ...]
) -> None:
    write_identity(tmp_path, "m", "FP32")
    server = serve(tmp_path, *flags)
    assert server.get("/", BROWSER).json() == ALIVE
    assert [server.get(path).status for path in ("/docs", "/docs/docs.js", "/openapi.json")] == [404, 404, 404]


def test_no_page_is_imported_before_somebody_opens_one(server: RunningServer) -> None:
    code = (
        "import sys; from pilotlight_predictor.protocols import serving_protocols; serving_protocols();"
        "print([name for name in sys.modules if '.pages.' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['pilotlight_predictor.protocols.pages.routes']"


def test_swagger_ui_comes_packed_or_plain(server: RunningServer) -> None:
    packed, plain = (server.get("/docs/swagger-ui.css", {"Accept-Encoding": each}) for each in ("gzip, br", "identity"))
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
    assert len(packed.body) < 40_000 < len(plain.body)
    assert re.match(rb"\.swagger-ui", plain.body)
    assert server.get("/docs/../routes.py").status == 404
    assert server.get("/docs/%2e%2e%2froutes.py").status == 404
    answer = server.get("/docs/")
    assert (answer.status, answer.headers["location"]) == (307, "../docs")

"""Pages of a server for people: / for browsers, /docs with Swagger UI, /openapi.json.

V1's / calls `landing`. Names of models are shown only to those who may read metadata; the files of Swagger UI are
public.
"""

from functools import cache
from typing import TYPE_CHECKING, Final

from pilotlight_predictor.errors import NotFound
from pilotlight_predictor.frontends.auth import Action
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse, json_response
from pilotlight_predictor.frontends.http.router import Route, ServingProtocol
from pilotlight_predictor.protocols.v2.infer_response import error_body
from pilotlight_predictor.server.handler_context import Server
from pilotlight_predictor.server.server_state import Readiness

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

HTML: Final = "text/html; charset=utf-8"
POLICY: Final = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; img-src data:"
DOCS_POLICY: Final = f"{POLICY}; script-src 'self'; style-src 'self'; connect-src 'self'"
SAFE: Final = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
FILES: Final = {"docs.js": "text/javascript", "swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}
LANDING_FILES: Final = ("landing.js", "landing.css")
SIGN_IN: Final = "Models are listed for clients with a token: send Authorization: Bearer …"


def wants_page(server: Server, request: HttpRequest) -> bool:
    """Whether HTML is preferred to JSON; */* is no preference."""
    quality: dict[str, float] = {}
    for item in request.header("accept").lower().split(","):
        kind, *parameters = (part.strip() for part in item.split(";"))
        weight = next((part[2:].strip() for part in parameters if part.startswith("q=")), "1")
        quality[kind] = float(weight) if weight.replace(".", "", 1).isdecimal() else 0.0
    json = next((quality[kind] for kind in ("application/json", "application/*", "*/*") if kind in quality), 0.0)
    settings = server.settings.server
    return settings.docs and not settings.microservice and quality.get("text/html", 0.0) > json


def landing(server: Server, request: HttpRequest) -> HttpResponse:
    from base64 import b64encode
    from hashlib import sha256

    from pilotlight_predictor.protocols.pages.landing_page import STATIC, address, landing_page
    from pilotlight_predictor.protocols.pages.model_description import describe_models

    readiness, settings = server.readiness(), server.settings
    url, may_read = address(request.headers, bool(settings.server.tls_cert)), server.may_read(request)
    if may_read:
        name = settings.observability.service or server.name
        page = landing_page(describe_models(server), name, server.version, readiness, url, token=_needs_token(server))
    else:
        hidden = Readiness(readiness.ready, readiness.state, SIGN_IN)
        page = landing_page((), "Model server", "", hidden, url, token=True)
    hashes = (b64encode(sha256((STATIC / name).read_bytes()).digest()).decode() for name in LANDING_FILES)
    script, style = (f"'sha256-{digest}'" for digest in hashes)
    policy = f"{POLICY}; script-src {script}; style-src {style}"
    headers = {"Content-Security-Policy": policy, "Cache-Control": "no-store", "Vary": "Accept", **SAFE}
    if not may_read:
        headers["WWW-Authenticate"] = "Bearer"
    return HttpResponse(200 if may_read else 401, [page.encode("utf-8", "replace")], HTML, headers)


async def openapi(server: Server, _: HttpRequest) -> HttpResponse:
    from pilotlight_predictor.protocols.pages.model_description import describe_models
    from pilotlight_predictor.protocols.pages.openapi import document

    _check_enabled(server)
    models, token = describe_models(server), _needs_token(server)
    name = server.settings.observability.service or server.name
    # Off the event loop: of 1,000 models it takes 0.2 s.
    return await server.codecs.run(lambda: json_response(document(models, name, server.version, token)))


def docs(server: Server, request: HttpRequest) -> HttpResponse:
    _check_enabled(server)
    if request.path.endswith("/"):  # its links are relative, also behind a proxy's prefix
        return HttpResponse(307, headers={"Location": "../docs"})
    return _static("docs.html", HTML, request)


def docs_file(server: Server, request: HttpRequest) -> HttpResponse:
    _check_enabled(server)
    name = request.params["file"]
    if name not in FILES:
        raise NotFound("the page has no such file")
    return _static(name, f"{FILES[name]}; charset=utf-8", request)


def _static(name: str, content_type: str, request: HttpRequest) -> HttpResponse:
    folder = _folder()
    headers = {"Content-Security-Policy": DOCS_POLICY, "Cache-Control": "max-age=3600", **SAFE}
    headers["Vary"] = "Accept-Encoding"
    if not (packed := folder / f"{name}.gz").is_file():
        return HttpResponse(200, [(folder / name).read_bytes()], content_type, headers)
    if "gzip" not in request.header("accept-encoding"):
        return HttpResponse(200, [_unpacked(packed.name)], content_type, headers)
    return HttpResponse(200, [packed.read_bytes()], content_type, {**headers, "Content-Encoding": "gzip"})


def _folder() -> "Traversable":
    from importlib.resources import files

    return files("pilotlight_predictor.protocols.pages") / "static"


@cache  # gzip takes longer than the response
def _unpacked(name: str) -> bytes:
    import gzip

    return gzip.decompress((_folder() / name).read_bytes())


def _check_enabled(server: Server) -> None:
    if not server.settings.server.docs:
        raise NotFound("pages are off (--docs false)")


def _needs_token(server: Server) -> bool:
    return bool(server.settings.server.api_token_file or server.settings.server.access_file)


PROTOCOL = ServingProtocol(
    "pages",
    (
        Route("GET", "/openapi.json", openapi, Action.READ),
        Route("GET", "/docs", docs, Action.HEALTH),
        Route("GET", "/docs/{file}", docs_file, Action.HEALTH),
    ),
    error_body,
)

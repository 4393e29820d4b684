"""The line of the access log that a call leaves."""

import logging
from typing import Any

import pytest

from pilotlight_predictor.frontends.http.access_log import RequestObserver
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.observability.tracing import Tracer


def line(headers: dict[str, str], caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    replies: list[HttpResponse] = []
    call = HttpRequest("POST", "/v2/models/m/infer", "", headers, b"", "127.0.0.1", replies.append, 0.0)
    RequestObserver(True, Tracer()).attach(call, "/v2/models/{model}/infer")
    with caplog.at_level(logging.INFO, logger="pilotlight.access"):
        call.finish(HttpResponse(503))
    assert [reply.status for reply in replies] == [503]
    (record,) = caplog.records
    fields: dict[str, Any] = vars(record)["fields"]
    return fields


def test_it_tells_what_was_asked_and_answered(caplog: pytest.LogCaptureFixture) -> None:
    told = line({"x-request-id": "mine"}, caplog)
    assert (told["method"], told["path"], told["status"]) == ("POST", "/v2/models/m/infer", 503)
    assert told["request_id"] == "mine"


def test_a_request_without_an_id_is_given_none_that_its_client_never_sees(caplog: pytest.LogCaptureFixture) -> None:
    assert "request_id" not in line({}, caplog)

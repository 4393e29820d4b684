"""Access log and OpenTelemetry spans of requests.

Off by default; then a request costs one comparison in the dispatcher.
"""

from time import perf_counter

from pilotlight.contract import HEADER_REQUEST_ID, HEADER_TRACEPARENT
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.observability import logs
from pilotlight_predictor.observability.tracing import Tracer


class RequestObserver:
    """Logs and traces each request when its response is sent."""

    def __init__(self, access_log: bool, tracer: Tracer) -> None:
        self._access_log = access_log
        self._tracer = tracer

    @property
    def enabled(self) -> bool:
        return self._access_log or self._tracer.enabled

    def attach(self, request: HttpRequest, pattern: str) -> None:
        """Observe a request. The span is named by the route's `pattern`, which has few values, unlike the path."""
        finish = request.finish
        traceparent = request.header(HEADER_TRACEPARENT)
        attributes = {"http.request.method": request.method, "http.route": pattern, **_model(request)}
        span = self._tracer.start(f"{request.method} {pattern}", traceparent, attributes)

        def finish_and_observe(response: HttpResponse) -> None:
            request.finish = finish  # break the cycle: it would hold the body until the next garbage collection
            finish(response)
            if span is not None:
                span.set("http.response.status_code", response.status)
                span.end(RuntimeError(f"status {response.status}") if response.status >= 500 else None)
            if self._access_log:
                self._log(request, response, span.traceparent if span is not None else traceparent)

        request.finish = finish_and_observe

    def _log(self, request: HttpRequest, response: HttpResponse, traceparent: str) -> None:
        """Log with the client's request id only: a generated one would be unknown to others."""
        seconds, request_id = perf_counter() - request.started, request.header(HEADER_REQUEST_ID)
        logs.access(
            request.method, request.path, response.status, seconds, request_id=request_id, traceparent=traceparent
        )


def _model(request: HttpRequest) -> dict[str, str]:
    return {"pilotlight.model": request.params["model"]} if "model" in request.params else {}

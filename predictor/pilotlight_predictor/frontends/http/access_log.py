"""Access log and OpenTelemetry spans of requests.

Off by default; then a request costs one comparison in the dispatcher.
"""

from time import perf_counter

from pilotlight.contract import HEADER_REQUEST_ID, HEADER_TRACEPARENT
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.observability import logs
from pilotlight_predictor.observability.tracing import Tracer, traceparent_of


class RequestObserver:
    """Logger and tracer of each request, when its response is sent."""

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
        attributes = {"http.request.method": request.method, "http.route": pattern}
        if "model" in request.params:
            attributes["pilotlight.model"] = request.params["model"]
        span = self._tracer.start(f"{request.method} {pattern}", traceparent, attributes)

        def finish_and_observe(response: HttpResponse) -> None:
            request.finish = finish  # break the cycle: it would hold the body until the next garbage collection
            finish(response)
            if span is not None:
                span.set_attribute("http.response.status_code", response.status)
                if response.status >= 500:
                    from opentelemetry.trace import StatusCode

                    span.record_exception(RuntimeError(f"status {response.status}"))
                    span.set_status(StatusCode.ERROR, f"status {response.status}")
                span.end()
            if self._access_log:
                # With the client's request id only: a generated one would be unknown to others.
                ids = {"request_id": request.header(HEADER_REQUEST_ID), "traceparent": traceparent}
                if span is not None:
                    ids["traceparent"] = traceparent_of(span)
                logs.access(request.method, request.path, response.status, perf_counter() - request.started, **ids)

        request.finish = finish_and_observe

"""What is told of each call when somebody asked for it: an access-log line, an OpenTelemetry span.

Off by default; then a call costs one comparison in the dispatcher.
"""

from time import perf_counter

from pilotlight.contract import HEADER_REQUEST_ID, HEADER_TRACEPARENT
from pilotlight_predictor import logs
from pilotlight_predictor.calls import Call, Reply
from pilotlight_predictor.tracing import Tracer


class CallWatch:
    def __init__(self, access_log: bool, tracer: Tracer) -> None:
        self._access_log = access_log
        self._tracer = tracer

    @property
    def wanted(self) -> bool:
        return self._access_log or self._tracer.enabled

    def attach(self, call: Call, pattern: str) -> None:
        """`pattern` names the span: a route has few of them, unlike paths."""
        finish = call.finish
        traceparent = call.header(HEADER_TRACEPARENT)
        attributes = {"http.request.method": call.method, "http.route": pattern, **_model(call)}
        span = self._tracer.start(f"{call.method} {pattern}", traceparent, attributes)

        def finish_and_tell(reply: Reply) -> None:
            call.finish = finish  # they know each other, and the call has its body: it shall not wait for the collector
            finish(reply)
            if span is not None:
                span.set("http.response.status_code", reply.status)
                span.end(RuntimeError(f"status {reply.status}") if reply.status >= 500 else None)
            if self._access_log:
                self._tell(call, reply, span.traceparent if span is not None else traceparent)

        call.finish = finish_and_tell

    def _tell(self, call: Call, reply: Reply, traceparent: str) -> None:
        """The request's id as the client gave it: one made up here would be known to nobody else."""
        seconds, request_id = perf_counter() - call.started, call.header(HEADER_REQUEST_ID)
        logs.access(call.method, call.path, reply.status, seconds, request_id=request_id, traceparent=traceparent)


def _model(call: Call) -> dict[str, str]:
    return {"pilotlight.model": call.params["model"]} if "model" in call.params else {}

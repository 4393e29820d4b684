"""W3C trace context and OpenTelemetry spans.

`accept` validates headers to propagate; it costs a regular expression for requests that carry one. With the `otel`
extra and OTEL_EXPORTER_OTLP_ENDPOINT (or the setting), `open_tracer` returns a tracer that exports spans over OTLP/HTTP
from a thread of its own.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from pilotlight.wire.environments.install_command import install_command
from pilotlight_predictor.observability.logs import log

ENV_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
ENV_TRACES_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
MAX_TRACESTATE_MEMBERS: Final = 32
MAX_TRACESTATE_CHARS: Final = 4096

# version-traceid-spanid-flags; a version after 00 may append fields that start with another dash.
_TRACEPARENT: Final = r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]*)?"
_STATE_KEY: Final = r"[a-z0-9][a-z0-9_\-*/]{0,240}(@[a-z][a-z0-9_\-*/]{0,13})?"
_STATE_VALUE: Final = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"

Attributes = Mapping[str, str | int | float | bool]


@cache
def _pattern(text: str) -> re.Pattern[str]:
    """Compile at the first request with a trace context instead of at import, for the cold start."""
    return re.compile(text)


def is_traceparent(value: str) -> bool:
    """Return whether the header is valid; W3C requires an invalid one to be ignored."""
    match = _pattern(_TRACEPARENT).fullmatch(value)
    if match is None:
        return False
    version, trace_id, span_id, _, rest = match.groups()
    return version != "ff" and not (version == "00" and rest) and bool(trace_id.strip("0") and span_id.strip("0"))


def parse_tracestate(value: str) -> tuple[tuple[str, str], ...] | None:
    """Return the members in order; None if one is malformed or repeated."""
    texts = [text for text in (part.strip(" \t") for part in value.split(",")) if text]
    if len(texts) > MAX_TRACESTATE_MEMBERS or len(value) > MAX_TRACESTATE_CHARS:
        return None
    members = [(key, content) for key, _, content in (text.partition("=") for text in texts)]
    key_pattern, value_pattern = _pattern(_STATE_KEY), _pattern(_STATE_VALUE)
    if not all(key_pattern.fullmatch(key) and value_pattern.fullmatch(content) for key, content in members):
        return None
    return tuple(members) if len({key for key, _ in members}) == len(members) else None


def accept(traceparent: str, tracestate: str = "") -> tuple[str, str]:
    """Return both headers for propagation, "" for an invalid one; no state without a parent."""
    if not is_traceparent(traceparent):
        return "", ""
    members = parse_tracestate(tracestate) if tracestate else ()
    return traceparent, ",".join(f"{key}={value}" for key, value in members or ())


def traceparent_of(span: Any) -> str:
    """Return the header for calls made within a span."""
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers, set_span_in_context(span))
    return headers["traceparent"]


class Tracer:
    """Source of spans, if it has a provider. Hot paths check `enabled` first."""

    __slots__ = ("_provider", "_tracer", "enabled")

    def __init__(self, provider: Any = None) -> None:
        self.enabled = provider is not None
        self._provider = provider
        self._tracer = provider.get_tracer("pilotlight_predictor") if provider is not None else None

    def start(self, name: str, traceparent: str = "", attributes: Attributes | None = None) -> Any:
        """Return a started span of OpenTelemetry below the caller's, for the caller to end; None if tracing is off."""
        if self._tracer is None:
            return None
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        # Empty without a parent, so that no current span becomes the parent by accident.
        context = TraceContextTextMapPropagator().extract({"traceparent": traceparent}, Context())
        return self._tracer.start_span(name, context=context, kind=SpanKind.SERVER, attributes=attributes)

    def close(self) -> None:
        """Export the remaining spans, within the exporter's time limit."""
        if self._provider is not None:
            self._provider.shutdown()


def open_tracer(environ: Mapping[str, str], service: str, endpoint: str = "") -> Tracer:
    """Return a tracer, idle if no collector is configured. Imports the SDK for tens of ms: call it in a thread."""
    if not endpoint and not environ.get(ENV_ENDPOINT) and not environ.get(ENV_TRACES_ENDPOINT):
        return Tracer()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        fix = f"{install_command('otel')}, or unset {ENV_ENDPOINT}"
        log("tracing.off", f"a trace collector is set but OpenTelemetry is not installed: {fix}", level="WARNING")
        return Tracer()
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    traces = endpoint.rstrip("/") + "/v1/traces" if endpoint else None
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=traces)))
    return Tracer(provider)

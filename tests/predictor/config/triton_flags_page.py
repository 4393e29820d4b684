"""Table of the flags of Triton in docs/how-to/migrate-triton.md, made from the tables of flags."""

from collections.abc import Iterator

from pilotlight_predictor.config.compat import TRANSLATED
from pilotlight_predictor.config.read_sources import FLAGS
from pilotlight_predictor.config.triton_flags import NO_EFFECT, REFUSED

# What `tritonserver --help` of Triton 2.73 and of TensorRT Inference Server lists, beyond those of the three tables.
SAME = (
    "--allow-client-shm", "--allow-gpu-metrics", "--exit-on-error", "--exit-timeout-secs", "--grpc-address",
    "--grpc-header-forward-pattern", "--grpc-http2-max-ping-strikes",
    "--grpc-http2-min-recv-ping-interval-without-data", "--grpc-infer-response-compression-level",
    "--grpc-keepalive-permit-without-calls", "--grpc-keepalive-time", "--grpc-keepalive-timeout",
    "--grpc-max-connection-age", "--grpc-max-connection-age-grace", "--grpc-port",
    "--grpc-restricted-protocol", "--http-address", "--http-header-forward-pattern", "--http-max-input-size",
    "--http-port", "--http-restricted-api", "--id", "--load-model", "--log-file", "--log-format", "--metrics-address",
    "--metrics-interval-ms", "--metrics-port", "--model-config-name", "--model-control-mode", "--model-repository",
    "--repository-poll-secs", "--response-cache-byte-size", "--strict-readiness", "--trace-config",
)  # fmt: skip


def page() -> str:
    """Return the section."""
    rows = sorted([*_rows()])
    return "\n".join([HEAD, *(f"| `{flag}` | {effect} | {note} |" for flag, effect, note in rows)]) + "\n"


HEAD = """# Flags

<!-- made by `make docs`; change config/triton_flags.py, config/compat.py or triton_flags_page.py instead -->

Every flag that `tritonserver --help` documents. *Same*: the [setting](../reference/settings.md) of that name.
*Translated*: it sets others. *No effect*: accepted with one warning, which has the reason; a value that Triton would
refuse is refused. *Refused*: it would protect the server.

| flag | here | what it does, or why nothing applies |
|---|---|---|"""


def _rows() -> Iterator[tuple[str, str, str]]:
    yield from ((flag, "same", FLAGS[flag].help) for flag in SAME)
    yield from ((flag, "translated", text) for flag, text in TRANSLATED.items())
    yield from ((flag, "no effect", reason) for flag, (_, reason) in NO_EFFECT.items())
    yield from ((flag, "refused", f"instead: {text}") for flag, text in REFUSED.items())

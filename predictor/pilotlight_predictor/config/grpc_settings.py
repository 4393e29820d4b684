"""Settings of gRPC connections: keepalive, age and compression, with the defaults of Triton."""

from pilotlight_predictor.config.settings_group import SettingsGroup, setting
from pilotlight_predictor.config.value_types import BOOL, MILLISECONDS, choice, count


class GrpcSettings(SettingsGroup):
    """Connections of the gRPC port; `server.grpc` of the settings."""

    keepalive_time_ms: float = setting(
        7_200_000.0, MILLISECONDS, "--grpc-keepalive-time", "Silence of a client after which it is pinged; 0: never."
    )
    keepalive_timeout_ms: float = setting(
        20_000.0, MILLISECONDS, "--grpc-keepalive-timeout", "Time from a ping without a response to the end."
    )
    keepalive_permit_without_calls: bool = setting(
        False, BOOL, "--grpc-keepalive-permit-without-calls", "Pings also while a connection has no calls."
    )
    min_recv_ping_interval_ms: float = setting(
        300_000.0, MILLISECONDS, "--grpc-http2-min-recv-ping-interval-without-data",
        "A ping of a client that comes sooner after the last one is a strike, unless data was sent between.",
    )  # fmt: skip
    max_ping_strikes: int = setting(
        0, count(), "--grpc-http2-max-ping-strikes",
        "Strikes before a client is disconnected with too_many_pings; 0: no limit. 2 with --compat triton.",
    )  # fmt: skip
    max_connection_age_ms: float = setting(
        0.0, MILLISECONDS, "--grpc-max-connection-age", "Age at which a gRPC connection is drained; 0: no limit."
    )
    max_connection_grace_ms: float = setting(
        0.0, MILLISECONDS, "--grpc-max-connection-age-grace", "Time from then to its end; 0: until its calls end."
    )
    compression: str = setting(
        "none", choice("none", "low", "medium", "high"), "--grpc-infer-response-compression-level",
        "Compression of inference responses for clients that accept gzip or deflate.",
    )  # fmt: skip

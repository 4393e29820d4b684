"""All settings of the predictor: name, type, default, flags, variables and help in one row each.

The parser, `--help` and the page of settings are generated from these rows (settings_table.py). The objects are frozen:
parsed at start and passed down. Precedence: flag > environment > file > implied by `--compat` > default.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pilotlight import contract
from pilotlight_predictor.config import value_types
from pilotlight_predictor.config.grpc_settings import GrpcSettings
from pilotlight_predictor.config.settings_group import SettingsGroup, setting
from pilotlight_predictor.config.value_types import (
    BOOL,
    BYTES,
    FACTOR,
    MILLISECONDS,
    PORT,
    PORT_OR_OFF,
    SECONDS,
    TEXT,
    TEXTS,
    choice,
    count,
)

if TYPE_CHECKING:
    from pilotlight.wire.request_log.settings import LogSettings

MIN_HUNG_S: Final = 10.0
MAX_HUNG_S: Final = 600.0  # without a deadline
MIB: Final = 1 << 20
ANY: Final = "0 lets the system choose."
OFF: Final = "0 lets the system choose, -1 or none is off."


class ServerSettings(SettingsGroup):
    """Ports and addresses, trust, readiness and shutdown."""

    host: str = setting(
        "0.0.0.0", TEXT, "--host --http-address",  # noqa: S104 - a pod's own
        "Address of the HTTP port. unix:FOLDER: ports are unix sockets in that folder, /FOLDER/8080.",
    )  # fmt: skip
    http_port: int = setting(
        contract.HTTP_PORT, PORT, "--http-port --port", f"Port of all HTTP protocols; {ANY}",
        env="INFERENCE_PORT", yaml="port",
    )  # fmt: skip
    grpc_port: int = setting(contract.GRPC_PORT, PORT_OR_OFF, "--grpc-port", f"Port of gRPC; {OFF}")
    grpc_host: str = setting("", TEXT, "--grpc-address", "Address of the gRPC port; empty: that of HTTP.")
    metrics_port: int = setting(
        contract.METRICS_PORT, PORT_OR_OFF, "--metrics-port",
        f"Extra port of /metrics, which the HTTP port serves too; {OFF}",
    )  # fmt: skip
    metrics_host: str = setting("", TEXT, "--metrics-address", "Address of the metrics port; empty: that of HTTP.")
    id: str = setting("pilotlight", TEXT, "--id", "Server name in metadata and status.")
    workers: int = setting(
        1, count(1, 1024), "--workers", "Processes that share the ports, each with its own copy of the models."
    )
    fronts: int = setting(
        0, count(0, 256), "--fronts", "Processes that read and write, beside one with the models; 0: one for all."
    )
    compat: str = setting(
        "", choice("", "triton", "trtis"), "--compat",
        "Behave as Triton or TensorRT Inference Server do: ports 8000, 8001 and 8002 (but in a replica of a service), "
        "status 400 while not ready, strict readiness, and an exit when a model required at start fails.",
    )  # fmt: skip
    dialect: str = setting(
        "", choice("", "serving"), "--dialect",
        f"serving: gRPC on {contract.SERVING_GRPC_PORT}, the port that clients of the serving capability use.",
    )  # fmt: skip
    microservice: bool = setting(
        False, BOOL, "--microservice",
        "Serve /v1/chat/completions as an inference microservice: 202 while starting, 503 with the failure type.",
    )  # fmt: skip
    media_urls: bool = setting(
        False, BOOL, "--media-urls",
        "Pass http and https URLs of images and videos in a chat to the model; default: only data: URLs.",
    )  # fmt: skip
    docs: bool = setting(
        True, BOOL, "--docs --enable-docs-url",
        "Serve /docs and /openapi.json, and to browsers a page at /. KServe's name: --enable_docs_url.",
    )  # fmt: skip
    strict_readiness: bool = setting(
        False, BOOL, "--strict-readiness", "Ready only while every model is; else while those required at start are."
    )
    exit_on_error: bool = setting(
        False, BOOL, "--exit-on-error", "Exit when a model required at start fails; else stay and report why."
    )
    drain_delay_s: float = setting(
        0.0, SECONDS, "--drain-delay --drain-delay-s",
        "How long requests are still accepted after SIGTERM, while not ready; an idle single worker stops at once.",
    )  # fmt: skip
    exit_timeout_s: float = setting(
        30.0, SECONDS, "--exit-timeout-secs --exit-timeout-s", "How long requests in flight may take to finish at exit."
    )
    http_max_input_size: int = setting(
        64 * MIB, BYTES, "--http-max-input-size", "Maximum HTTP body or gRPC message, also uncompressed."
    )
    max_bytes_in_flight: int = setting(
        1024 * MIB, BYTES, "--max-bytes-in-flight",
        "Maximum bytes in flight (requests, tensors, batches, unread responses) over all protocols; above it: 503.",
    )  # fmt: skip
    trusted_proxies: tuple[str, ...] = setting(
        (), value_types.NETWORKS, "--trusted-proxies",
        "Networks whose X-Forwarded-For is trusted; behind a proxy, rate limits per client need it.",
    )  # fmt: skip
    behind_proxy: bool = False  # from the environment: every request comes from a proxy's address
    reached_port: int = 0  # from the environment: the only port that clients reach, as in a Knative pod; 0: any
    allow_shared_memory: bool = setting(
        False, BOOL, "--allow-shared-memory --allow-client-shm", "Let admins share memory regions for tensors."
    )
    admin_token_file: str = setting(
        "", TEXT, "--admin-token-file", "File with the token for repository, trace, logging and shared-memory calls.",
        env=contract.ENV_ADMIN_TOKEN_FILE,
    )  # fmt: skip
    allowed_hosts: tuple[str, ...] = setting(
        (), TEXTS, "--allowed-hosts",
        "Allowed values of Host and Origin besides localhost while --http-address is loopback; *: any. Others are"
        " rejected, so that web pages cannot use the server.",
    )  # fmt: skip
    admin_loopback: bool = setting(
        True, BOOL, "--admin-loopback",
        "A caller on loopback that runs as the server's user, or as root, is an admin. Off by default behind a proxy"
        f" (K_SERVICE or {contract.ENV_SERVICE} set).",
    )  # fmt: skip
    api_token_file: str = setting("", TEXT, "--api-token-file", "File with the bearer token that inference needs.")
    tls_cert: str = setting(
        "", TEXT, "--tls-cert", "PEM file with the certificate of the HTTP and gRPC ports; reloaded when it changes."
    )
    tls_key: str = setting("", TEXT, "--tls-key", "PEM file with its key; empty: the certificate's file has it.")
    tls_client_ca: str = setting(
        "", TEXT, "--tls-client-ca", "PEM file with authorities; clients need a certificate of theirs."
    )
    http_restricted_apis: tuple[value_types.RestrictedGroups, ...] = setting(
        (), value_types.RESTRICTED, "--http-restricted-api",
        "Groups of HTTP calls that need this header; for control calls the key replaces the admin token. May be"
        " repeated, in the variable with spaces between.",
    )  # fmt: skip
    grpc_restricted_apis: tuple[value_types.RestrictedGroups, ...] = setting(
        (), value_types.RESTRICTED, "--grpc-restricted-protocol",
        "The same over gRPC, where the metadata key is triton-grpc-protocol- and this name.",
    )  # fmt: skip
    http_header_forward_pattern: str = setting(
        "", value_types.PATTERN, "--http-header-forward-pattern",
        "HTTP headers whose name has a match become parameters of an inference request.",
    )  # fmt: skip
    grpc_header_forward_pattern: str = setting(
        "", value_types.PATTERN, "--grpc-header-forward-pattern", "The same for the metadata of gRPC calls."
    )
    grpc: GrpcSettings = GrpcSettings()
    access_file: str = setting(
        "", TEXT, "--access-file",
        "File with the access rules of the service (tokens, JWTs, rate), as render writes them into a Secret.",
    )  # fmt: skip

    @property
    def as_triton(self) -> bool:
        return self.compat == "triton"

    @property
    def not_ready_status(self) -> int:
        """HTTP status of a server that is not ready: 400 for Triton and TRTIS, 503 for load balancers."""
        return 400 if self.compat else 503


class ModelSettings(SettingsGroup):
    """Models to serve, where they come from, and their device."""

    path: str = setting("", TEXT, "--model-path --model-dir", "One model: a file, a directory or a URI.")
    name: str = setting(
        "", TEXT, "--model-name", "Name of --model-path; empty: of its file or folder, by `serve` as by `deploy`."
    )
    version: str = setting("latest", TEXT, "--model-version", "Version that --model-path is served as, or its label.")
    version_labels: Mapping[str, int] = setting(
        {}, value_types.LABELS, "--version-label",
        "Label of a version, such as v1.2.0=3, that /predict accepts and returns; may be repeated.",
    )  # fmt: skip
    version_weights: Mapping[str, float] = setting(
        {}, value_types.WEIGHTS, "--version-weight",
        "Traffic percentage of a version for /predict requests without model_version, 100 in total; may be repeated.",
    )  # fmt: skip
    repositories: tuple[str, ...] = setting(
        (), TEXTS, "--model-repository", "Directory or URI of a model repository; may be repeated."
    )
    control_mode: str = setting(
        "none", choice("none", "poll", "explicit", "versions"), "--model-control-mode",
        "none: load all at start. poll: reload on changes of the repository. explicit: load on --load-model and"
        " API calls. versions: the set of models is fixed, new versions are loaded.",
    )  # fmt: skip
    config_name: str = setting(
        "", TEXT, "--model-config-name", "Read configs/NAME.pbtxt of a model, if it has one, in place of config.pbtxt."
    )
    load_models: tuple[str, ...] = setting(
        (), TEXTS, "--load-model", "Model to load at start in explicit mode; may be repeated; * is all of them."
    )
    poll_secs: float = setting(
        15.0, SECONDS, "--repository-poll-secs --file-system-poll-secs", "Polling interval of the repository."
    )
    device: str = setting("auto", value_types.DEVICE, "--device", "Default device of models.")
    precision: str = setting(
        "auto", choice("auto", "fp32", "fp16", "bf16"), "--precision", "Precision of loaded weights."
    )
    threads: int = setting(0, count(0, 4096), "--threads", "Threads within one execution; 0 lets the runtime choose.")
    load_timeout_s: float = setting(
        600.0, SECONDS, "--load-timeout-s --load-timeout", "Maximum time of a model load; 0: no limit."
    )
    warmup: str = setting(
        "auto", choice("auto", "none"), "--warmup",
        "auto: a model without example or model_warmup must answer zeros before it is ready. none: it need not.",
    )  # fmt: skip
    example: str = setting(
        "", TEXT, "--example",
        "File with a request in V2's or V1's JSON, or that JSON, that the model of --model-path must answer before"
        " it is ready; empty: example.json in its folder, if there is one.",
    )  # fmt: skip
    parameters: Mapping[str, str] = setting(
        {}, value_types.PARAMETERS, "--model-parameter",
        "Parameter as in config.pbtxt, such as task=fill-mask, of models that do not set it; may be repeated.",
    )  # fmt: skip
    adapters: Mapping[str, str] = setting(
        {}, value_types.ADAPTERS, "--adapter",
        "LoRA adapter of the text model of --model-path: the name that requests use, and a folder that peft saved, or"
        " its URI; may be repeated.",
    )  # fmt: skip
    trusted_pickles: Mapping[str, str] = setting(
        {}, value_types.PICKLES, "--trust-pickle", "Trusted pickle file, with its SHA-256; may be repeated."
    )
    trusted_compiled: tuple[str, ...] = setting(
        (), TEXTS, "--trust-compiled",
        "Trusted compiled models: a folder, or the SHA-256 of a library; may be repeated.",
    )  # fmt: skip
    code: bool = setting(
        True, BOOL, "--model-code",
        "Load models that contain code: model.py, TorchScript, .pt2, compiled models, SavedModels, "
        "TensorRT plans. false: only ONNX models and models in Hugging Face's layout.",
    )  # fmt: skip
    cache_dir: str = setting(
        "", TEXT, "--cache-dir", "Cache of downloaded models; empty: the user's cache.", env=contract.ENV_CACHE_DIR
    )
    pins: Mapping[str, Any] = setting(
        {}, value_types.PINS, "--model-pins",
        "Content that a model URI had when its revision was deployed, set by the platform "
        "(docs/reference/model-repository.md).",
    )  # fmt: skip
    allow_inline_files: bool = setting(
        False, BOOL, "--allow-inline-files", "Accept model files in a repository load request."
    )
    park_memory: str = setting(
        "0", value_types.MEMORY, "--park-memory",
        "Host memory for weights of parked models, in bytes or as a percentage of the machine's memory; 0: no parking.",
    )  # fmt: skip
    park_after_s: float = setting(
        0.0, SECONDS, "--park-after-s --park-after",
        "Idle time after which a model frees its GPU memory until the next request; 0: only an admin parks models.",
    )  # fmt: skip
    predictor_host: str = setting(
        "", TEXT, "--predictor-host",
        "Predictor of a transformer, host:port. Python models read INFERENCE_PREDICTOR_HOST.",
    )  # fmt: skip

    @property
    def parks(self) -> bool:
        return self.park_memory not in {"0", "0%"}


class PerformanceSettings(SettingsGroup):
    """Batching, queues and time limits; a model's own configuration wins over these."""

    max_batch_size: int = setting(
        32, count(0, 1 << 20), "--max-batch-size",
        "Maximum batch size of models without a configuration; 0: no batching.",
    )  # fmt: skip
    batch_timeout_ms: float = setting(
        0.0, MILLISECONDS, "--batch-timeout-ms", "Maximum time that the first request of such a batch waits for others."
    )
    inference_timeout_s: float = setting(
        0.0, SECONDS, "--inference-timeout-s --timeout-seconds",
        "Maximum time of one inference; 0: no limit.", env="INFERENCE_TIMEOUT_SECONDS",
    )  # fmt: skip
    hung_factor: float = setting(
        3.0, FACTOR, "--hung-factor",
        "A hung execution is aborted after this many times --inference-timeout-s, at least 10 s, or 600 s without"
        " one; 0: never.",
    )  # fmt: skip
    max_queue_size: int = setting(
        1024, count(0), "--max-queue-size", "Maximum queued requests per model; above it: 503."
    )
    stream_idle_timeout_s: float = setting(
        60.0, SECONDS, "--stream-idle-timeout-s",
        "Idle timeout of a /predict/stream WebSocket; 0: no limit.",
    )  # fmt: skip
    response_cache_bytes: int = setting(
        0, BYTES, "--response-cache-bytes --response-cache-byte-size", "Size of the response cache; 0: off."
    )
    instance_count: int = setting(
        1, count(1, 1024), "--instance-count", "Instances per device of models without a configuration."
    )

    @property
    def hung_after_s(self) -> float:
        """Seconds after which an execution is given up; 0: never. Short deadlines do not end a server at a hiccup."""
        if not self.hung_factor:
            return 0.0
        return max(MIN_HUNG_S, self.hung_factor * self.inference_timeout_s) if self.inference_timeout_s else MAX_HUNG_S


class RateLimitSettings(SettingsGroup):
    """Rate limit per client, off until it is set."""

    enabled: bool | None = setting(None, BOOL, "--rate-limit-enabled", "Limit requests per client.")
    requests_per_minute: int = setting(
        1000, count(1), "--rate-limit-per-minute", "Maximum requests per client and minute."
    )
    messages_per_second: int = setting(
        100, count(1), "--rate-limit-messages-per-second", "Maximum messages/s per /predict/stream WebSocket."
    )


class InputValidationSettings(SettingsGroup):
    """Limits on input values, off until they are set."""

    enabled: bool | None = setting(
        None, BOOL, "--input-validation-enabled", "Reject NaN, infinities and long sequences."
    )
    max_sequence_length: int = setting(512, count(1), "--max-sequence-length", "Maximum length of a sequence.")


class SafeguardSettings(SettingsGroup):
    """Limits per client and request, off until they are set; then they bind every protocol."""

    max_request_size_mb: float | None = setting(
        None, value_types.MEGABYTES, "--max-request-size-mb", "Maximum request size; unset: --http-max-input-size."
    )
    rate_limit: RateLimitSettings = RateLimitSettings()
    input_validation: InputValidationSettings = InputValidationSettings()


class ObservabilitySettings(SettingsGroup):
    """Logs, metrics and traces."""

    log_format: str = setting(
        "auto", choice("auto", "json", "text", also={"default": "text", "iso8601": "text"}), "--log-format",
        "Log format; auto: text on a terminal, JSON elsewhere.",
    )  # fmt: skip
    log_level: str = setting("info", choice("debug", "info", "warning", "error"), "--log-level", "Minimum log level.")
    access_log: bool = setting(False, BOOL, "--access-log", "Log a line per request.")
    request_log: "LogSettings | None" = setting(
        None, value_types.LOG, "--request-log",
        "Send inference requests and responses to a sink, as `logger` of an InferenceService; JSON that render writes.",
    )  # fmt: skip
    files_dir: str = setting(
        "", TEXT, "--files-dir",
        "Directory of trace and log files that an admin's request names (docs/how-to/migrate-triton.md), created at"
        " start; empty: not allowed.",
    )  # fmt: skip
    log_file: str = setting("", TEXT, "--log-file", "File that log lines are appended to; empty: standard error.")
    trace_config: tuple[tuple[str, str], ...] = setting(
        (), value_types.TRACE, "--trace-config",
        "Trace settings at start: triton,file=PATH, triton,log-frequency=N, rate=N, level=LEVEL and count=N.",
    )  # fmt: skip
    otel_endpoint: str = setting(
        "", TEXT, "--otel-endpoint", "OTLP collector for traces; empty: off.", env="OTEL_EXPORTER_OTLP_ENDPOINT"
    )
    gpu_metrics: bool = setting(
        True, BOOL, "--gpu-metrics --allow-gpu-metrics", "Export GPU memory, utilization and power."
    )
    metrics_interval_ms: float = setting(
        1000.0, MILLISECONDS, "--metrics-interval-ms", "Sampling interval of GPU metrics."
    )
    service: str = setting(
        "", TEXT, "--service-name", "Name of the InferenceService, a label of every metric.",
        env=f"{contract.ENV_SERVICE} K_SERVICE",
    )  # fmt: skip
    namespace: str = setting(
        "",
        TEXT,
        "--service-namespace",
        "Namespace of the InferenceService, a label of every metric.",
        env=contract.ENV_NAMESPACE,
    )
    revision: str = setting(
        "", TEXT, "--service-revision", "Revision of the InferenceService, a label of every metric.",
        env=f"{contract.ENV_REVISION} K_REVISION",
    )  # fmt: skip


class Settings(SettingsGroup):
    """All settings. `warnings` are sentences for the log, about what was accepted but has no effect here."""

    server: ServerSettings = ServerSettings()
    model: ModelSettings = ModelSettings()
    performance: PerformanceSettings = PerformanceSettings()
    safeguards: SafeguardSettings = SafeguardSettings()
    observability: ObservabilitySettings = ObservabilitySettings()
    warnings: tuple[str, ...] = ()

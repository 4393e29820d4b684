"""Constants shared by control plane, gateway and predictor: ports, variables, headers, labels, metric names.

Standard library only, since every process imports it first.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

# Default ports of a predictor, and those of Triton and TRTIS (`--compat triton|trtis`).
HTTP_PORT: Final = 8080
GRPC_PORT: Final = 8081
METRICS_PORT: Final = 8082
COMPAT_HTTP_PORT: Final = 8000
COMPAT_GRPC_PORT: Final = 8001
COMPAT_METRICS_PORT: Final = 8002
SERVING_GRPC_PORT: Final = 50051

# Ports of the embedded platform: the gateway of all services, and the control API.
GATEWAY_PORT: Final = 8090
API_PORT: Final = 8091
# First segments of the gateway's own paths; not allowed as service names.
RESERVED_NAMES: Final = frozenset({"v1", "v2", "api", "metrics", "console", "healthz"})

# The only image that a target without containers can run, of any registry and tag.
_OWN_IMAGE: Final = r"(?:.+/)?pilotlight/predictor(?:[:@].*)?"
# Of the target on one machine. Without a tag: the installed version runs, so an upgrade alone is no new revision.
LOCAL_CAPABILITIES: Final[Mapping[str, Any]] = {
    "target": "local", "image": "pilotlight/predictor", "access_at_gateway": True,
}  # fmt: skip


def is_predictor_image(image: str) -> bool:
    """Return whether an image is our predictor, such as `registry.local:5000/pilotlight/predictor:0.1.0`."""
    return re.fullmatch(_OWN_IMAGE, image) is not None


# Datatypes of the V2 protocol by numpy's names; in a body and in raw contents they are little-endian.
NUMPY_TYPES: Final = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip

TASK_NOT_SUPPORTED: Final = "task_not_supported"  # code of OpenAI errors: the model cannot serve the route

# Variables that a supervisor sets for a predictor; its own settings use INFERENCE_*.
ENV_SETTINGS_PREFIX: Final = "INFERENCE_"
ENV_SERVICE: Final = "PILOTLIGHT_SERVICE"
ENV_NAMESPACE: Final = "PILOTLIGHT_NAMESPACE"
ENV_REVISION: Final = "PILOTLIGHT_REVISION"
ENV_EXAMPLE: Final = f"{ENV_SETTINGS_PREFIX}EXAMPLE"  # JSON of a request that its model answers
ENV_PARK_MEMORY: Final = f"{ENV_SETTINGS_PREFIX}PARK_MEMORY"  # host memory for the weights of parked models
ENV_MICROSERVICE: Final = f"{ENV_SETTINGS_PREFIX}MICROSERVICE"  # "true": answers as an inference microservice
ENV_MODEL_PATH: Final = f"{ENV_SETTINGS_PREFIX}MODEL_PATH"  # path or URI of the model
ENV_MODEL_PARAMETER: Final = f"{ENV_SETTINGS_PREFIX}MODEL_PARAMETER"  # NAME=VALUE, as in config.pbtxt
ENV_TRUST_PICKLE: Final = f"{ENV_SETTINGS_PREFIX}TRUST_PICKLE"  # FILE=SHA256 of pickles that may be loaded
MODEL_PACKAGE: Final = "pilotlight_models"  # parent of the modules of Python models in a predictor
ENV_MODEL_PINS: Final = f"{ENV_SETTINGS_PREFIX}MODEL_PINS"  # JSON: the content of a URI that may be loaded
ENV_DYNAMIC_ADAPTERS: Final = "PILOTLIGHT_DYNAMIC_ADAPTERS"  # set: the control process loads adapters
ENV_ADMIN_TOKEN_FILE: Final = "PILOTLIGHT_ADMIN_TOKEN_FILE"  # noqa: S105 - the name of a variable
ENV_ACCESS_FILE: Final = f"{ENV_SETTINGS_PREFIX}ACCESS_FILE"  # access rules of the service, mounted from a Secret
ENV_TRUSTED_PROXIES: Final = f"{ENV_SETTINGS_PREFIX}TRUSTED_PROXIES"  # networks whose X-Forwarded-For is believed
ENV_CACHE_DIR: Final = "PILOTLIGHT_CACHE_DIR"
ENV_GATEWAY_URL: Final = "PILOTLIGHT_GATEWAY_URL"  # base URL for requests to other components of the service
ENV_ENDPOINTS_DIR: Final = "PILOTLIGHT_ENDPOINTS_DIR"  # <dir>/<namespace>/<workload>.json: replicas, for a router
ENV_ROUTER_PREFIX: Final = "PILOTLIGHT_ROUTER_"  # of a router's settings, which the plan writes
ENV_PROGRAM: Final = "PILOTLIGHT_PROGRAM"  # command name to show in the predictor's help

# Strategies of a router.
ROUTER_STRATEGIES: Final = (
    "round_robin",  # each in turn
    "least_loaded",  # the fewest requests; ties by round robin
    "prefix_aware",  # the endpoint with the longest prefix of the prompt in its KV cache, unless it is overloaded
    "prefill_decode",  # least_loaded, among the decoders and separately among the prefill engines
)

OLD_ROUTER_STRATEGIES: Final = {"cache_aware": "prefix_aware"}

# Headers.
HEADER_REQUEST_ID: Final = "x-request-id"
HEADER_TRACEPARENT: Final = "traceparent"
HEADER_TRACESTATE: Final = "tracestate"
HEADER_COLD_START: Final = "x-pilotlight-cold-start"
HEADER_HOLD_TIMEOUT: Final = "x-pilotlight-hold-timeout"  # seconds that a request may wait for a replica
HEADER_SESSION: Final = "x-session-id"  # requests of one session go to the same replica
HEADER_REVISION: Final = "x-pilotlight-revision"  # that answered, of several with traffic; of an adapter its version
HEADER_GRAPHS: Final = "x-pilotlight-graphs"  # InferenceGraphs that a request has come through
HEADER_TAG: Final = "x-pilotlight-tag"
HEADER_TAG_KNATIVE: Final = "knative-serving-tag"
HEADER_VERSION: Final = "x-pilotlight-version"  # of client and server, between platformctl and the control API
HEADER_USER: Final = "x-pilotlight-user"  # who calls the control API, for its audit log
HEADER_INFERENCE_LENGTH: Final = "inference-header-content-length"

# Metrics: the only names that dashboards, rules and scaling triggers use.
METRIC_REQUEST_DURATION: Final = "pilotlight_request_duration_seconds"
METRIC_IN_FLIGHT: Final = "pilotlight_requests_in_flight"
METRIC_RESPONSES_REFUSED: Final = "pilotlight_responses_refused_total"
METRIC_QUEUE_DEPTH: Final = "pilotlight_queue_depth"
METRIC_QUEUE_SECONDS: Final = "pilotlight_queue_seconds"
METRIC_BATCH_SIZE: Final = "pilotlight_batch_size"
METRIC_MODEL_STATE: Final = "pilotlight_model_state"
METRIC_MODEL_LOAD: Final = "pilotlight_model_load_seconds"
METRIC_REPLICA_PARKED_BYTES: Final = "pilotlight_replica_parked_bytes"
METRIC_REPLICA_WAKE: Final = "pilotlight_replica_wake_seconds"
METRIC_PARKED_MODELS: Final = "pilotlight_parked_models"
METRIC_PARKED_BYTES: Final = "pilotlight_parked_bytes"
METRIC_MODEL_WAKE: Final = "pilotlight_model_wake_seconds"
METRIC_COLD_START: Final = "pilotlight_cold_start_seconds"
METRIC_PROCESS_CPU: Final = "process_cpu_seconds_total"  # as Prometheus' client libraries name it
METRIC_GATEWAY_WAITING: Final = "pilotlight_gateway_requests_waiting"
METRIC_GATEWAY_IN_FLIGHT: Final = "pilotlight_gateway_requests_in_flight"
METRIC_GATEWAY_DURATION: Final = "pilotlight_gateway_request_duration_seconds"
METRIC_ADAPTER_DURATION: Final = "pilotlight_adapter_request_duration_seconds"
METRIC_ADAPTER_ERRORS: Final = "pilotlight_adapter_errors_total"
METRIC_GATEWAY_HELD: Final = "pilotlight_gateway_held_seconds"  # queueing time before a replica took the request
METRIC_GATEWAY_REJECTED: Final = "pilotlight_gateway_requests_refused_total"
METRIC_GATEWAY_ERRORS: Final = "pilotlight_gateway_errors_total"
METRIC_GATEWAY_LOST: Final = "pilotlight_gateway_requests_lost_total"  # their replica exited without a response
METRIC_GATEWAY_COLD_STARTS: Final = "pilotlight_gateway_cold_starts_total"
METRIC_LOG_EVENTS: Final = "pilotlight_request_log_events_total"
METRIC_AUDIT_RECORDS: Final = "pilotlight_audit_records_total"
METRIC_TOKENS: Final = "pilotlight_gateway_tokens_total"
METRIC_MODEL_REQUESTS: Final = "pilotlight_gateway_model_requests_total"
METRIC_TOKENS_WAITING: Final = "pilotlight_gateway_tokens_waiting"  # of prompts without a first token yet
METRIC_FIRST_TOKEN: Final = "pilotlight_gateway_time_to_first_token_seconds"  # noqa: S105 - of a response
METRIC_OUTPUT_TOKEN: Final = "pilotlight_gateway_time_per_output_token_seconds"  # noqa: S105
# OpenTelemetry's semantic conventions of generative AI, as Prometheus writes their names.
METRIC_GENAI_TOKENS: Final = "gen_ai_client_token_usage"
METRIC_GENAI_FIRST_TOKEN: Final = "gen_ai_server_time_to_first_token_seconds"  # noqa: S105
METRIC_GENAI_OUTPUT_TOKEN: Final = "gen_ai_server_time_per_output_token_seconds"  # noqa: S105
METRIC_REPLICAS: Final = "pilotlight_replicas"
METRIC_REPLICA_LIMITS: Final = "pilotlight_replica_limits"
METRIC_SCALE_DECISIONS: Final = "pilotlight_scale_decisions_total"
METRIC_SCALE_SIGNAL: Final = "pilotlight_scale_signal"
METRIC_SCALE_TARGET: Final = "pilotlight_scale_target"
METRIC_GPU_MEMORY_RESERVED: Final = "pilotlight_gpu_memory_reserved_bytes"
METRIC_GPU_WAIT: Final = "pilotlight_gpu_wait_seconds"
METRIC_CANARY_WEIGHT: Final = "pilotlight_canary_weight"
METRIC_CANARY_CHECK: Final = "pilotlight_canary_check_value"
METRIC_CANARY_PHASE: Final = "pilotlight_canary_phase"
# Triton's names. Utilisation is 0 to 1 per device; times are microseconds, summed over requests.
METRIC_GPU_UTILIZATION: Final = "nv_gpu_utilization"
METRIC_GPU_MEMORY_USED: Final = "nv_gpu_memory_used_bytes"
METRIC_GPU_MEMORY_TOTAL: Final = "nv_gpu_memory_total_bytes"
METRIC_GPU_POWER: Final = "nv_gpu_power_usage"
METRIC_SUCCESSES: Final = "nv_inference_request_success"
METRIC_COMPUTE_INPUT: Final = "nv_inference_compute_input_duration_us"
METRIC_COMPUTE_INFER: Final = "nv_inference_compute_infer_duration_us"
METRIC_COMPUTE_OUTPUT: Final = "nv_inference_compute_output_duration_us"
LABEL_SERVICE: Final = "inference_service"
LABEL_NAMESPACE: Final = "namespace"
LABEL_REVISION: Final = "revision"


def series_labels(namespace: str, service: str, revision: str = "") -> dict[str, str]:
    """Return the labels of a series of a service, or of one revision of it."""
    labels = {LABEL_NAMESPACE: namespace, LABEL_SERVICE: service}
    return labels | {LABEL_REVISION: revision} if revision else labels


# Latency objectives must be bucket bounds, since queries interpolate between them.
LATENCY_BUCKETS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.25,
    0.3, 0.5, 0.75, 1.0, 2.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
# Those of OpenTelemetry's conventions, and two above for cold starts.
FIRST_TOKEN_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0,
)  # fmt: skip
OUTPUT_TOKEN_BUCKETS: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
TOKEN_BUCKETS: Final = tuple(4**power for power in range(14))
BATCH_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def trust_pickle_setting(pins: str, index: int | None = None) -> str:
    """Return the option that sets the pins of pickles, FILE=SHA256, in a manifest, as a shell reads it.

    `index` of the variable in an `env` that has others; without it the option replaces the whole list.
    """
    import json
    import shlex

    value = json.dumps(pins, ensure_ascii=False)
    variable = f"{{name: {ENV_TRUST_PICKLE}, value: {value}}}"
    edit = f"env=[{variable}]" if index is None else f"env[{index}]={variable}"
    return f"--set {shlex.quote(f'spec.predictor.model.{edit}')}"

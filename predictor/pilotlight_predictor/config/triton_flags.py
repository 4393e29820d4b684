"""Flags of Triton and TensorRT Inference Server without an effect here: form of the value, and why nothing applies.

The third kind beside aliases of settings and the translations of compat.py; docs/how-to/migrate-triton.md lists all.
"""

from typing import Final

INTEGER: Final = r"-?\d+"
NUMBER: Final = r"-?\d+(\.\d*)?"
SWITCH: Final = r"(?i)true|false|1|0|yes|no|on|off|"
TEXT: Final = r".*"
OF_NAME: Final = r"[^,]*,[^=]+=.*"
_EVENT_LOOP: Final = "one event loop serves all connections; --workers adds processes"
_MEMORY: Final = "each runtime allocates its own memory"
_TENSORFLOW: Final = "a setting of TensorFlow 1"
_SAGEMAKER: Final = "there is no SageMaker frontend; POST /invocations is served on the HTTP port"
_VERTEX: Final = "there is no Vertex AI frontend"
_TLS: Final = "--tls-cert, --tls-key and --tls-client-ca secure both ports"
_LIMITER: Final = "instances share no counted resources; GPU admission of the platform shares GPUs"

NO_EFFECT: Final = {
    "--allow-cpu-metrics": (SWITCH, "CPU and memory of the process are always among the metrics"),
    "--allow-model-load-unload": (SWITCH, "the control mode decides"),
    "--allow-profiling": (SWITCH, "a profile needs an admin"),
    "--allow-sagemaker": (SWITCH, _SAGEMAKER),
    "--allow-vertex-ai": (SWITCH, _VERTEX),
    "--backend-config": (r"[^,]*,[^=]+=.*|[^,=]+=.*", "backends read the parameters of config.pbtxt"),
    "--backend-directory": (TEXT, "backends are Python packages"),
    "--buffer-manager-thread-count": (INTEGER, _MEMORY),
    "--cache-directory": (TEXT, "the response cache is built in"),
    "--cuda-memory-pool-byte-size": (r"\d+:\d+", _MEMORY),
    "--cuda-virtual-address-size": (r"\d+:\d+", _MEMORY),
    "--disable-auto-complete-config": (SWITCH, "what a configuration leaves out is derived from the model"),
    "--enable-peer-access": (SWITCH, _MEMORY),
    "--grpc-http2-max-pings-without-data": (INTEGER, "it limits clients; a gRPC server pings whatever its value"),
    "--grpc-infer-allocation-pool-size": (INTEGER, "requests need no pool"),
    "--grpc-infer-thread-count": (INTEGER, _EVENT_LOOP),
    "--grpc-max-response-pool-size": (INTEGER, "unread responses are bounded by --max-bytes-in-flight"),
    "--grpc-root-cert": (TEXT, _TLS),
    "--grpc-server-cert": (TEXT, _TLS),
    "--grpc-server-key": (TEXT, _TLS),
    "--grpc-stream-infer-thread-count": (INTEGER, _EVENT_LOOP),
    "--host-policy": (OF_NAME, "the platform places processes; --threads bounds a runtime"),
    "--http-health-port": (INTEGER, "health is on the HTTP port"),
    "--http-thread-count": (INTEGER, _EVENT_LOOP),
    "--metrics-config": (r"[^=]+=.*", "the set of metrics is fixed"),
    "--min-supported-compute-capability": (NUMBER, "runtimes reject GPUs that they cannot use"),
    "--model-load-gpu-limit": (r"\d+:\d*\.?\d+", "GPU admission of the platform bounds the memory of a model"),
    "--model-load-retry-count": (INTEGER, "a load that fails is not repeated"),
    "--model-load-thread-count": (INTEGER, "four models load at a time"),
    "--model-namespacing": (SWITCH, "names are unique over all repositories; the first one wins"),
    "--pinned-memory-pool-byte-size": (INTEGER, _MEMORY),
    "--platform-config-file": (TEXT, _TENSORFLOW),
    "--rate-limit": (r"execution_count|off", _LIMITER),
    "--rate-limit-resource": (r"[^:]+:\d+(:\d+)?", _LIMITER),
    "--repoagent-directory": (TEXT, "there are no repository agents"),
    "--reuse-grpc-port": (SWITCH, "--workers shares ports"),
    "--reuse-http-port": (SWITCH, "--workers shares ports"),
    "--sagemaker-port": (INTEGER, _SAGEMAKER),
    "--sagemaker-safe-port-range": (r"\d+-\d+", _SAGEMAKER),
    "--sagemaker-thread-count": (INTEGER, _SAGEMAKER),
    "--strict-model-config": (SWITCH, "what a configuration leaves out is derived from the model"),
    "--tf-add-vgpu": (TEXT, _TENSORFLOW),
    "--tf-allow-soft-placement": (SWITCH, _TENSORFLOW),
    "--tf-gpu-memory-fraction": (NUMBER, _TENSORFLOW),
    "--vertex-ai-default-model": (TEXT, _VERTEX),
    "--vertex-ai-port": (INTEGER, _VERTEX),
    "--vertex-ai-thread-count": (INTEGER, _VERTEX),
}
SILENT: Final = frozenset({("--rate-limit", "off")})  # what happens anyway
REFUSED: Final = {"--grpc-use-ssl": _TLS, "--grpc-use-ssl-mutual": _TLS}
UNUSED: Final = NO_EFFECT.keys() | REFUSED.keys()

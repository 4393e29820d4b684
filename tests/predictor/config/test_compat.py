"""Command lines, variables and files that were written for other servers work here unchanged."""

import re
from pathlib import Path

import pytest

from pilotlight_predictor.config import Limits, SettingsError, limits, parse
from pilotlight_predictor.config.triton_flags import NO_EFFECT
from pilotlight_predictor.observability.request_traces import RequestTraces

SERVING = """
server:
  host: 0.0.0.0
  port: 8080
  workers: 4
model:
  path: models/production
  version: v1.2.0
  device: cuda
  precision: fp16
performance:
  max_batch_size: 64
  batch_timeout_ms: 50
  inference_timeout_s: 30
safeguards:
  max_request_size_mb: 10
  rate_limit:
    enabled: true
    requests_per_minute: 1000
  input_validation:
    enabled: true
    max_sequence_length: 512
"""


def test_the_serving_capabilitys_file_loads_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "inference.yaml"
    file.write_text(SERVING)
    settings = parse(["--config", str(file)], {})
    assert (settings.server.http_port, settings.server.workers) == (8080, 4)
    model = settings.model
    assert (model.path, model.version, model.device, model.precision) == ("models/production", "v1.2.0", "cuda", "fp16")
    assert (settings.performance.max_batch_size, settings.performance.batch_timeout_ms) == (64, 50.0)
    assert limits(settings) == limits(settings, predict=True) == Limits(10 << 20, 30.0, 1000, 512, 100)
    assert settings.warnings == ()


def test_the_serving_capabilitys_variables_load_unchanged() -> None:
    settings = parse(
        [],
        {
            "INFERENCE_HOST": "127.0.0.1",
            "INFERENCE_PORT": "9000",
            "INFERENCE_WORKERS": "4",
            "INFERENCE_MODEL_PATH": "models/production",
            "INFERENCE_MODEL_VERSION": "latest",
            "INFERENCE_MAX_BATCH_SIZE": "16",
            "INFERENCE_TIMEOUT_SECONDS": "12.5",
            "INFERENCE_MAX_REQUEST_SIZE_MB": "5",
            "INFERENCE_RATE_LIMIT_PER_MINUTE": "60",
        },
    )
    assert (settings.server.host, settings.server.http_port, settings.server.workers) == ("127.0.0.1", 9000, 4)
    assert (settings.model.path, settings.performance.max_batch_size) == ("models/production", 16)
    assert limits(settings) == Limits(5 << 20, 12.5, 60, None, 100)
    assert settings.warnings == ()


def test_limits_bind_predict_alone_until_they_are_set() -> None:
    settings = parse(["--model-path=m"], {})
    assert limits(settings, predict=True) == Limits(10 << 20, 30.0, 1000, 512, 100)
    assert limits(settings) == Limits(64 << 20, 0.0, None, None)


def test_a_limit_that_is_set_binds_every_dialect_and_one_that_is_off_binds_none() -> None:
    settings = parse(["--model-path=m", "--rate-limit-per-minute=9", "--input-validation-enabled=false"], {})
    assert limits(settings).requests_per_minute == limits(settings, predict=True).requests_per_minute == 9
    assert limits(settings, predict=True).max_sequence_length is None
    off = parse(["--model-path=m", "--rate-limit-per-minute=9", "--rate-limit-enabled=false"], {})
    assert limits(off, predict=True).requests_per_minute is None


def test_kserves_flags_work() -> None:
    settings = parse(["--model_name=iris", "--model_dir=/mnt/models", "--http_port=8080"], {})
    assert (settings.model.name, settings.model.path, settings.server.http_port) == ("iris", "/mnt/models", 8080)


def test_a_long_triton_command_line_works() -> None:
    argv = [
        "--model-repository=/models",
        "--model-repository=s3://bucket/models",
        "--http-address",
        "127.0.0.1",
        "--http-port=8500",
        "--allow-grpc=true",
        "--grpc-port=8501",
        "--allow-metrics=true",
        "--metrics-port=8502",
        "--allow-cpu-metrics=true",
        "--allow-gpu-metrics=false",
        "--metrics-interval-ms",
        "2000",
        "--log-verbose=1",
        "--log-info=true",
        "--log-format=ISO8601",
        "--model-control-mode=explicit",
        "--load-model=iris",
        "--load-model=vad",
        "--repository-poll-secs=5",
        "--strict-readiness=false",
        "--exit-timeout-secs=10",
        "--http-max-input-size=1048576",
        "--cache-config=local,size=1048576",
        "--rate-limit",
        "execution_count",
        "--cuda-memory-pool-byte-size",
        "0:536870912",
        "--disable-auto-complete-config",
        "--backend-config=python,shm-default-byte-size=1048576",
        "--exit-on-error=false",
        "--grpc-use-ssl=false",
        "--id=one",
        "--compat=triton",
    ]
    settings = parse(argv, {})
    server, model = settings.server, settings.model
    assert model.repositories == ("/models", "s3://bucket/models")
    assert (server.host, server.http_port, server.grpc_port, server.metrics_port) == ("127.0.0.1", 8500, 8501, 8502)
    assert (model.control_mode, model.load_models, model.poll_secs) == ("explicit", ("iris", "vad"), 5.0)
    assert (server.strict_readiness, server.exit_on_error, server.exit_timeout_s) == (False, False, 10.0)
    assert (server.http_max_input_size, settings.performance.response_cache_bytes, server.id) == (
        1 << 20,
        1 << 20,
        "one",
    )
    seen = settings.observability
    assert (seen.log_level, seen.log_format, seen.gpu_metrics, seen.metrics_interval_ms) == (
        "debug",
        "text",
        False,
        2000.0,
    )
    ignored = {warning.partition(" ")[0] for warning in settings.warnings}
    assert ignored == {
        "--allow-cpu-metrics", "--rate-limit", "--cuda-memory-pool-byte-size", "--disable-auto-complete-config",
        "--backend-config",
    }  # fmt: skip


@pytest.mark.parametrize("compat", ["triton", "trtis"])
def test_compat_brings_ports_status_and_strictness(compat: str) -> None:
    server = parse(["--model-path=m", f"--compat={compat}"], {}).server
    assert (server.http_port, server.grpc_port, server.metrics_port) == (8000, 8001, 8002)
    assert (server.not_ready_status, server.strict_readiness, server.exit_timeout_s) == (400, True, 30.0)
    assert server.exit_on_error
    lenient = parse(["--model-path=m", f"--compat={compat}", "--strict-readiness=false"], {}).server
    assert lenient.exit_on_error == (compat == "triton")
    assert parse(["--model-path=m"], {}).server.not_ready_status == 503


def test_a_tensorrt_inference_server_command_line_works() -> None:
    argv = [
        "--model-store=/tmp/models",
        "--platform-config-file=p.cfg",
        "--tf-gpu-memory-fraction=0.5",
        "--strict-model-config=false",
        "--allow-profiling",
        "--http-thread-count",
        "8",
        "--exit-timeout-secs=30",
    ]
    settings = parse(argv, {})
    assert settings.model.repositories == ("/tmp/models",)
    assert (settings.model.control_mode, settings.model.poll_secs) == ("versions", 15.0)
    assert len(settings.warnings) == 5


def test_a_control_mode_that_is_given_wins_over_model_stores() -> None:
    assert parse(["--model-store=/m", "--model-control-mode=none"], {}).model.control_mode == "none"
    assert parse(["--model-store=/m", "--allow-poll-model-repository=true"], {}).model.control_mode == "poll"
    assert parse(["--model-repository=/m"], {}).model.control_mode == "none"


@pytest.mark.parametrize(
    ("argv", "environ", "told"),
    [
        ([], {"K_SERVICE": "s"}, True),
        ([], {"PILOTLIGHT_SERVICE": "s"}, True),
        (["--admin-loopback=true"], {"K_SERVICE": "s"}, True),
        (["--trusted-proxies=127.0.0.0/8"], {"K_SERVICE": "s"}, False),
        (["--rate-limit-enabled=false"], {"K_SERVICE": "s"}, False),
        (["--admin-loopback=false"], {}, False),
    ],
)
def test_a_rate_limit_that_can_bind_nobody_is_told(argv: list[str], environ: dict[str, str], told: bool) -> None:
    warnings = parse(["--model-path=m", "--rate-limit-per-minute=9", *argv], environ).warnings
    assert [warning.split()[0] for warning in warnings] == ["safeguards.rate_limit"] * told


@pytest.mark.parametrize("name", ["grpc", "metrics"])
def test_allow_false_switches_a_port_off_whatever_its_number(name: str) -> None:
    for argv in ([f"--allow-{name}=false", f"--{name}-port=9999"], [f"--{name}-port=9999", f"--allow-{name}", "false"]):
        assert getattr(parse(["--model-path=m", *argv], {}).server, f"{name}_port") == -1


@pytest.mark.parametrize(
    ("argv", "level"),
    [
        (["--log-verbose=0"], "info"),
        (["--log-verbose=2"], "debug"),
        (["--log-info=false"], "warning"),
        (["--log-info=false", "--log-warning=false"], "error"),
        (["--log-info=false", "--log-level=debug"], "debug"),
    ],
)
def test_tritons_log_flags_become_one_level(argv: list[str], level: str) -> None:
    assert parse(["--model-path=m", *argv], {}).observability.log_level == level


VALUES = ("1", "true", "a,b=c", "1:2", "1-2", "off:3", "none", "execution_count", "a=b")


@pytest.mark.parametrize("flag", sorted(NO_EFFECT))
def test_a_flag_without_effect_is_accepted_with_one_warning_that_has_the_reason(flag: str) -> None:
    pattern, reason = NO_EFFECT[flag]
    value = next(each for each in VALUES if re.fullmatch(pattern, each))
    for words in ([flag, value], [f"{flag}={value}", "--access-log"]):
        settings = parse(["--model-path=m", *words], {})
        assert settings.warnings == (f"{flag} has no effect: {reason}",)
        assert settings.observability.access_log == ("--access-log" in words)


@pytest.mark.parametrize(
    "words", ["--http-thread-count=x", "--rate-limit=nix", "--backend-config=nix", "--cache-config=local"]
)
def test_a_value_that_triton_refuses_is_refused(words: str) -> None:
    with pytest.raises(SettingsError, match=words.partition("=")[2]):
        parse(["--model-path=m", words], {})


def test_trace_flags_are_the_settings_at_start() -> None:
    new = ["--trace-config=triton,file=t.json", "--trace-config=rate=7", "--trace-config", "level=TENSORS"]
    old = ["--trace-file=t.json", "--trace-rate=7", "--trace-level=TENSORS", "--trace-count=3"]
    found = [
        RequestTraces(list, "", parse(["--model-path=m", *argv], {}).observability.trace_config) for argv in (new, old)
    ]
    expected = {"trace_file": "t.json", "trace_rate": "7", "trace_level": ["TENSORS"]}
    assert [traces.settings().items() >= expected.items() for traces in found] == [True, True]
    assert found[1].change({"trace_rate": "9"})["trace_rate"] == "9"
    assert found[1].change({"trace_rate": None})["trace_rate"] == "7"
    spans = parse(["--model-path=m", "--trace-config=opentelemetry,url=http://c:4318"], {}).observability
    assert spans.otel_endpoint == "http://c:4318"


def test_a_flag_that_would_protect_the_server_is_refused() -> None:
    for flag in ("--grpc-use-ssl", "--grpc-use-ssl-mutual"):
        with pytest.raises(SettingsError, match="is not supported"):
            parse(["--model-path=m", flag], {})


@pytest.mark.parametrize(
    ("environ", "port"), [({}, 8000), ({"PILOTLIGHT_SERVICE": "s"}, 8080), ({"K_SERVICE": "s"}, 8080)]
)
def test_a_replica_of_a_service_keeps_the_ports_of_its_probes(environ: dict[str, str], port: int) -> None:
    server = parse(["--model-path=m", "--compat=triton"], environ).server
    assert (server.http_port, server.grpc_port, server.metrics_port) == (port, port + 1, port + 2)
    assert server.not_ready_status == 400

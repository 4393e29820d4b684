"""What a mistake reads like: the field, the value, what it must be, and where it was found. All of them at once."""

import subprocess
import sys
from pathlib import Path

import pytest

from pilotlight_predictor.config import SettingsError, command_line, parse

MODEL = ["--model-path", "m.onnx"]


def problems(*argv: str, file: str | None = None, tmp_path: Path | None = None, **environ: str) -> list[str]:
    words = [*MODEL, *argv]
    if file is not None and tmp_path is not None:
        (tmp_path / "i.yaml").write_text(file)
        words += ["--config", str(tmp_path / "i.yaml")]
    with pytest.raises(SettingsError) as caught:
        parse(words, environ)
    return [problem.replace(f"{tmp_path}/", "") for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--http-port=70000"], "--http-port: server.http_port = 70000, must be a port from 0 to 65535"),
        (["--http-port=-1"], "--http-port: server.http_port = -1, must be a port from 0 to 65535"),
        (["--port", "x"], "--port: server.http_port = x, must be a port from 0 to 65535"),
        (
            ["--metrics-port=x"],
            "--metrics-port: server.metrics_port = x, must be a port from 0 to 65535, or -1 or none for off",
        ),
        (["--workers=0"], "--workers: server.workers = 0, must be a whole number from 1 to 1024"),
        (["--strict-readiness=maybe"], "--strict-readiness: server.strict_readiness = maybe, must be true or false"),
        (["--device=tpu"], "--device: model.device = tpu, must be auto, cpu, cuda or cuda:N"),
        (["--precision=int8"], "--precision: model.precision = int8, must be one of auto, fp32, fp16, bf16"),
        (
            ["--exit-timeout-secs=inf"],
            "--exit-timeout-secs: server.exit_timeout_s = inf, must be a number of seconds, 0 or greater",
        ),
        (
            ["--trusted-proxies=here"],
            "--trusted-proxies: server.trusted_proxies = here, must be a network such as 10.0.0.0/8",
        ),
        (
            ["--trust-pickle=a.pkl=12"],
            "--trust-pickle: model.trusted_pickles = a.pkl=12,"
            " must be a file name, = and the 64 hex digits of its SHA-256",
        ),
        (
            ["--http-max-input-size=64MX"],
            "--http-max-input-size: server.http_max_input_size = 64MX,"
            " must be a number of bytes such as 67108864 or 64MiB",
        ),
        (["--modle-name=x"], "--modle-name: is not a flag; did you mean --model-name?"),
        (["--modle_name", "x"], "--modle_name: is not a flag; did you mean --model-name?"),
        (["--zzzzzz"], "--zzzzzz: is not a flag; --help lists them"),
        (["stray"], "stray: is not a flag; a value follows its flag, as in --model-path stray"),
        (["--model-name"], "--model-name: needs a value, text"),
        (["--model-name", "--port=1"], "--model-name: needs a value, text"),
        (["--no-access-log=true"], "--no-access-log: takes no value; write --access-log=…"),
        (
            ["--load-model=a"],
            "--load-model: model.load_models = a,"
            " must be empty while model.control_mode is none; add --model-control-mode=explicit",
        ),
        (
            ["--park-after=60"],
            "--park-after: model.park_after_s = 60, must be 0 while model.park_memory is 0; add --park-memory=25%",
        ),
        (
            ["--park-memory=101%"],
            "--park-memory: model.park_memory = 101%,"
            " must be a number of bytes such as 8GiB, or a percentage of the machine's such as 25%",
        ),
        (
            ["--grpc-port=9000", "--http-port=9000"],
            "--grpc-port: server.grpc_port = 9000, must be another port than server.http_port",
        ),
        *(
            (["--fronts=2", *flags], f"--fronts: server.fronts = 2, must be 0 with {reason}")
            for flags, reason in [
                (["--workers=2"], "server.workers = 2; set one of --fronts and --workers"),
                (
                    ["--allow-shared-memory"],
                    "server.allow_shared_memory: a region belongs to one process; remove one of them",
                ),
                (
                    ["--trace-config=triton,file=x"],
                    "a trace file: request traces need a single process; remove one of them",
                ),
            ]
        ),
        (["--http-port=8082"], "--http-port: server.metrics_port = 8082, must be another port than server.http_port"),
        (
            ["--allow-http=false"],
            "--allow-http: allow-http = false, must be true: HTTP cannot be turned off",
        ),
        (["--log-verbose=much"], "--log-verbose: log-verbose = much, must be a whole number, 0 or greater"),
        (["--allow-grpc=2"], "--allow-grpc: allow-grpc = 2, must be true or false"),
        (
            ["--cache-config=local,size=big"],
            "--cache-config: performance.response_cache_bytes = big, must be a number of bytes",
        ),
        (
            ["--grpc-use-ssl=true"],
            "--grpc-use-ssl: is not supported; --tls-cert, --tls-key and --tls-client-ca secure both ports",
        ),
    ],
)
def test_a_flag_that_cannot_hold(argv: list[str], sentence: str) -> None:
    assert problems(*argv) == [sentence]


def test_a_variable_that_cannot_hold() -> None:
    sentence = "INFERENCE_PORT: server.http_port = http, must be a port from 0 to 65535"
    assert problems(INFERENCE_PORT="http") == [sentence]


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("server:\n  port: many\n", "i.yaml:2:9: server.http_port = many, must be a port from 0 to 65535"),
        ("server:\n  prot: 80\n", "i.yaml:2:3: server.prot is not a setting; did you mean server.port?"),
        ("sever: {}\n", "i.yaml:1:1: sever is not a setting; did you mean server?"),
        ("server: 5\n", "i.yaml:1:9: server must be a mapping of settings"),
        ("- 1\n", "i.yaml:1:1: the document must be a mapping of settings"),
        ("model:\n  name: a\n  name: b\n", "i.yaml:3:3: model.name is set twice"),
        ("model:\n  name: [a]\n", "i.yaml:2:9: model.name = a sequence, must be text"),
        ("apiVersion: v9\n", "i.yaml:1:13: apiVersion = v9, must be pilotlight.dev/v1alpha1"),
        (
            "server:\n  trusted_proxies: [10.0.0.0/8, x]\n",
            "i.yaml:2:33: server.trusted_proxies = x, must be a network such as 10.0.0.0/8",
        ),
        ("safeguards:\n  rate_limit: true\n", "i.yaml:2:15: safeguards.rate_limit must be a mapping of settings"),
    ],
)
def test_a_line_of_the_file_that_cannot_hold(file: str, sentence: str, tmp_path: Path) -> None:
    assert problems(file=file, tmp_path=tmp_path) == [sentence]


def test_a_file_that_is_not_yaml_says_where(tmp_path: Path) -> None:
    (sentence,) = problems(file="server: {port: 1\nmodel: ]", tmp_path=tmp_path)
    assert sentence.startswith("i.yaml:2:")
    assert "is not YAML" in sentence


def test_a_file_that_is_not_there_names_who_asked_for_it() -> None:
    (sentence,) = problems(INFERENCE_CONFIG="none.yaml")
    assert sentence == "INFERENCE_CONFIG: config = none.yaml, must be a readable file (No such file or directory)"


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    found = problems("--workers=x", "--prot=1", file="server:\n  nope: 1\n", tmp_path=tmp_path, INFERENCE_DEVICE="x")
    assert [sentence.partition(": ")[0] for sentence in found] == [
        "--workers",
        "--prot",
        "INFERENCE_DEVICE",
        "i.yaml:2:3",
    ]


def test_a_server_without_a_model_is_told_what_to_give() -> None:
    with pytest.raises(SettingsError, match="--model-path or --model-repository"):
        parse([], {})


def test_a_missing_model_is_told_beside_a_mistake_that_does_not_explain_it() -> None:
    with pytest.raises(SettingsError) as caught:
        parse(["--http-port=x"], {})
    assert [sentence.partition(" ")[0] for sentence in caught.value.problems] == ["--http-port:", "model.path"]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--config=none.yaml"], "must be a readable file"),
        (["--model-path"], "--model-path: needs a value"),
        (["--modle-path=m.onnx"], "did you mean --model-path?"),
        (["m.onnx"], "as in --model-path m.onnx"),
    ],
)
def test_a_model_that_was_given_in_vain_is_not_told_to_be_missing(argv: list[str], sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(argv, {})
    (only,) = caught.value.problems
    assert sentence in only


@pytest.mark.parametrize("file", ["model: {path: m.onnx", "modle:\n  path: m.onnx\n", "model: m.onnx\n"])
def test_a_model_within_a_file_that_cannot_be_read_is_not_told_to_be_missing(file: str, tmp_path: Path) -> None:
    (tmp_path / "i.yaml").write_text(file)
    with pytest.raises(SettingsError) as caught:
        parse([f"--config={tmp_path / 'i.yaml'}"], {})
    assert len(caught.value.problems) == 1


def test_a_service_in_place_of_settings_is_one_mistake() -> None:
    file = Path(__file__).resolve().parents[3] / "examples/services/iris.yaml"
    with pytest.raises(SettingsError) as caught:
        parse([f"--config={file}"], {})
    (only,) = caught.value.problems
    assert only.endswith(": this is an InferenceService, for platformctl render; --config needs a settings file")


def test_an_empty_file_and_empty_sections_are_no_mistake(tmp_path: Path) -> None:
    file = tmp_path / "i.yaml"
    for content in ("", "# nothing\n", "server:\nmodel:\n  name:\n"):
        file.write_text(content)
        assert parse([*MODEL, f"--config={file}"], {}) == parse(MODEL, {})


def test_a_mistake_ends_with_code_2_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command_line([*MODEL, "--workers=x", "--prot=1"], {})
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[1] == "error: --prot: is not a flag; did you mean --port?"


def test_reading_flags_and_variables_imports_nothing_heavy() -> None:
    code = (
        "import sys; from pilotlight_predictor.config import parse;"
        "parse(['--model-path=m'], {'INFERENCE_PORT': '1'});"
        "print([name for name in ('yaml', 'click', 'argparse', 'numpy', 'aiohttp', 'difflib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

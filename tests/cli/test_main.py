"""The program around the verbs: what is imported, what is printed where, and which exit code means what."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from pilotlight import errors
from pilotlight.targets.target import Key
from platformctl import main, targets
from platformctl.services.model_argument import describe

DOCS = Path(__file__).resolve().parents[2] / "docs/reference/cli.md"
HEAVY = ("aiohttp", "jinja2", "numpy", "yaml", "orjson", "torch", "onnxruntime", "kubernetes", "asyncio", "difflib")


@pytest.mark.parametrize(("argv", "code"), [(["list"], 0), (["status"], 3), (["stop", "--yes"], 3), (["stop", "x"], 3)])
def test_looking_at_microservices_imports_nothing_that_starts_one(argv: list[str], code: int, tmp_path: Path) -> None:
    program = (
        f"import sys; from platformctl.main import run; assert run(['microservice', *{argv}]) == {code};"
        "print(*(name for name in sys.modules if name.startswith(('yaml', 'aiohttp', 'pilotlight', 'platformctl'))))"
    )
    environ = {"PILOTLIGHT_HOME": str(tmp_path), "PILOTLIGHT_MICROSERVICE_REGISTRY": str(tmp_path / "registry")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env={**os.environ, **environ}, check=True, capture_output=True, text=True)
    parts = ("yaml", "aiohttp", "batch", "media", "observe", "lepton", "brev", "interpret", "run_arguments", "plan")
    assert not [name for name in done.stdout.splitlines()[-1].split() if {*name.split(".")} & {*parts}]


def test_help_imports_no_verb_and_nothing_heavy() -> None:
    code = (
        "import sys; from platformctl.main import run; assert run(['--help']) == 0;"
        f"heavy = [n for n in {HEAVY} if n in sys.modules];"
        "heavy += [n for n in sys.modules if n.startswith(('platformctl.commands', 'pilotlight'))];"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(verb in done.stdout for verb in main.VERBS)


@pytest.mark.parametrize("verb", sorted(main.VERBS))
def test_each_verb_is_a_command_of_its_own_file_and_documented(verb: str) -> None:
    command = main.platformctl.get_command(click.Context(main.platformctl), verb)
    assert command is not None
    assert command.name == verb
    assert f"\n## {verb}\n" in DOCS.read_text("utf-8")


def test_the_page_documents_no_verb_that_does_not_exist() -> None:
    assert re.findall(r"^## (\w+)$", DOCS.read_text("utf-8"), re.M) == list(main.VERBS)


@pytest.mark.parametrize("argv", [["-o", "json", "version"], ["version", "-o", "json"]])
def test_output_json_may_stand_before_or_after_the_verb(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(argv) == 0
    assert json.loads(capsys.readouterr().out)["python"].startswith("3.")


def test_the_nearer_output_option_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["-o", "json", "version", "-o", "table"]) == 0
    assert capsys.readouterr().out.startswith("pilotlight")


def test_a_mistyped_verb_is_a_usage_error_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["dmo"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "no such verb: dmo; did you mean demo?" in err


@pytest.mark.parametrize("verb", main.ELSEWHERE)
def test_a_verb_of_another_tool_gets_a_hint(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb not in {*main.VERBS, *main.ALIASES}
    assert main.run([verb]) == 2
    assert f"no such verb: {verb}; instead: {main.ELSEWHERE[verb]}" in capsys.readouterr().err
    assert main.ELSEWHERE[verb].split()[0].strip(",") in main.VERBS


@pytest.mark.parametrize(("alias", "verb"), main.ALIASES.items())
def test_an_alias_runs_the_verb_and_is_not_listed(alias: str, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([alias, "--help"]) == 0
    assert f"platformctl {verb}" in capsys.readouterr().out
    assert main.run(["--help"]) == 0
    assert not re.search(rf"^  {alias} ", capsys.readouterr().out, re.M)


@pytest.mark.parametrize(
    ("there", "near"),
    [
        ([("default", "wine"), ("prod", "other")], "wine"), ([("prod", "win")], "prod/win"),
        ([("prod", "wine"), ("default", "wine")], "wine"), ([("default", "iris")], ""), ([("default", "win")], ""),
    ],
)  # fmt: skip
def test_the_nearest_service_is_of_this_namespace_or_named_with_its_own(there: list[Key], near: str) -> None:
    assert targets.near_service(("default", "win"), there) == near


@pytest.mark.parametrize(("argv", "same"), [(["help"], ["--help"]), (["help", "deploy"], ["deploy", "--help"])])
def test_help_is_a_verb_too(argv: list[str], same: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(argv) == main.run(same) == 0
    first, second = capsys.readouterr().out.split("Usage: ")[1:]
    assert first == second


def test_help_lists_each_verb_once_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    groups = re.split(r"^(\S.*):$", capsys.readouterr().out, flags=re.M)
    listed = {
        title: re.findall(r"^  (\w+) ", text, re.M) for title, text in zip(groups[1::2], groups[2::2], strict=True)
    }
    assert listed.pop("Options") == []
    assert {verb: title for title, verbs in listed.items() for verb in verbs} == {
        name: verb.group for name, verb in main.VERBS.items()
    }


@pytest.mark.parametrize("argv", [[], ["version", "--nope"], ["-o", "xml", "version"]])
def test_a_wrong_command_line_ends_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(argv) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (errors.PlatformError("it failed", "try this"), 1),
        (errors.NotFound("no such thing"), 3),
        (errors.TimedOut("too late"), 4),
        (errors.RolledBack("taken back"), 5),
        (KeyError("a defect"), 6),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_failure_has_its_exit_code(
    raised: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command("fails")
    def fails() -> None:
        raise raised

    monkeypatch.setitem(main.VERBS, "fails", "fails")
    monkeypatch.setattr(main.Verbs, "get_command", lambda *_: fails)
    assert main.run(["fails"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert code == 130 or str(raised) in err
    assert "Traceback" not in err


def test_debug_shows_the_traceback_of_a_defect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command("fails")
    def fails() -> None:
        raise KeyError("a defect")

    monkeypatch.setenv("PLATFORMCTL_DEBUG", "1")
    monkeypatch.setattr(main.Verbs, "get_command", lambda *_: fails)
    assert main.run(["version"]) == 6
    assert "Traceback" in capsys.readouterr().err


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines that this program was replaced by."""
    lines: list[list[str]] = []
    monkeypatch.setattr("os.execve", lambda path, argv, environ: lines.append([path, *argv]))
    return lines


@pytest.mark.parametrize("verb", ["serve", "fetch"])
def test_serve_and_fetch_become_the_predictor_with_every_word_as_given(verb: str, became: list[list[str]]) -> None:
    words = ["--help", "--model_name=a", "--load-model", "*", "plain", "--tail"]
    assert main.run([verb, *words]) == 0
    subcommand = [] if verb == "serve" else ["fetch"]
    assert became == [[sys.executable, sys.executable, "-m", "pilotlight_predictor", *subcommand, *words]]


@pytest.mark.parametrize(
    ("words", "ends"),
    [(["--model-path=gone"], True), (["--model-repository", "gone"], True), (["--model-path", "."], False),
     (["--model-path", "s3://bucket/m"], False), (["--model-path", "gone.py:shout"], True)],
)  # fmt: skip
def test_a_server_of_a_path_that_does_not_exist_ends(words: list[str], ends: bool, became: list[list[str]]) -> None:
    assert main.run(["serve", *words]) == 0
    assert ("--exit-on-error" in became[0][4:]) == ends
    assert became[0][-len(words) :] == words


@pytest.mark.parametrize(
    ("words", "name"),
    [(["--model-path", "My_Model.onnx"], "my-model"), (["--model_path=scorer.py:Big_One"], "big-one"),
     (["--model-path", "s3://bucket/Net.onnx"], "net"), (["--model-path", "scorer.py", "--model-name=own"], ""),
     (["--model-path", "scorer.py", "--config", "c.yaml"], ""), (["--model-repository", "."], "")],
)  # fmt: skip
def test_a_server_names_its_model_as_a_deploy_does(
    words: list[str], name: str, became: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "My_Model.onnx").write_bytes((DOCS.parents[2] / "examples/iris/model.onnx").read_bytes())
    (tmp_path / "scorer.py").write_text("class Big_One:\n    def predict(self, x):\n        return x\n")
    path = words[0].partition("=")[2] or words[1]
    assert main.run(["serve", *words]) == 0
    assert became[0][4:] == (["--model-name", name] if name else []) + words
    assert not name or describe(path).name == name


@pytest.mark.parametrize(
    ("terminal", "variable", "exits"), [(True, "", True), (False, "", False), (True, "false", False)]
)
def test_a_model_that_fails_ends_the_server_on_a_terminal_only(
    terminal: bool, variable: str, exits: bool, became: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    if variable:
        monkeypatch.setenv("INFERENCE_EXIT_ON_ERROR", variable)
    assert main.run(["serve", "--model-path", "."]) == 0
    assert ("--exit-on-error" in became[0]) == exits


@pytest.mark.parametrize(
    "argv",
    [["-o", "json", "fetch", "URI", "DIR"], ["fetch", "URI", "DIR", "-o", "json"],
     ["-o", "table", "fetch", "URI", "DIR", "-o", "json"]],
)  # fmt: skip
def test_a_fetch_says_json_wherever_the_option_stands(argv: list[str], tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"12345")
    places = {"URI": str(tmp_path / "m.onnx"), "DIR": str(tmp_path / "there")}
    done = _typed(*(places.get(word, word) for word in argv))
    assert json.loads(done.stdout)["path"] == str(tmp_path / "there/m.onnx"), done.stderr


@pytest.mark.parametrize("argv", [["-o", "json", "serve"], ["serve", "-o", "json"], ["serve", "--output=json"]])
def test_serve_prints_no_data_and_says_so(
    argv: list[str], became: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([*argv, "--model-path", "m.onnx"]) == 2
    assert not became
    assert "serve prints no data, so it has no -o; --log-format json makes its log JSON" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["serve", "fetch"])
def test_the_predictors_help_names_what_was_typed(verb: str) -> None:
    done = _typed(verb, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: platformctl {verb} ")


@pytest.mark.parametrize("argv", [["-o", "json", "--version"], ["--version", "-o", "json"]])
def test_version_is_a_flag_too(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == main.run(["version"]) == 0
    flag, verb = capsys.readouterr().out.split("pilotlight")[1:]
    assert flag == verb
    assert main.run(argv) == 0
    assert json.loads(capsys.readouterr().out)["python"].startswith("3.")


def test_options_without_a_verb_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["-o", "json"]) == 2
    assert "no verb is given" in capsys.readouterr().err


def _typed(*argv: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "platformctl", *argv], capture_output=True, text=True, timeout=60)

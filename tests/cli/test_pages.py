"""What the pages tell people to type works as it stands there, and what they show is what comes."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from tests.cli import cli_page
from tests.cli.conftest import ROOT, Call
from tests.embedded import processes_of
from tests.ports import free_port

from pilotlight.targets.local.home_directory import Home
from platformctl import main

PAGES = ("docs/reference/cli.md",)
VERBS = ("init", "validate", "render", "diff", "values", "explain", "simulate", "tune", "dashboard", "lint")
TYPED = re.compile(rf"^\$ (platformctl (?:{'|'.join(VERBS)})\b.*)$", re.MULTILINE)


def commands(page: str) -> list[str]:
    return TYPED.findall((ROOT / page).read_text())


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_these_verbs_on_a_page_runs(page: str, tmp_path: Path) -> None:
    """In their order and in one folder: what one writes the next may read. `# exit 1` names another end than 0."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    assert commands(page)
    for command in commands(page):
        expected = int(match.group(1)) if (match := re.search(r"# exit (\d)", command)) else 0
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == expected, f"{command}\n{done.stdout}{done.stderr}"


def test_the_readme_serves_a_model_and_a_class_as_it_says(tmp_path: Path) -> None:
    """Run the commands of `Serve your own model` in their order, on a platform of its own."""
    section = (ROOT / "README.md").read_text().partition("\n## Serve your own model\n")[2].partition("\n## ")[0]
    typed = re.findall(r"^\$ ((?:platformctl|curl) .*)$", section, re.MULTILINE)
    typed += re.findall(r"`(platformctl deploy [^`]*)`", section)
    assert [" ".join(command.split()[:2]) for command in typed] == [
        "platformctl deploy", "platformctl infer", "curl localhost:8090/iris/v1/models/iris:predict",
        "platformctl deploy",
    ]  # fmt: skip
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (tmp_path / "model.py").write_text(code)
    home, gateway_port = tmp_path / "home", str(free_port())
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ports = {"PILOTLIGHT_GATEWAY_PORT": gateway_port, "PILOTLIGHT_API_PORT": str(free_port())}
    env = {**os.environ, **ports, "PILOTLIGHT_HOME": str(home), "PILOTLIGHT_SERVICE_PORTS": "0", "PATH": path}
    try:
        for command in [*typed, "platformctl infer scorer --data '[1, 2, 3, 6]'"]:
            words = command.replace("8090", gateway_port).replace("curl ", "curl --fail-with-body --silent ")
            done = subprocess.run(
                ["bash", "-c", words], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert re.search(r"\b3$", done.stdout, re.MULTILINE), "the mean of what was sent"
    finally:
        subprocess.run([sys.executable, "-m", "platformctl", "down"], env=env, capture_output=True, timeout=60)
    assert processes_of(Home(home)) == []


def test_the_errors_on_the_page_are_what_comes(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/reference/cli.md").read_text()
    shown = re.findall(r"^service\.yaml:\d+:\d+: error .*$", page, re.MULTILINE)
    text = re.sub("^#.*\n", "", (ROOT / "examples/services/iris.yaml").read_text())
    text = text.replace("minReplicas", "minReplica").replace("maxReplicas: 3", "maxReplicas: three")
    (tmp_path / "service.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert call("validate", "-f", "service.yaml").err.splitlines()[:-1] == shown


def test_the_capabilities_on_the_page_are_all_there_are(call: Call, tmp_path: Path) -> None:
    from platformctl.options import record

    block = re.search(r"```yaml\n(knative: .*?)```", (ROOT / "docs/reference/cli.md").read_text(), re.DOTALL)
    assert block is not None
    (tmp_path / "cluster.yaml").write_text(block.group(1))
    assert (
        call("render", "-f", "examples/services/iris.yaml", "--capabilities", str(tmp_path / "cluster.yaml")).code == 0
    )
    assert yaml.safe_load(block.group(1)).keys() == record().fields.keys()


def test_every_verb_has_its_options_on_the_page() -> None:
    """What stands in the blocks is generated: tests/architecture/test_generated_pages.py."""
    assert not cli_page.missing()


def flags(command: click.Command) -> set[str]:
    """Those of its own verbs among them."""
    own = {
        flag for option in command.params for flag in (*option.opts, *option.secondary_opts) if flag.startswith("--")
    }
    return own.union(*map(flags, verbs_of(command)))


def verbs_of(command: click.Command) -> list[click.Command]:
    if not isinstance(command, click.Group):
        return []
    context = click.Context(command)
    return [each for name in command.list_commands(context) if (each := command.get_command(context, name))]


@pytest.mark.parametrize("verb", main.VERBS)
def test_the_help_of_a_verb_has_an_example_that_the_program_understands(verb: str) -> None:
    command = main.platformctl.get_command(click.Context(main.platformctl), verb)
    assert command is not None
    for each in [command, *verbs_of(command)]:
        example = re.search(r"Examples?:\s+platformctl (.*)", each.help or "")
        assert example is not None or verbs_of(each), each.name
        words = shlex.split(example.group(1)) if example else [verb]
        assert words[0] == verb
        passed_on = not flags(command)  # to the predictor, which reads its flags itself
        assert passed_on or {word for word in words if word.startswith("--")} <= flags(command)

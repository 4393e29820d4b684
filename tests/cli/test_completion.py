"""`platformctl completion`: scripts of shells, and how completion behaves where no platform answers."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from tests.cli.conftest import Call

from pilotlight.targets import table
from platformctl import main


def completed(line: str) -> list[str]:
    *args, incomplete = line.split(" ")
    shell = ShellComplete(main.platformctl, {}, "platformctl", "_PLATFORMCTL_COMPLETE")
    return [item.value for item in shell.get_completions(args, incomplete)]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_calls_this_program(shell: str, call: Call) -> None:
    done = call("completion", shell)
    assert done.code == 0
    assert f"_PLATFORMCTL_COMPLETE={shell}_complete" in done.out


def test_another_shell_is_refused_with_those_there_are(call: Call) -> None:
    done = call("completion", "tcsh")
    assert done.code == 2
    assert "'bash', 'zsh', 'fish'" in done.err


def test_bash_completes_a_verb_and_an_option() -> None:
    script = 'eval "$(python -m platformctl completion bash)"; COMP_WORDS=(platformctl roll); COMP_CWORD=1; \
_platformctl_completion platformctl; echo "${COMPREPLY[@]}"; COMP_WORDS=(platformctl rollback --t); COMP_CWORD=2; \
_platformctl_completion platformctl; echo "${COMPREPLY[@]}"'
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", script], env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60
    )
    verbs, options = done.stdout.splitlines()
    assert verbs == "rollback", done.stderr
    assert {"--to", "--target", "--timeout"} <= set(options.split())


@pytest.mark.parametrize(("verb", "others"), [("status", set()), ("explain", {"cluster"})])
def test_targets_are_completed_with_what_the_verb_can_plan_for(verb: str, others: set[str]) -> None:
    assert set(completed(f"{verb} --target ")) == {"local", "kubernetes", *table.MODULES} | others


def test_a_verb_is_completed_without_its_module() -> None:
    program = (
        "import sys; from click.shell_completion import ShellComplete; from platformctl import main;"
        "items = ShellComplete(main.platformctl, {}, 'platformctl', 'X').get_completions([], '');"
        "assert {*main.VERBS} <= {each.value for each in items};"
        "sys.exit(str([name for name in sys.modules if name.startswith(('platformctl.commands', 'pilotlight'))] or ''))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert not done.stderr.strip()


def test_files_are_completed_by_the_shell() -> None:
    shell = ShellComplete(main.platformctl, {}, "platformctl", "_PLATFORMCTL_COMPLETE")
    assert [item.type for item in shell.get_completions(["render", "-f"], "")] == ["file"]


def test_a_platform_that_is_down_completes_nothing_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PILOTLIGHT_HOME", str(tmp_path / "none"))
    assert completed("status ") == completed("logs iris --replica ") == completed("list -n ") == []
    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "none").exists()


def test_a_target_that_does_not_answer_is_waited_for_a_moment_only(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = tmp_path / "config"
        config.write_text(f"""
apiVersion: v1
kind: Config
current-context: silent
contexts: [{{name: silent, context: {{cluster: silent, user: silent}}}}]
clusters: [{{name: silent, cluster: {{server: "http://127.0.0.1:{silent.getsockname()[1]}"}}}}]
users: [{{name: silent, user: {{}}}}]
""")
        words = {"COMP_WORDS": "platformctl status --target kubernetes ", "COMP_CWORD": "4"}
        env = {**os.environ, "KUBECONFIG": str(config), "_PLATFORMCTL_COMPLETE": "bash_complete", **words}
        start = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "platformctl"], env=env, capture_output=True, timeout=60)
        assert time.monotonic() - start < 20  # a busy machine imports slowly; the client would wait for minutes
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, b"", b"")

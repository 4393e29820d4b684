"""Virtual environments of Python models: built once by uv, from wheels alone, for all with equal requirements.

    <folder>/<key>/                      an environment, complete once it has this name; touched by each use
    <folder>/<key>.lock                  held while it is built
    <folder>/<key>.partial-<random>/     a build, also one that was interrupted

An environment has what differs from this installation, which it sees behind its own packages. The installed versions
are preferred; Pilotlight's own dependencies are constraints. No Python of the environment runs here: a .pth file of a
wheel would run with it.
"""

import hashlib
import os
import re
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from signal import SIGKILL
from threading import Timer
from typing import Final

from pilotlight.wire.environments.install_command import install_command
from pilotlight.wire.environments.requirements import FILE, PROJECT, Requirements, RequirementsRefused, judge
from pilotlight.wire.shared_files import try_lock

Progress = Callable[[str], object]  # one line
MARK: Final = "pilotlight-requirements"  # file in an environment: the digest of its requirements
BUILT_IN: Final = Path(sys.prefix, "share", "pilotlight", "environments")  # those of an image
PLACEHOLDER: Final = "pilotlight"  # INSTALLER of metadata without a package
INSTALL_S: Final = 3600.0  # versions that exclude each other can be searched for without end
UNUSED_S: Final = 30 * 86400.0
INHERITED: Final = ("PATH", "HOME", "LANG", "TMPDIR", "NETRC", "SSL_CERT_FILE", "SSL_CERT_DIR")
PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")
# Within 2 GiB and 10 minutes: a long expression takes 400 times its size. What is left out is compiled when imported.
_COMPILE: Final = """
import compileall, py_compile, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2 << 30,) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (600,) * 2)
compileall.compile_dir(sys.argv[1], quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
"""
_NO_WHEEL: Final = re.compile(r"Wheels are required for `([\w.-]+)`")
_UNKNOWN: Final = re.compile(r"[Bb]ecause ([\w.-]+) was not found")


def is_active(requirements: Requirements) -> bool:
    """Return whether this process runs in the environment of these requirements."""
    return _digest_of(Path(sys.prefix)) == requirements.digest


def python_of(environment: Path) -> str:
    return str(environment / "bin" / "python")


def ensure(requirements: Requirements, folder: Path, environ: Mapping[str, str], progress: Progress) -> Path:
    """Return the environment of these requirements, built in `folder` unless it exists. Blocking.

    Two processes share one build. Raise RequirementsRefused if uv is missing or finds no solution, OSError.
    """
    if _digest_of(Path(sys.prefix)):
        message = f"{requirements.path} differs from the environment of this process"
        raise RequirementsRefused(message, "start it again")
    key = key_of(requirements)
    if (existing := _existing(key, folder)) is not None:
        return existing
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = try_lock(folder / f"{key}.lock")
    if lock is None:
        progress("waiting for another process to install them")
        lock = try_lock(folder / f"{key}.lock", wait=True)
    assert lock is not None
    with lock:
        if (existing := _existing(key, folder)) is not None:
            return existing
        for interrupted in (folder / key, *folder.glob(f"{key}.partial-*")):
            shutil.rmtree(interrupted, ignore_errors=True)
        stage = folder / f"{key}.partial-{secrets.token_hex(4)}"
        try:
            _build(requirements, stage, environ, progress)
            os.rename(stage, folder / key)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    return folder / key


def key_of(requirements: Requirements) -> str:
    """Return the name of the environment: a hash of requirements, interpreter, platform and this installation."""
    installed = sorted(each.name for each in _installed())
    parts = [requirements.digest, sys.version, sysconfig.get_platform(), sys.prefix, *_own_folders(), *installed]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def collect(folder: Path, needed: Collection[str], now: float) -> list[str]:
    """Remove interrupted builds, and what is not in `needed` and unused for UNUSED_S; return the latter's names."""
    removed = []
    for key in {entry.name.partition(".")[0] for entry in folder.iterdir()} if folder.is_dir() else set():
        lock, environment = try_lock(folder / f"{key}.lock"), folder / key
        if lock is None:  # it is being built
            continue
        with lock:
            for interrupted in folder.glob(f"{key}.partial-*"):
                shutil.rmtree(interrupted, ignore_errors=True)  # uv may outlive a process that was killed
            used = os.stat(environment if environment.exists() else lock.fileno()).st_mtime
            if key not in needed and now - used >= UNUSED_S:
                shutil.rmtree(environment, ignore_errors=True)
                (folder / f"{key}.lock").unlink()
                removed.append(key)
    return removed


def _digest_of(environment: Path) -> str:
    try:
        return (environment / MARK).read_text()
    except OSError:
        return ""


def _existing(key: str, folder: Path) -> Path | None:
    for environment in (folder / key, BUILT_IN / key):
        if _digest_of(environment):
            with suppress(OSError):  # of an image, read-only
                os.utime(environment)
            return environment
    return None


def _build(requirements: Requirements, stage: Path, environ: Mapping[str, str], progress: Progress) -> None:
    uv = _find_uv(requirements, environ)
    inherited = {name: value for name, value in environ.items() if name in INHERITED or name.upper() in PROXIES}
    env = {**inherited, **{name: value for name, value in environ.items() if name.startswith(("UV_", "XDG_"))}}
    common = [uv, "--no-config", "--no-python-downloads", "--no-progress", "--color=never"]
    run = _Uv(requirements, common, env, progress)
    run("venv", "--quiet", "--relocatable", "--no-project", "--python", sys.executable, str(stage), say=False)
    packages = next(stage.glob("lib/python*/site-packages"))
    lines = requirements.lines if requirements.name == FILE else _exported(requirements, stage, run)
    (stage / FILE).write_text("".join(f"{line}\n" for line in lines))
    constraints = own_dependencies()
    (stage / "constraints.txt").write_text("".join(f"{line}\n" for line in constraints))
    for installed in _installed():
        _add_placeholder(installed, packages)
    # Wheels alone: building from source runs code of the package.
    files = ["--requirements", str(stage / FILE), "--constraints", str(stage / "constraints.txt")]
    progress(f"resolving and downloading the packages of {requirements.path}")
    run("pip", "install", "--only-binary=:all:", "--python", python_of(stage), *files)
    for distribution in packages.glob("*.dist-info"):
        if (distribution / "INSTALLER").read_text().strip() == PLACEHOLDER:
            shutil.rmtree(distribution)
    own = "".join(f"import site; site.addsitedir({path!r})\n" for path in _own_folders())
    (packages / "pilotlight_installation.pth").write_text(own)
    progress("compiling bytecode")
    command = [sys.executable, "-I", "-c", _COMPILE, str(packages)]
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)  # noqa: S603
    (stage / MARK).write_text(requirements.digest)
    stage.chmod(0o755)  # a sandbox of another uid reads it; the folder above is private


class _Uv:
    """Runs uv and passes its lines on; a failure is RequirementsRefused."""

    def __init__(
        self, requirements: Requirements, common: Sequence[str], env: Mapping[str, str], progress: Progress
    ) -> None:
        self._requirements, self._common, self._env, self._progress = requirements, common, env, progress

    def __call__(self, *arguments: str, say: bool = True) -> str:
        """Run a command; return its stdout. `say`: report its progress."""
        command = [self._common[0], *arguments, *self._common[1:]]
        lines: list[str] = []
        with subprocess.Popen(  # noqa: S603
            command, env=self._env, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace",
        ) as process:  # fmt: skip
            limit = Timer(INSTALL_S, process.kill)
            limit.start()
            try:
                for line in process.stdout or ():
                    lines.append(line.rstrip())
                    if say and line[:1].isupper() and not line.startswith("Using"):
                        self._progress(lines[-1])
            except BaseException:
                process.kill()
                raise
            finally:
                limit.cancel()
        if process.returncode == -SIGKILL:
            message = f"{self._requirements.path}: uv was killed, as it is after {INSTALL_S / 60:.0f} minutes"
            raise RequirementsRefused(message, "pin versions to speed up the resolution")
        if process.returncode:
            raise _refusal(self._requirements, lines)
        return "\n".join(lines)


def _exported(requirements: Requirements, stage: Path, run: _Uv) -> tuple[str, ...]:
    """Return the lines of a lock file, from a copy: a workspace or a source may lead out of the folder."""
    folder = Path(requirements.folder)
    try:
        project = tomllib.loads(requirements.files[PROJECT].decode())
        workspace = "workspace" in project.get("tool", {}).get("uv", {})
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise RequirementsRefused(f"{folder / PROJECT} cannot be read: {error}") from None
    if workspace:
        raise RequirementsRefused(f"{folder / PROJECT}: tool.uv.workspace reads other folders", f"write a {FILE}")
    copy = stage / "project"
    copy.mkdir()
    for name, content in requirements.files.items():
        (copy / name).write_bytes(content)
    options = ("--frozen", "--offline", "--no-dev", "--no-emit-project", "--no-header", "--no-annotate", "--quiet")
    text = run("export", "--project", str(copy), *options, say=False)
    return judge(text.encode(), requirements.path)


def _find_uv(requirements: Requirements, environ: Mapping[str, str]) -> str:
    own = Path(sys.prefix, "bin", "uv")
    uv = str(own) if own.exists() else shutil.which("uv", path=environ.get("PATH"))
    if not uv:
        hint = f"{install_command('requirements')}, or put uv on the PATH of this process"
        raise RequirementsRefused(f"{requirements.path} needs uv, which is not installed", hint)
    return uv


def own_dependencies() -> list[str]:
    """Return what Pilotlight itself needs, extras excepted, such as `numpy>=2.1`."""
    return [line for line in metadata.requires("pilotlight") or () if "extra ==" not in line]


def _own_folders() -> list[str]:
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]


def _installed() -> Iterator[Path]:
    for folder in map(Path, _own_folders()):
        yield from folder.glob("*.dist-info") if folder.is_dir() else ()


def _add_placeholder(installed: Path, packages: Path) -> None:
    """Make uv count a package of this installation as installed; uninstalling it removes only these files."""
    folder, files = packages / installed.name, ("METADATA", "INSTALLER", "RECORD")
    if folder.exists() or not (installed / "METADATA").is_file():
        return
    folder.mkdir()
    shutil.copyfile(installed / "METADATA", folder / "METADATA")
    (folder / "INSTALLER").write_text(PLACEHOLDER)
    (folder / "RECORD").write_text("".join(f"{installed.name}/{name},,\n" for name in files))


def _refusal(requirements: Requirements, lines: Sequence[str]) -> RequirementsRefused:
    said = " ".join(line.strip() for line in lines if not line.startswith(("Using", "Resolved", "warning")))
    own = [line.partition(";")[0].strip() for line in own_dependencies()]
    conflicts = [line for line in own if re.search(rf"(?<![\w-]){re.escape(line)}(?![\w.])", said)]
    if conflicts:
        message = f"{requirements.path} conflicts with Pilotlight, which needs {', '.join(conflicts)}"
        return RequirementsRefused(f"{message}: {said}", "choose other versions, or convert the model to ONNX")
    if (missing := _NO_WHEEL.search(said)) is not None:
        here = f"Python {sys.version_info[0]}.{sys.version_info[1]} on {sysconfig.get_platform()}"
        message = f"{requirements.path}: {missing[1]} has no wheel for {here}, and source builds are off"
        return RequirementsRefused(f"{message}: {said}", f"pip wheel {missing[1]}, and add its folder to UV_FIND_LINKS")
    if (missing := _UNKNOWN.search(said)) is not None:
        message = f"{requirements.path}: {missing[1]} is in no configured package index"
        return RequirementsRefused(message, "correct the name, or set UV_DEFAULT_INDEX, UV_INDEX or UV_FIND_LINKS")
    return RequirementsRefused(f"{requirements.path} cannot be installed: {said}", "try it: uv pip install -r FILE")

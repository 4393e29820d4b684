"""Checks of `doctor` for this machine and its microservices: each returns findings with a fix and changes nothing."""

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final

from pilotlight import __version__
from pilotlight.contract import API_PORT, GATEWAY_PORT
from pilotlight.errors import PlatformError
from pilotlight.gateway.control_link import is_running
from pilotlight.gateway.listeners import Address as ListenAddress
from pilotlight.gateway.listeners import CannotListen, bind
from pilotlight.targets.local.control_process_launcher import (
    announced,
    answers,
    failure,
    leftovers,
    living,
    port_setting,
    should_run,
    stored_options,
)
from pilotlight.targets.local.gateway.https_settings import HttpsSettings, https_of
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.home_shutdown import processes_of_removed_home
from pilotlight.targets.local.model_snapshots import ModelSnapshots
from pilotlight.targets.local.prometheus_process import find, running, url_of
from pilotlight.targets.local.store.backup import count_services
from pilotlight.targets.local.store.schema import FRESH_START
from pilotlight.targets.local.supervisor.gpus import find_devices
from pilotlight.targets.local.supervisor.isolation.cgroups import Limits
from pilotlight.targets.local.supervisor.parking import cuda_checkpoint
from pilotlight.targets.local.supervisor.process_inspection import replica_processes
from pilotlight.targets.target import Finding
from pilotlight.wire.environments.install_command import install_command
from pilotlight.wire.tls import ReloadingTls, TlsFiles, UnusableFiles, valid_until
from platformctl import output
from platformctl.targets import Gateway

if TYPE_CHECKING:
    from pilotlight.targets.local.control_process_launcher import Address

LEAST_PYTHON: Final = (3, 11)
LEAST_DISK: Final = 1 << 30
LEAST_VALIDITY: Final = timedelta(days=14)
# Model runtimes: import name of each package.
RUNTIMES: Final = {"scikit-learn": "sklearn"} | {name: name for name in (
    "onnxruntime", "torch", "transformers", "xgboost", "lightgbm", "tensorflow", "tensorrt"
)}  # fmt: skip
PROBE_S = 5.0


def findings(home: Home) -> Iterator[Finding]:
    try:
        address = living(home)
    except PlatformError as error:
        yield Finding("fail", "home", str(error), error.hint)
        return
    yield python()
    yield from runtimes()
    yield gpus()
    yield from parking()
    yield folder(home)
    yield state(home, address)
    yield models(home)
    yield daemon(home, address)
    yield gateway(address)
    if address is not None and (served := https_of(stored_options(home))) is not None:
        yield https(served, datetime.now(UTC))
    yield from ports(address, _orphaned_gateway_port(home) if address is None else 0)
    yield prometheus(home, address)
    yield limits(home)
    yield forks()
    yield ipv6()


def python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < LEAST_PYTHON:
        return Finding("fail", "python", version, f"use {'.'.join(map(str, LEAST_PYTHON))} or newer")
    return Finding("ok", "python", f"{version}, {sys.executable}")


def runtimes() -> Iterator[Finding]:
    """A missing runtime matters only to its models; without any, only Python models run."""
    from importlib.metadata import PackageNotFoundError, version

    installed, missing = [], []
    for name, module in RUNTIMES.items():
        if find_spec(module) is None:
            missing.append(name)
            continue
        try:
            installed.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            installed.append(name)
    if not installed:
        yield Finding("warn", "runtimes", "none is installed: only Python models can run", install_command("onnx"))
    else:
        yield Finding(
            "ok", "runtimes", ", ".join(installed) + (f"; not installed: {', '.join(missing)}" if missing else "")
        )


def gpus() -> Finding:
    devices = find_devices()
    if devices:
        return Finding("ok", "gpus", f"{len(devices)} found")
    if os.path.isdir("/proc/driver/nvidia/gpus") and find_spec("pynvml") is None:
        fix = install_command("gpu")
        return Finding("warn", "gpus", "this machine has some, but nothing here can count them", fix)
    return Finding("ok", "gpus", "none; models run on the CPU")


def parking() -> Iterator[Finding]:
    """Yield whether the driver can park other servers than ours; nothing on a machine without GPUs."""
    if not find_devices() and cuda_checkpoint.ENV_LIBCUDA not in os.environ:
        return
    problem = cuda_checkpoint.unavailable()
    if problem is None:
        yield Finding("ok", "parking", f"CUDA {cuda_checkpoint.Driver().cuda_version}: any server can be parked")
    else:
        message = f"{problem}; only the predictor and engines that sleep can be parked"
        yield Finding("warn", "parking", message, problem.hint)


def folder(home: Home) -> Finding:
    """The nearest existing parent of the home folder must be writable."""
    existing = next(path for path in (home.root, *home.root.parents) if path.exists())
    if not _is_writable(existing):
        return Finding("fail", "home", f"{existing} cannot be written to", "set PILOTLIGHT_HOME to a folder of yours")
    free = shutil.disk_usage(existing).free
    if free < LEAST_DISK:
        message = f"{home.root}: {free >> 20} MiB free; state, logs and models need room"
        return Finding("warn", "home", message, "free some, or set PILOTLIGHT_HOME to a larger disk")
    return Finding("ok", "home", f"{home.root}, {free >> 30} GiB free")


def state(home: Home, address: "Address | None") -> Finding:
    """The database is only read; its check is bounded in time."""
    try:
        services = count_services(home.database) if home.database.exists() else 0
    except PlatformError as error:
        message, _, fix = str(error).partition("; ")
        return Finding("fail", "state", message, fix or error.hint)
    if not services and address is None and any(True for _ in replica_processes(home)):
        return Finding("fail", "state", f"{home.database} was lost: it has no services, but replicas run", FRESH_START)
    if not home.database.exists():
        return Finding("ok", "state", "nothing was deployed yet")
    return Finding("ok", "state", f"{home.database}, {services} service{'' if services == 1 else 's'}")


def models(home: Home) -> Finding:
    """Disk use of the snapshots that revisions serve from."""
    used = ModelSnapshots(home.models).usage()
    return Finding("ok", "models", f"{used.count} snapshot{'' if used.count == 1 else 's'}, {output.size(used.bytes)}")


def _is_writable(folder: Path) -> bool:
    """Try an unnamed temporary file: permissions say nothing about file systems such as /proc."""
    try:
        with TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def daemon(home: Home, address: "Address | None") -> Finding:
    if address is None:
        if processes := processes_of_removed_home(home):
            pids = ", ".join(map(str, processes))
            message = f"{home.root} was removed or replaced while the platform runs (pids {pids})"
            return Finding("fail", "platform", message, "platformctl down ends them; then platformctl up")
        if should_run(home):
            reason, fix = failure(home)
            return Finding("fail", "platform", f"it should run and does not: {reason}", fix)
        if home.root.is_dir() and leftovers(home):
            message = "the control process is gone, its gateway serves on"
            return Finding("warn", "platform", message, "platformctl up takes over what runs")
        return Finding("ok", "platform", "not running; the first deploy starts it")
    if not answers(address):
        message = f"process {address.pid} does not answer on port {address.port}"
        return Finding("fail", "platform", message, f"see {home.logs / 'daemon.log'}; platformctl down ends it")
    if address.version != __version__:
        message = f"it is of version {address.version}, platformctl of {__version__}"
        return Finding("fail", "platform", message, "platformctl down && platformctl up")
    return Finding("ok", "platform", f"process {address.pid}, version {address.version}, API on port {address.port}")


def gateway(address: "Address | None") -> Finding:
    if address is None:
        return Finding("ok", "gateway", "not running")
    url = f"http://{address.host}:{address.gateway_port}"
    try:
        reply = Gateway(url).request("GET", "/healthz", timeout=5)
    except PlatformError as error:
        return Finding("fail", "gateway", str(error), "platformctl down && platformctl up")
    if reply.status != 200:
        return Finding("fail", "gateway", f"{url}/healthz answers {reply.status}", "platformctl down && platformctl up")
    return Finding("ok", "gateway", f"{url} answers")


def https(served: HttpsSettings, now: datetime) -> Finding:
    """The certificate's files are read anew: the gateway keeps the one before while they cannot be used."""
    url = f"https://{served.address}"
    try:
        ReloadingTls(TlsFiles(served.tls_cert, served.tls_key, served.tls_client_ca), ["http/1.1"])
        until = valid_until(Path(served.tls_cert).read_text())
    except UnusableFiles as error:
        return Finding("fail", "https", f"{url}: {error}", "write them again; the gateway reads them every 5 s")
    message = f"{url}, its certificate is valid until {until:%Y-%m-%d %H:%M} UTC"
    if until - now >= LEAST_VALIDITY:
        return Finding("ok", "https", message)
    return Finding("warn" if until > now else "fail", "https", message, f"renew {served.tls_cert}")


def prometheus(home: Home, address: "Address | None") -> Finding:
    """Prometheus is optional, so its absence is `ok`."""
    process = running(home)
    if process is not None:
        message = f"{url_of(process)} runs beside the platform, process {process.identity.pid}"
        return _http_check(message, url_of(process))
    if address is not None and address.prometheus:
        return _http_check(f"{address.prometheus} is queried", address.prometheus)
    try:
        restart = "platformctl down, then " if address is not None else ""
        return Finding("ok", "prometheus", f"not running; {restart}platformctl up --prometheus starts {find()}")
    except PlatformError as error:
        return Finding("ok", "prometheus", f"not installed, and not needed; to have one: {error.hint}")


def _http_check(message: str, url: str) -> Finding:
    from pilotlight.prometheus.client import unavailable_reason

    if why := unavailable_reason(url):
        return Finding("warn", "prometheus", f"{message}, but does not answer: {why}", "is its address right?")
    return Finding("ok", "prometheus", message)


def _orphaned_gateway_port(home: Home) -> int:
    """Return the port of a gateway that outlived its control process; 0: none."""
    if not home.root.is_dir() or not is_running(home.root):
        return 0
    return announcement.gateway_port if (announcement := announced(home)) else 0


def ports(address: "Address | None", orphaned_port: int = 0) -> Iterator[Finding]:
    """Ports of the next start must be free or held by the platform itself."""
    settings = (
        ("PILOTLIGHT_GATEWAY_PORT", GATEWAY_PORT, address.gateway_port if address else 0),
        ("PILOTLIGHT_API_PORT", API_PORT, address.port if address else 0),
    )
    for setting, usual, held in settings:
        port = port_setting(setting, usual)
        if orphaned_port and setting == "PILOTLIGHT_GATEWAY_PORT":
            yield Finding("ok", f"port {orphaned_port}", "held by the platform's gateway")
            continue
        if held:
            yield Finding("ok", f"port {held}", "held by the platform")
            continue
        try:
            bind(ListenAddress("127.0.0.1", port), setting).close()
            yield Finding("ok", f"port {port}", "free")
        except CannotListen as error:
            sentence, _, fix = str(error).partition("; ")
            yield Finding("fail", f"port {port}", sentence, fix)


def limits(home: Home) -> Finding:
    mode = Limits(home).name
    if mode == "watchdog":
        message = "no control group is ours: memory is watched each second, CPU limits are not enforced"
        return Finding(
            "warn", "limits", message, "run where cgroup v2 is delegated, such as systemd-run --user --scope"
        )
    return Finding("ok", "limits", mode)


def forks() -> Finding:
    if sys.platform == "linux" and hasattr(os, "fork") and hasattr(os, "pidfd_open"):
        return Finding("ok", "fork", "replicas can be forked from a pilot light and watched by pidfd")
    return Finding(
        "warn", "fork", f"{sys.platform}: replicas start without a pilot light", "use Linux for quicker starts"
    )


def ipv6() -> Finding:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        return Finding("ok", "ipv6", f"none ({error.strerror}); 127.0.0.1 is used alone")
    return Finding("ok", "ipv6", "::1 answers too")


def microservice_findings(home: Home) -> Iterator[Finding]:
    yield _sandbox()
    yield from _microservices()
    yield from _stuck_stops(home)
    yield from _batch_jobs(home)


def _sandbox() -> Finding:
    """The sandbox is needed only where the operator allows code of orgs, so its absence is `ok`."""
    from pilotlight.targets.local.supervisor.isolation import sandbox

    isolation = sandbox.detect()
    message = f"{isolation.kind}, for models of orgs that may run code" if isolation.kind else ""
    return Finding("ok", "sandbox", message or f"none ({isolation.reason}): models of orgs that have code are refused")


def _microservices() -> Iterator[Finding]:
    from pilotlight.microservices.registry.registry_file import registry

    try:
        entries = registry(os.environ).read().entries
    except PlatformError as error:
        yield Finding("fail", "microservices", str(error), error.hint)
        return
    problems = [finding for job_id in entries for finding in _problems(job_id)]
    yield from problems
    if entries and not problems:
        yield Finding("ok", "microservices", f"{len(entries)} in the registry, nothing is wrong with them")


def _problems(job_id: str) -> Iterator[Finding]:
    """Yield findings with a likely cause; `pending` and `loading` alone are not problems."""
    from pilotlight.microservices.inference import client
    from platformctl.microservice import health_findings, shared_options

    entry = shared_options.open_registry().read().entries.get(job_id)
    if entry is None:
        return
    status = shared_options.platform_status(job_id, entry)
    model = health_findings.probe_model(job_id, entry, PROBE_S)
    failed = status.state in (*client.ENDED, "unknown") or model.phase == "failed"
    for each in health_findings.findings(job_id, entry, status, model):
        yield Finding("fail" if failed else "warn", f"microservice {job_id[:8]}", each["cause"], each["advice"])


def _stuck_stops(home: Home) -> Iterator[Finding]:
    """Yield microservices of the API that have been stopping for long, from its records."""
    from contextlib import closing

    from pilotlight.microservices import diagnosis
    from pilotlight.microservices.registry.database import FILE, OrgStore
    from platformctl.microservice import health_findings
    from platformctl.microservice.shared_options import redacted

    if not (home.root / FILE).exists():
        return
    with closing(OrgStore.open(home)) as store:
        stopping = store.jobs_of_kind("inference_microservice", "stopping")
    for record in stopping:
        age_s = health_findings.age_s(record.updated_at, datetime.now(UTC))
        errors = (redacted(record.message),) if record.message else ()
        evidence = diagnosis.Evidence(job_id=record.id, phase="stopping", phase_s=age_s, errors=errors)
        for each in diagnosis.diagnose(evidence):
            yield Finding("fail", f"microservice {record.id[:8]}", each.cause, each.advice)


def _batch_jobs(home: Home) -> Iterator[Finding]:
    from pilotlight.microservices.batch import jobs
    from platformctl.microservice.shared_options import redacted

    for each in jobs.list_jobs(home, os.environ):
        if each.state == "failed":
            fix = f"platformctl microservice batch resume {each.job_id}"
            yield Finding("warn", f"batch {each.job_id[:8]}", redacted(f"it failed: {each.message}"), fix)

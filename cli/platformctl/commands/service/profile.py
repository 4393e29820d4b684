"""`platformctl profile`: where a running service spends its time.

With torch loaded, torch's profiler is started and stopped by `/api/profile`; otherwise the phases come from the
service's statistics. Requests are the caller's to send, but with `--write`, which measures a copy of the service.
"""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from pilotlight.errors import PlatformError, UsageError
from pilotlight.wire.http_client import HttpReply
from platformctl import output, targets
from platformctl.targets import Gateway

PHASES: Final = ("queue", "compute_input", "compute_infer", "compute_output")
TITLES: Final = (
    "MODEL", "VERSION", "REQUESTS", "FAILED", "EXECUTIONS", "QUEUE µs", "INPUT µs", "INFER µs", "OUTPUT µs",
)  # fmt: skip
STATISTICS: Final = "/v2/models/stats"
WRITTEN: Final = click.Path(dir_okay=False, path_type=Path)
ADMIN_HINT: Final = "torch's profiler needs an admin: --token TOKEN or PILOTLIGHT_TOKEN, from its --admin-token-file"


@click.command()
@targets.name_argument(metavar="[NAME|URL]", required=False)
@targets.options
@click.option(
    "--seconds", default=5.0, show_default=True, metavar="N", help="How long to measure; with --write, each level."
)
@click.option("--token", envvar="PILOTLIGHT_TOKEN", metavar="TOKEN", help="Token of an admin. [env: PILOTLIGHT_TOKEN]")
@click.option("--timeout", default=300.0, show_default=True, metavar="SECONDS", help="Timeout of each response.")
@click.option(
    "--write", "file", type=WRITTEN, metavar="FILE", help="Measure a copy with one replica; write its profile."
)
@click.option("-f", "--file", "document", metavar="FILE", help="With --write: measure the InferenceService of a file.")
@click.option("--data", metavar="JSON", help="With --write: the input, as infer takes it (default: zeros).")
@click.option(
    "--concurrency", default="1,2,4,8", show_default=True, metavar="LIST", help="With --write: levels of load."
)
@click.option("--cold-starts", default=3, show_default=True, metavar="N", help="With --write: how many to measure.")
@click.option("--from-metrics", is_flag=True, help="With --write: use the metrics of NAME; no copy, no requests.")
@output.formats("table", "json")
def profile(
    service_options: targets.ServiceOptions,
    name: str | None,
    seconds: float,
    token: str | None,
    timeout: float,
    file: Path | None,
    document: str | None,
    data: str | None,
    concurrency: str,
    cold_starts: int,
    from_metrics: bool,
) -> None:
    """Show where a running service spends its time while it gets requests; with --write, measure it for simulate.

    Example: platformctl profile iris --seconds 10
    """
    if seconds <= 0:
        raise UsageError(f"--seconds is {seconds:g}, must be more than 0")
    if file is not None:
        from platformctl.profiles import profile_file

        options = profile_file.MeasurementOptions(file, document, data, concurrency, cold_starts, seconds)
        if from_metrics and name is not None:
            profile_file.write_from_metrics(service_options, name, file)
        else:
            profile_file.write_measured(service_options, name, options)
        return
    if document is not None or from_metrics or name is None:
        hint = (
            "platformctl profile NAME shows where it spends its time, platformctl profile NAME --write FILE measures it"
        )
        raise UsageError("profile needs a NAME, and with -f or --from-metrics also --write FILE", hint)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    if "://" in name:
        run_profile(Gateway(name, headers), token, seconds, timeout)
        return
    target = service_options.connect_running()
    with target.open_route(target.status(service_options.key(name))) as route:
        run_profile(Gateway(route.url, {**route.headers, **headers}), token, seconds, timeout)


def run_profile(gateway: Gateway, token: str | None, seconds: float, timeout: float) -> None:
    """Use torch's profiler if available and permitted; without a token fall back to the statistics."""
    started = gateway.request("GET", "/api/profile?cmd=start", timeout=timeout)
    if started.status == 200:
        show_torch(gateway, seconds, timeout)
    elif started.status == 501:
        show_phases(gateway, seconds, timeout)
    elif started.status in {401, 403} and not token:
        output.note(ADMIN_HINT)
        show_phases(gateway, seconds, timeout)
    else:
        raise service_error(started)


def show_torch(gateway: Gateway, seconds: float, timeout: float) -> None:
    """Profile for `seconds`; the profiler is stopped on interrupt too, or it would grow without bound."""
    try:
        time.sleep(seconds)
    finally:
        stopped = gateway.request("GET", "/api/profile?cmd=stop", timeout=timeout)
    if stopped.status != 200:
        raise service_error(stopped)
    table = stopped.body.decode(errors="replace")
    output.data({"kind": "torch", "seconds": seconds, "table": table}, table.splitlines())


def show_phases(gateway: Gateway, seconds: float, timeout: float) -> None:
    before = statistics(gateway, timeout)
    time.sleep(seconds)
    rows = phases(before, statistics(gateway, timeout))
    lines = [["-" if value is None else str(value) for value in row.values()] for row in rows]
    output.data({"kind": "phases", "seconds": seconds, "models": rows}, output.columns([TITLES, *lines], ""))
    output.note("means of the service's own statistics, per request")
    if not any(row["requests"] for row in rows):
        output.note(f"no requests within {seconds:g} s; send some while it measures")


def statistics(gateway: Gateway, timeout: float) -> list[dict[str, Any]]:
    reply = gateway.request("GET", STATISTICS, timeout=timeout)
    if reply.status != 200:
        raise service_error(reply)
    return list(json.loads(reply.body)["model_stats"])


def phases(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the difference of two readings, a row per version; a version loaded in between starts at 0."""
    earlier = {(each["name"], each["version"]): each for each in before}
    return [_row(earlier.get((each["name"], each["version"]), {}), each) for each in after]


def _row(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    def increase(phase: str, unit: str) -> int:
        earlier_phase = old.get("inference_stats", {}).get(phase, {})
        return int(new["inference_stats"][phase].get(unit, 0)) - int(earlier_phase.get(unit, 0))

    def mean_us(phase: str) -> float | None:
        count = increase(phase, "count")
        return round(increase(phase, "ns") / count / 1000, 1) if count > 0 else None

    return {
        "model": new["name"],
        "version": new["version"],
        "requests": increase("success", "count"),
        "failed": increase("fail", "count"),
        "executions": int(new["execution_count"]) - int(old.get("execution_count", 0)),
        **{f"{phase}_us": mean_us(phase) for phase in PHASES},
    }


def service_error(reply: HttpReply) -> PlatformError:
    """Return the error; the TRTIS protocol has it in a header, others in the body."""
    said = reply.headers.get("nv-status") or reply.body[:300].decode(errors="replace")
    hint = ADMIN_HINT if reply.status in {401, 403} else ""
    if reply.status == 400 and "no profile is running" in said:
        hint = "another replica responded: pass the URL of one instead of the name"
    return PlatformError(f"the service responded {reply.status}: {said}", hint)

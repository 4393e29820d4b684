"""`platformctl dashboard`: show, print or write dashboards and rules. Needs neither Grafana nor Prometheus."""

import json
from pathlib import Path

import click

from pilotlight.errors import PlatformError, UsageError
from pilotlight.observability.files import (
    DASHBOARDS,
    ERROR_BUDGET,
    PROVISIONING,
    RULES_FILE,
    dashboard_files,
    provisioning_files,
    rules_text,
)
from platformctl import output
from platformctl.commands.platform.console import open_page

PROMETHEUS = "http://127.0.0.1:9090"


@click.command()
@click.argument("name", required=False)
@click.option("--rules", is_flag=True, help="The recording rules and alerts, as a file for Prometheus.")
@click.option(
    "--to", "place", metavar="DIR|-", help="Write files there; - prints. One dashboard is printed by default."
)
@click.option("--serve", is_flag=True, help="Show the same panels in the web console, without Grafana.")
@click.option("--open/--no-open", "opened", default=None, help="With --serve: in the browser of this desktop.")
@click.option("--grafana", metavar="DIR", help="Write Grafana's provisioning files there: data source and dashboards.")
@click.option("--prometheus", metavar="URL", help="With --grafana: the Prometheus to query.", default=PROMETHEUS)
@click.option("--objective", type=float, metavar="PERCENT", help="Of requests that must not fail, for rules; 99.9.")
@output.formats("table", "json")
def dashboard(
    name: str | None, rules: bool, place: str | None, serve: bool, opened: bool | None, grafana: str | None,
    prometheus: str, objective: float | None,
) -> None:  # fmt: skip
    """List the dashboards, print one as JSON for Grafana, or write all of them with the rules.

    Example: platformctl dashboard --serve
    """
    if sum((serve, bool(grafana), rules or place is not None)) > 1:
        raise UsageError("--serve, --grafana and files (--rules, --to) exclude each other; use one of them")
    if name and name not in DASHBOARDS:
        raise UsageError(f"there is no dashboard {name}", f"one of: {', '.join(DASHBOARDS)}")
    if serve:
        open_page(opened, f"/dashboards/{name}" if name else "/dashboards")
        return
    if grafana:
        folder = Path(grafana).absolute()
        _write(folder, provisioning_files(folder, prometheus))
        output.note(f"start Grafana with GF_PATHS_PROVISIONING={folder / PROVISIONING}")
        return
    if rules and name:
        raise UsageError(f"--rules are of all services and go with no dashboard; leave {name} out")
    if objective is not None and not 0 < objective < 100:
        raise UsageError(f"--objective = {objective:g}, must be a percentage between 0 and 100, such as 99.9")
    if place not in (None, "-"):
        _write(Path(str(place)), _files(name, rules, objective))
    elif rules or name:
        output.text("".join(_files(name, rules, objective).values()))
    else:
        _list(place)


def _list(place: str | None) -> None:
    if place == "-":
        raise UsageError("--to - prints one dashboard or --rules; name one", f"one of: {', '.join(DASHBOARDS)}")
    contents = zip(DASHBOARDS, map(json.loads, dashboard_files().values()), strict=True)
    dashboards = [{"name": name, "title": each["title"], "description": each["description"]} for name, each in contents]
    rows = [("NAME", "TITLE", "WHAT IT SHOWS"), *(tuple(each.values()) for each in dashboards)]
    output.data({"dashboards": dashboards}, output.columns(rows, indent=""))


def _files(name: str | None, rules: bool, objective: float | None) -> dict[str, str]:
    """Return one dashboard, the rules, or everything, by file name."""
    if name:
        return dashboard_files((name,))
    budget = ERROR_BUDGET if objective is None else round(1 - objective / 100, 9)
    return {**({} if rules else dashboard_files()), RULES_FILE: rules_text(budget)}


def _write(folder: Path, files: dict[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    except OSError as error:
        raise PlatformError(
            f"{folder} cannot be written to: {error.strerror}", "name another folder: --to DIR"
        ) from error
    output.note(f"wrote {len(files)} file{'' if len(files) == 1 else 's'} into {folder}")
    output.data({"files": [str(folder / name) for name in files]}, [str(folder / name) for name in files])

"""Settings from environment variables: `INFERENCE_*`, and a few that platforms set (Knative, OpenTelemetry)."""

import re
from collections.abc import Mapping

from pilotlight import contract
from pilotlight_predictor.settings.kinds import PORT, PORT_OR_OFF
from pilotlight_predictor.settings.reading import ParsedSource, did_you_mean
from pilotlight_predictor.settings.table import CONFIG, ROWS, SettingRow

# Kubernetes sets variables for each Service of the namespace: one named "inference" sets INFERENCE_PORT.
SERVICE_LINK = r"_SERVICE_(HOST|PORT)(_\w+)?$|_PORT(_\d+_(TCP|UDP)(_\w+)?)?$"


def read_environment(environ: Mapping[str, str]) -> ParsedSource:
    source = ParsedSource()
    for row in (*ROWS, CONFIG):
        for name in row.variables:
            if environ.get(name) and not _service_link(row, name, environ[name], source):
                _take(row, name, environ[name], source)
                break
    _unknown(environ, source)
    if environ.get("K_SERVICE") or environ.get(contract.ENV_SERVICE):
        source.implied |= {"server.behind_proxy": True, "server.admin_loopback": False}
    if environ.get("K_SERVICE") and environ.get("PORT", "").isdecimal():
        source.implied["server.reached_port"] = int(environ["PORT"])
    return source


def _take(row: SettingRow, name: str, text: str, source: ParsedSource) -> None:
    for part in text.split(",") if row.kind.many else [text]:
        source.add(row, part.strip(), name)


def _service_link(row: SettingRow, name: str, text: str, source: ParsedSource) -> bool:
    if row.kind not in (PORT, PORT_OR_OFF) or "://" not in text:
        return False
    source.warnings.append(f"{name} = {text} describes a Kubernetes Service and is ignored")
    return True


def _unknown(environ: Mapping[str, str], source: ParsedSource) -> None:
    """Warn about unknown variables; not an error, since other software may use the prefix."""
    known = {name for row in (*ROWS, CONFIG) for name in row.variables}
    for name in environ:
        if name.startswith(contract.ENV_SETTINGS_PREFIX) and name not in known and not re.search(SERVICE_LINK, name):
            source.warnings.append(f"{name} is not a setting and is ignored{did_you_mean(name, known)}")

"""Settings from the environment: `INFERENCE_*`, and the few names that platforms set (Knative, OpenTelemetry)."""

import re
from collections.abc import Mapping

from pilotlight import contract
from pilotlight_predictor.settings.kinds import PORT, PORT_OR_OFF
from pilotlight_predictor.settings.reading import Reading, did_you_mean
from pilotlight_predictor.settings.table import CONFIG, ROWS, Row

# Kubernetes describes each Service of the namespace in variables; one named "inference" would set INFERENCE_PORT.
SERVICE_LINK = r"_SERVICE_(HOST|PORT)(_\w+)?$|_PORT(_\d+_(TCP|UDP)(_\w+)?)?$"


def read_environment(environ: Mapping[str, str]) -> Reading:
    reading = Reading()
    for row in (*ROWS, CONFIG):
        for name in row.variables:
            if environ.get(name) and not _service_link(row, name, environ[name], reading):
                _take(row, name, environ[name], reading)
                break
    _unknown(environ, reading)
    if environ.get("K_SERVICE") or environ.get(contract.ENV_SERVICE):
        reading.implied |= {"server.behind_proxy": True, "server.admin_loopback": False}
    if environ.get("K_SERVICE") and environ.get("PORT", "").isdecimal():
        reading.implied["server.reached_port"] = int(environ["PORT"])
    return reading


def _take(row: Row, name: str, text: str, reading: Reading) -> None:
    for part in text.split(",") if row.kind.many else [text]:
        reading.take(row, part.strip(), name)


def _service_link(row: Row, name: str, text: str, reading: Reading) -> bool:
    if row.kind not in (PORT, PORT_OR_OFF) or "://" not in text:
        return False
    reading.warnings.append(f"{name} = {text} describes a Kubernetes Service and is ignored")
    return True


def _unknown(environ: Mapping[str, str], reading: Reading) -> None:
    """Warns: the prefix is not ours alone, so a stranger's variable must not keep the server from starting."""
    known = {name for row in (*ROWS, CONFIG) for name in row.variables}
    for name in environ:
        if name.startswith(contract.ENV_SETTINGS_PREFIX) and name not in known and not re.search(SERVICE_LINK, name):
            reading.warnings.append(f"{name} is not a setting and is ignored{did_you_mean(name, known)}")

"""What `platformctl api` writes for the API: credentials in the folder of their org, periods of keys."""

from pathlib import Path

import pytest

from pilotlight.errors import UsageError
from pilotlight.microservices.registry import secret_references
from pilotlight.microservices.registry.records import Workspace
from platformctl.commands.platform.api import parse_period
from platformctl.services import operator_settings


def test_without_a_folder_of_secrets_the_one_of_the_home_is_read_at_each_use(tmp_path: Path) -> None:
    environ = {"PILOTLIGHT_HOME": str(tmp_path)}
    workspace = Workspace(
        "s3://b", credentials={"secret_key": operator_settings.set_credential("a", "k", "1", environ)}
    )
    assert secret_references.values(workspace, environ) == {"secret_key": "1"}
    operator_settings.set_credential("a", "k", "2\n", environ)
    assert secret_references.values(workspace, environ) == {"secret_key": "2"}
    assert [(tmp_path / each).stat().st_mode & 0o777 for each in ("secrets/a", "secrets/a/k")] == [0o700, 0o600]
    assert operator_settings.credentials("", environ) == [("a", "k")]
    operator_settings.delete_credential("a", "k", environ)
    with pytest.raises(UsageError, match="file:a/k is not set"):
        secret_references.values(workspace, environ)


@pytest.mark.parametrize(("org", "name"), [("..", "x"), ("a/b", "x"), ("a", "../x"), ("a", ".x"), ("a", "")])
def test_a_credential_stays_in_the_folder_of_its_org(tmp_path: Path, org: str, name: str) -> None:
    with pytest.raises(UsageError, match="must be"):
        operator_settings.set_credential(org, name, "value", {"PILOTLIGHT_HOME": str(tmp_path)})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("written", ["", "90", "d", "-1d", "1.5h", "0d", "1y"])
def test_a_period_is_a_number_with_a_unit(written: str) -> None:
    with pytest.raises(UsageError, match="such as 90d"):
        parse_period(written)
    assert parse_period("90d") == 90 * 86400

"""`platformctl dashboard` and `platformctl up --prometheus`, as they are typed."""

import json
import os
from pathlib import Path

import pytest
import yaml
from tests.platform.observability.queries import BUDGET, CONTENTS, RULES

from pilotlight.observability.files import DASHBOARDS
from platformctl import main

Capture = pytest.CaptureFixture[str]


def test_the_list_names_every_dashboard(capsys: Capture) -> None:
    assert main.run(["dashboard"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", *DASHBOARDS]
    assert main.run(["dashboard", "-o", "json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)["dashboards"]] == list(DASHBOARDS)


def test_one_is_printed_as_grafana_imports_it(capsys: Capture) -> None:
    assert main.run(["dashboard", "canary"]) == 0
    assert json.loads(capsys.readouterr().out) == CONTENTS["canary"]


def test_rules_are_printed_as_prometheus_reads_them(capsys: Capture) -> None:
    assert main.run(["dashboard", "--rules", "--to", "-"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == RULES


def test_all_of_it_is_written_into_a_folder(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "made" / "here"
    assert main.run(["dashboard", "--to", str(folder), "--objective", "99.5"]) == 0
    written = sorted(path.name for path in folder.iterdir())
    assert written == sorted([*(f"pilotlight-{name}.json" for name in DASHBOARDS), "pilotlight-rules.yaml"])
    assert sorted(capsys.readouterr().out.split()) == [str(folder / name) for name in written]
    recorded = yaml.safe_load((folder / "pilotlight-rules.yaml").read_text())["groups"][0]["rules"]
    assert {"record": BUDGET, "expr": "vector(0.005)"} in recorded


def test_grafana_is_provisioned_by_one_command(tmp_path: Path, capsys: Capture) -> None:
    """As https://grafana.com/docs/grafana/latest/administration/provisioning/ has it."""
    assert main.run(["dashboard", "--grafana", str(tmp_path), "--prometheus", "http://prometheus:9090"]) == 0
    assert f"GF_PATHS_PROVISIONING={tmp_path}/provisioning" in capsys.readouterr().err
    (source,) = yaml.safe_load((tmp_path / "provisioning/datasources/pilotlight.yaml").read_text())["datasources"]
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", "http://prometheus:9090", True)
    (provider,) = yaml.safe_load((tmp_path / "provisioning/dashboards/pilotlight.yaml").read_text())["providers"]
    folder = Path(provider["options"]["path"])
    assert {path.name: json.loads(path.read_text()) for path in folder.iterdir()} == {
        f"pilotlight-{name}.json": CONTENTS[name] for name in DASHBOARDS
    }


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["nothing"], 2, "one of: overview, autoscaling, model, canary"),
        (["overview", "--rules"], 2, "leave overview out"),
        (["--rules", "--objective", "100"], 2, "between 0 and 100"),
        (["--to", "-"], 2, "name one"),
        (["--serve", "--to", "-"], 2, "use one of them"),
        (["--serve", "nothing"], 2, "one of: overview"),
        (["--to", "/proc/nowhere"], 1, "cannot be written to"),
    ],
)
def test_what_makes_no_sense_is_told_with_the_fix(argv: list[str], code: int, said: str, capsys: Capture) -> None:
    assert main.run(["dashboard", *argv]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


def test_a_prometheus_that_is_not_there_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for name in [name for name in os.environ if name.startswith("PILOTLIGHT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PILOTLIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main.run(["up", "--prometheus"]) == 1
    assert "apt-get install prometheus" in capsys.readouterr().err
    assert main.run(["up", f"--prometheus={tmp_path}/none"]) == 2
    assert "must be an address" in capsys.readouterr().err
    assert not (tmp_path / "home").exists()

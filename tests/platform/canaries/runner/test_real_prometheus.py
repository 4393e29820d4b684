"""A real Prometheus beside the embedded platform judges: what it has scraped decides, not what the platform saw."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.embedded import Platform, load
from tests.judges import prometheus
from tests.judges.gomodules import Unavailable
from tests.judges.verdict import absent
from tests.platform.canaries.runner.conftest import ASK, CHECKS, Call, better, current, iris, worse

pytestmark = pytest.mark.long
PROVE = (
    "--steps", "30,100", "--bake", "10s", "--interval", "3s", "--min-requests", "20", "--keep-stable", "1s",
    "--timeout", "120", *CHECKS,
)  # fmt: skip


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    try:
        program = prometheus.program("prometheus")
    except Unavailable as reason:
        absent(reason)
    with Platform(tmp_path_factory.mktemp("watched") / "home", flags=("--prometheus", program)) as running:
        running.deploy(iris())
        running.wait_phase("Ready")
        yield running
        running.empty()


def test_a_bad_revision_takes_itself_back_and_a_good_one_promotes_itself(
    watched: Platform, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOTLIGHT_HOME", str(watched.home.root))
    with load(watched, ASK, clients=1):
        bad = call("canary", "start", "-f", str(worse(tmp_path, "raise ValueError('no')")), *PROVE)
        assert bad.code == 5, bad.err + watched.log()
        assert "error_rate" in current(watched).reason
        good = call("canary", "start", "-f", str(better(tmp_path)), *PROVE)
        assert good.code == 0, good.err + watched.log()
    assert current(watched).phase == "Promoted"
    asked = next(each.query for each in reversed(current(watched).measurements) if each.check == "p50_ms")
    (sample,) = watched.target.query(asked)
    assert 0 < sample.value < 200, "the query that is shown gives the figure"

"""`platformctl controller`: which kinds it acts on, and what it refuses before it starts."""

import sys

import pytest
from click.testing import CliRunner
from tests.platform.targets.kubernetes.fake_cluster import PaperCluster
from tests.platform.targets.kubernetes.live_cluster import ISVC, LiveCluster

from pilotlight.controller.settings import ControllerSettings
from pilotlight.errors import PlatformError
from platformctl.commands.platform.controller import _versions, controller

OME, KSERVE = "ome.io/v1beta1", "serving.kserve.io/v1beta1"


def test_it_acts_on_all_kinds_of_ours_or_on_those_it_is_told() -> None:
    with LiveCluster() as live:
        assert _versions(live.cluster(), (), False) == (OME, KSERVE)
        assert _versions(live.cluster(), ("ome.io/InferenceService",), False) == (OME,)


def test_kinds_of_other_controllers_are_left_alone_unless_asked_for() -> None:
    with PaperCluster(kinds=ISVC) as theirs:
        with pytest.raises(PlatformError, match="no CRD of ours") as refused:
            _versions(theirs.cluster(), (), False)
        assert "--foreign-crds" in refused.value.hint
        assert _versions(theirs.cluster(), (), True) == (OME, KSERVE)


def test_a_kind_that_is_not_installed_is_named() -> None:
    with PaperCluster(kinds=ISVC[:1]) as only_ome, pytest.raises(PlatformError, match=KSERVE):
        _versions(only_ome.cluster(), ("serving.kserve.io/InferenceService",), True)


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--resync", "soon"], "--resync soon"), (["--webhook-port", "9443"], "--webhook-port needs --webhook-cert")],
)
def test_wrong_options_are_named(words: list[str], message: str) -> None:
    assert message in str(CliRunner().invoke(controller, words).exception)


def test_the_host_template_reaches_the_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[ControllerSettings] = []
    with LiveCluster() as live:
        monkeypatch.setattr("pilotlight.targets.kubernetes.client.connect", lambda _: live.cluster().connection)
        monkeypatch.setattr("platformctl.commands.platform.controller._run", lambda _, made: started.append(made))
        result = CliRunner().invoke(controller, ["--host-template", "{name}-x.{domain}"])
    assert not result.exception
    assert started[0].capabilities == {"host_template": "{name}-x.{domain}"}
    assert CliRunner().invoke(controller, ["--host-template", "x.{domain}"]).exit_code == 2


@pytest.mark.parametrize("package", ["kopf", "kubernetes"])
def test_a_missing_package_names_the_extra_that_has_them_all(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    refused = CliRunner().invoke(controller, []).exception
    assert isinstance(refused, PlatformError)
    assert refused.hint == "pip install 'pilotlight[controller]'"

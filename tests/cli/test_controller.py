"""`platformctl controller`: which kinds it acts on, and what it refuses before it starts."""

import copy
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner
from tests.platform.controller.documents import IRIS, lease
from tests.platform.targets.kubernetes.fake_cluster import PaperCluster
from tests.platform.targets.kubernetes.live_cluster import ISVC, LiveCluster

from pilotlight.controller.settings import ControllerSettings
from pilotlight.errors import Conflict, PlatformError
from pilotlight.k8s.names import FINALIZER
from pilotlight.targets.kubernetes.inferenceservice_mirror import SERVICE_KINDS, name_of
from pilotlight.wire.environments.install_command import install_command
from platformctl.commands.platform.controller import KINDS, _kinds, _remove_finalizers, controller

OME, KSERVE = (("ome.io/v1beta1", "InferenceService"), ("serving.kserve.io/v1beta1", "InferenceService"))
LLM, GRAPH = (("serving.kserve.io/v1alpha1", kind) for kind in ("LLMInferenceService", "InferenceGraph"))


def test_it_acts_on_all_kinds_of_ours_or_on_those_it_is_told() -> None:
    with LiveCluster() as live:
        assert _kinds(live.cluster(), (), False) == (OME, KSERVE, LLM, GRAPH)
        assert _kinds(live.cluster(), ("ome.io/InferenceService",), False) == (OME,)


def test_kinds_of_other_controllers_are_left_alone_unless_asked_for() -> None:
    with PaperCluster(kinds=ISVC) as theirs:
        with pytest.raises(PlatformError, match="lacks Pilotlight's CRD") as refused:
            _kinds(theirs.cluster(), (), False)
        assert "--foreign-crds" in refused.value.hint
        assert _kinds(theirs.cluster(), (), True) == (OME, KSERVE)


def test_a_kind_that_is_not_installed_is_named() -> None:
    with PaperCluster(kinds=ISVC[:1]) as only_ome, pytest.raises(PlatformError, match=KSERVE[0]):
        _kinds(only_ome.cluster(), ("serving.kserve.io/InferenceService",), True)


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
    assert refused.hint == install_command("controller")


def test_every_kind_of_the_table_can_be_chosen() -> None:
    assert tuple(map(name_of, SERVICE_KINDS)) == KINDS


def test_documents_end_without_a_controller_once_their_finalizers_are_removed(capsys: Any) -> None:
    ending = copy.deepcopy(IRIS)
    ending["metadata"] |= {"name": "ending", "deletionTimestamp": "2026-01-15T10:30:00Z"}
    settings = ControllerSettings((KSERVE,), ("models",))
    with LiveCluster(IRIS, ending, lease(datetime(2026, 1, 15, tzinfo=UTC))) as live:
        _remove_finalizers(live.cluster(), settings)
        assert live.find("InferenceService", "iris")["metadata"]["finalizers"] == []
        assert live.find("InferenceService", "ending") is None
    assert "models/iris: the finalizer of its InferenceService was removed" in capsys.readouterr().err


def test_a_controller_that_runs_keeps_its_finalizers() -> None:
    settings = ControllerSettings((KSERVE,), ("models",))
    with LiveCluster(IRIS, lease(datetime.now(UTC))) as live:
        with pytest.raises(Conflict, match="a controller runs"):
            _remove_finalizers(live.cluster(), settings)
        assert live.find("InferenceService", "iris")["metadata"]["finalizers"] == [FINALIZER]

"""The verbs as functions on a real platform; the tests build on each other."""

import json
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.embedded import IRIS, Platform
from tests.platform.sdk.served_models import Shift, negated

import pilotlight
from pilotlight.spec.problems import InvalidDocument

ONES = np.ones((1, 2), np.float32)
DOCUMENT: dict[str, Any] = {
    "apiVersion": "serving.kserve.io/v1beta1",
    "kind": "InferenceService",
    "metadata": {"name": "iris"},
    "spec": {
        "predictor": {
            "minReplicas": 1,
            "model": {"modelFormat": {"name": "onnx"}, "protocolVersion": "v2", "storageUri": str(IRIS)},
        }
    },
}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with Platform(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture(autouse=True)
def at_home(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PILOTLIGHT_NAMESPACE", "PILOTLIGHT_TARGET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PILOTLIGHT_HOME", str(platform.home.root))


def answer(service: pilotlight.Service, x: np.ndarray = ONES) -> Any:
    with service.client() as client:
        return client.infer({"x": x})["y"].tolist()


def test_a_document_as_a_dict_becomes_a_service(capsys: pytest.CaptureFixture[str], platform: Platform) -> None:
    lines: list[str] = []
    service = pilotlight.deploy(DOCUMENT, progress=lines.append)
    assert (service.name, service.namespace, service.ready) == ("iris", "default", True)
    assert service.url == f"http://127.0.0.1:{platform.address.gateway_port}/iris"
    assert service.traffic == {service.revisions[0].name: 100}
    assert service.revisions[0].ready == 1
    assert repr(service).startswith("<Service default/iris: Ready; 100 % iris-predictor-")
    assert [line.split()[1] for line in lines][:2] == ["Validated", "Applied"]
    assert float(lines[0].split("s")[0]) < 60  # seconds since the call, not since the start of Python
    assert capsys.readouterr() == ("", "")
    assert pilotlight.status("iris").traffic == service.traffic
    with service.client() as client:
        assert client.infer({"x": np.array([[5.1, 3.5, 1.4, 0.2]], np.float32)})


def test_progress_goes_to_stderr_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    pilotlight.deploy(DOCUMENT)
    out, err = capsys.readouterr()
    assert out == ""
    assert "(unchanged)" in err


def test_a_file_of_documents_and_a_model_file_are_deployed(tmp_path: Path) -> None:
    import yaml

    file = tmp_path / "two.yaml"
    second = {**DOCUMENT, "metadata": {"name": "second"}}
    file.write_text(yaml.safe_dump_all([DOCUMENT, second]))
    assert pilotlight.deploy(file, name="second", sets={"spec.predictor.minReplicas": 0}).name == "second"
    other = pilotlight.deploy(IRIS, name="third", min_replicas=0, sets={"spec.predictor.maxReplicas": 2})
    assert (other.name, other.ready) == ("third", True)
    assert sorted(each.name for each in pilotlight.services()) == ["iris", "second", "third"]
    for name in ("second", "third"):
        pilotlight.delete(name)
    assert [each.name for each in pilotlight.services(namespace="default")] == ["iris"]


def test_a_class_of_a_file_is_served_from_there_and_a_canary_follows(platform: Platform) -> None:
    service = pilotlight.deploy(Shift)
    assert (service.name, service.revisions[0].ready) == ("shift", 1)
    assert answer(service) == (ONES + 10).tolist()
    first = service.revisions[0].name
    service = pilotlight.canary("shift", negated, percent=20, min_replicas=1)
    assert sorted(service.traffic.values()) == [20, 80]
    assert pilotlight.abort("shift").traffic == {first: 100}
    pilotlight.canary("shift", negated, percent=20, min_replicas=1)
    service = pilotlight.promote("shift")
    assert list(service.traffic.values()) == [100]
    assert answer(service) == (-ONES).tolist()
    assert pilotlight.rollback("shift").traffic == {first: 100}
    assert answer(service) == (ONES + 10).tolist()


def test_a_function_without_a_file_is_written_into_the_home(platform: Platform) -> None:
    factor = 3

    def tripled(x: np.ndarray) -> dict[str, np.ndarray]:
        return {"y": x * factor}

    service = pilotlight.deploy(tripled, name="local-function", min_replicas=1)
    assert answer(service) == (3 * ONES).tolist()
    (folder,) = platform.home.sources.iterdir()
    assert "factor = 3\n" in (folder / "model.py").read_text()
    pilotlight.delete("local-function")


def test_bounds_and_shares_are_set_by_hand_and_reset() -> None:
    assert pilotlight.scale("shift", max=3).overrides == {"shift-predictor": {"maxReplicas": 3}}
    assert not any(pilotlight.scale("shift", reset=True).overrides.values())
    newest = pilotlight.status("shift").revisions[0].name
    assert pilotlight.traffic("shift", {newest: 100}).traffic == {newest: 100}
    assert not any(each.get("traffic") for each in pilotlight.traffic("shift").overrides.values())


def test_errors_are_those_of_the_command_with_their_hint() -> None:
    with pytest.raises(pilotlight.NotFound, match="there is no service default/nope") as missing:
        pilotlight.status("nope")
    assert missing.value.__notes__ == [missing.value.hint]
    with pytest.raises(pilotlight.UsageError, match=r"'to'.*: -1 is not in the range"):
        pilotlight.scale("iris", to=-1)
    with pytest.raises(pilotlight.UsageError, match="No such option 'colour'"):
        pilotlight.status("iris", colour="red")  # type: ignore[call-arg]
    with pytest.raises(pilotlight.UsageError, match="no such file or directory"):
        pilotlight.deploy("./missing.onnx")
    with pytest.raises(InvalidDocument, match=r"^the dict: spec\.predictor\.minReplicas"):
        pilotlight.deploy({**DOCUMENT, "spec": {"predictor": {**DOCUMENT["spec"]["predictor"], "minReplicas": "x"}}})
    with pytest.raises(pilotlight.NotFound, match="default/--help"):
        pilotlight.status("--help")
    with pytest.raises(pilotlight.NotFound):
        pilotlight.delete("nope")
    pilotlight.delete("nope", missing_ok=True)


def test_messages_have_the_words_of_the_caller(tmp_path: Path) -> None:
    def halved(x: np.ndarray) -> dict[str, np.ndarray]:
        return {"y": x / 2}

    lines: list[str] = []
    with pytest.raises(InvalidDocument) as invalid:
        pilotlight.deploy(halved, name="Bad_Name", progress=lines.append)
    assert lines == ["halved: Python model, function halved"]
    assert str(invalid.value).startswith('halved: metadata.name: is "Bad_Name", must be a lower-case letter')
    with pytest.raises(pilotlight.UsageError, match=r"^trust_pickle: halved holds no pickle"):
        pilotlight.deploy(halved, trust_pickle=True)
    with pytest.raises(InvalidDocument, match=r"^sets spec\.predictor\.maxReplica=2: "):
        pilotlight.deploy(halved, sets={"spec.predictor.maxReplica": 2})
    with pytest.raises(pilotlight.UsageError, match=r"sets = \['a=1'\], must be a dict such as"):
        pilotlight.deploy(halved, sets=["a=1"])  # type: ignore[arg-type]
    (tmp_path / "churn.pkl").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(pilotlight.UsageError, match="is a pickle") as pickled:
        pilotlight.deploy(tmp_path / "churn.pkl")
    assert pickled.value.hint.startswith("if you trust it: trust_pickle=True; else save it in another format")


def test_only_options_of_the_command_become_arguments() -> None:
    text = "--foo-bar --manual --no-wait --min-replicas --set"
    with pytest.raises(InvalidDocument) as invalid:
        pilotlight.deploy(negated, name=text)
    assert 'is "--foo-bar --manual wait=False min_replicas sets"' in str(invalid.value)  # --manual is of canaries


def test_a_start_at_its_memory_limit_names_the_argument_that_raises_it() -> None:
    class Large:
        def __init__(self) -> None:
            raise RuntimeError("used 612 MiB, limit 512 MiB; raise resources.limits.memory")  # as the platform ends it

        def predict(self, x: np.ndarray) -> dict[str, np.ndarray]:
            return {"y": x}

    with pytest.raises(pilotlight.PlatformError, match="limit 512 MiB") as ended:
        pilotlight.deploy(Large, min_replicas=1, timeout=60)
    sets = {"spec.predictor.model.resources.limits.memory": "1Gi"}
    assert ended.value.hint.startswith(f"the same call with sets={json.dumps(sets)}; ")
    with pytest.raises(pilotlight.PlatformError, match="limit 512 MiB"):
        pilotlight.deploy(Large, min_replicas=1, timeout=60, sets=sets)
    pilotlight.delete("large")


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_verb_needs_the_name_of_a_service(name: Any) -> None:
    for verb in (pilotlight.status, pilotlight.delete):
        with pytest.raises(pilotlight.UsageError, match=f"name = {name!r}, must be the name of a service"):
            verb(name)


def test_threads_get_their_own_results_and_lines() -> None:
    results: dict[str, tuple[str, list[str]]] = {}

    def show(name: str) -> None:
        lines: list[str] = []
        service = pilotlight.scale(name, min=1, progress=lines.append)
        results[name] = service.name, lines

    threads = [threading.Thread(target=show, args=[name]) for name in ("iris", "shift")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: found for name, (found, _) in results.items()} == {"iris": "iris", "shift": "shift"}


def test_old_sources_are_removed(platform: Platform, tmp_path: Path) -> None:
    from pilotlight.sdk import model_folder

    def served(number: int) -> Any:
        def predict(x: Any) -> Any:
            return number

        return predict

    folders = [model_folder.served_model(served(number), tmp_path).path for number in range(model_folder.KEPT + 3)]
    assert len(list(tmp_path.iterdir())) == model_folder.KEPT
    assert folders[-1].exists()
    assert folders[-1] == model_folder.served_model(served(model_folder.KEPT + 2), tmp_path).path
    assert os.stat(folders[-1]).st_mode & 0o077 == 0

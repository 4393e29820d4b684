"""The verbs of a service on a cloud, as they are typed, against the stand-in of Lepton's command line."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.platform.targets.remote_platform import environment, model_server

TARGET = ("--target", "lepton")
SHAPE = ("--target-option", "resource_shape=cpu.small")
DOCUMENT = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: iris}}
spec:
  predictor:
    minReplicas: {least}
    model:
      modelFormat: {{name: onnx}}
      protocolVersion: v2
      storageUri: {uri}
"""


def test_a_service_is_deployed_used_and_deleted(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secrets.json").write_text("{}")
    for name, value in environment(tmp_path, "lep", LEP_STAND_IN=str(tmp_path)).items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "iris.yaml"
    with model_server() as uri:
        file.write_text(DOCUMENT.format(uri=uri, least=1))
        missing = call("deploy", "-f", str(file), *TARGET)
        assert (missing.code, "lepton needs resource_shape" in missing.err) == (2, True)
        deployed = call("deploy", "-f", str(file), *TARGET, *SHAPE)
        assert deployed.code == 0, deployed.err
        try:
            status = json.loads(call("status", "iris", *TARGET, "-o", "json").out)
            assert (status["phase"], status["target"], status["url"]) == ("Ready", "lepton", deployed.out.strip())
            assert "iris" in call("list", *TARGET).out
            answer = call("infer", "iris", *TARGET, "--data", "[5.1, 3.5, 1.4, 0.2]")
            assert answer.code == 0, answer.err
            assert "ready" in call("logs", "iris", *TARGET).out.lower()
            assert "Started" in call("events", "iris", *TARGET).out
            scaled = call("scale", "iris", *TARGET, "--min", "2", "--max", "2")
            assert scaled.code == 0, scaled.err
            again = call("deploy", "iris", *TARGET, "--set", "metadata.labels.team=a")
            assert again.code == 0, again.err
            assert json.loads(call("status", "iris", *TARGET, "-o", "json").out)["generation"] == 2
            back = call("rollback", "iris", *TARGET)
            assert back.code == 0, back.err
            split = call("traffic", "iris", *TARGET, "latest=100")
            assert split.code == 2
            assert "lepton cannot split traffic: it is not behind the Pilotlight gateway" in split.err
            tried = ("canary", "start", "iris", "-f", str(file), *TARGET, "--set", "metadata.labels.team=b")
            canary = call(*tried, "--percent", "20")  # with the shape that it was deployed with
            assert (canary.code, "PL372" in canary.err, "resource_shape" in canary.err) == (2, True, False), canary.err
            file.write_text(DOCUMENT.format(uri=uri, least=0))
            zero = call("deploy", "-f", str(file), *TARGET, *SHAPE)
            assert (
                f"{file}:6:18: error PL371: spec.predictor.minReplicas: lepton does not support it: an endpoint"
                in zero.err
            )
        finally:
            deleted = call("delete", "iris", *TARGET)
    assert deleted.code == 0, deleted.err
    gone = call("status", "iris", *TARGET)
    assert (gone.code, "there is no service default/iris on lepton" in gone.err) == (3, True)
    assert not [*tmp_path.glob("iris-*.json")]

"""One small service in two forms, as the manifests that `render` makes of its document."""

import subprocess
import sys
from pathlib import Path
from typing import Final

MODEL: Final = "file:///models/iris/model.onnx"  # in the bed's image
DOCUMENT: Final = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: {name}
  namespace: {namespace}
  annotations:
    serving.kserve.io/deploymentMode: {mode}
    autoscaling.knative.dev/window: 6s
spec:
  predictor:
    minReplicas: {least}
    maxReplicas: 2
    model:
      modelFormat: {{name: onnx}}
      storageUri: {uri}
      resources:
        requests: {{cpu: 100m, memory: 256Mi}}
        limits: {{memory: 512Mi}}
"""


def document(name: str, namespace: str, mode: str = "Serverless", least: int = 1, uri: str = MODEL) -> str:
    return DOCUMENT.format(name=name, namespace=namespace, mode=mode, least=least, uri=uri)


def manifests(text: str) -> str:
    """As a cluster gets them; `kubectl apply` can take them too."""
    command = [str(Path(sys.executable).parent / "platformctl"), "render", "-f", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, timeout=60).stdout

"""KServe's server in a pod: says first that it runs, so that its imports are timed: kserve_app.py PORT NAME=FILE."""
# mypy: ignore-errors
# ruff: noqa: E402

print("started", flush=True)

import sys

from kserve import ModelServer
from kserve_server import OnnxModel

if __name__ == "__main__":
    port, model = sys.argv[1:]
    server = ModelServer(http_port=int(port), enable_grpc=False, workers=1, enable_latency_logging=False)
    server.start([OnnxModel(*model.split("=", 1))])

"""Call the iris classifier at /predict: one flower, a batch and a stream: python examples/clients/predict_client.py

Needs `pip install requests websockets`.
"""

import json
import os

import requests
from websockets.sync.client import connect

url = os.environ.get("PREDICTOR_URL", "http://127.0.0.1:8080")
setosa, virginica = [5.1, 3.5, 1.4, 0.2], [6.7, 3.0, 5.2, 2.3]

with requests.Session() as session:
    session.trust_env = False  # the server is addressed directly, whatever proxy is set for the world outside
    print(session.get(f"{url}/healthz", timeout=30).json())
    print(session.post(f"{url}/predict", json={"inputs": setosa}, timeout=30).json())
    print(session.post(f"{url}/predict", json={"batch": [setosa, virginica]}, timeout=30).json())
    refused = session.post(f"{url}/predict", json={"inputs": []}, timeout=30)
    print(refused.status_code, refused.json())

with connect(url.replace("http", "ws", 1) + "/predict/stream", proxy=None) as stream:
    for flower in (setosa, virginica):
        stream.send(json.dumps({"inputs": flower}))
    for _ in range(2):
        print(json.loads(stream.recv()))

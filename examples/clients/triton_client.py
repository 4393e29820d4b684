"""Call the iris classifier with NVIDIA's client, unchanged: python examples/clients/triton_client.py

Needs `pip install 'tritonclient[http]'`. Tensors travel as binary, the client's default.
"""

import os

import numpy as np
import tritonclient.http as triton

np.set_printoptions(suppress=True)
url = os.environ.get("PREDICTOR_URL", "http://127.0.0.1:8080")
with triton.InferenceServerClient(url.removeprefix("http://")) as client:
    print("server ready:", client.is_server_ready(), "| model ready:", client.is_model_ready("iris"))
    flowers = np.array([[5.1, 3.5, 1.4, 0.2], [6.7, 3.0, 5.2, 2.3]], dtype=np.float32)
    x = triton.InferInput("x", flowers.shape, "FP32")
    x.set_data_from_numpy(flowers)
    print(client.infer("iris", [x]).as_numpy("y").round(4))
    classes = client.infer("iris", [x], outputs=[triton.InferRequestedOutput("y", class_count=1)])
    print(classes.as_numpy("y"))

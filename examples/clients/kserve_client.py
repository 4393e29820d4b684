"""Call the iris classifier with KServe's client, unchanged: python examples/clients/kserve_client.py

Needs `pip install kserve`.
"""

import asyncio
import os

import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

FLOWERS = [[5.1, 3.5, 1.4, 0.2], [6.7, 3.0, 5.2, 2.3]]


async def main(url: str) -> None:
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    print(
        "server ready:", await client.is_server_ready(url), "| model ready:", await client.is_model_ready(url, "iris")
    )
    request = InferRequest(model_name="iris", infer_inputs=[InferInput("x", [2, 4], "FP32", FLOWERS)])
    response = await client.infer(url, request, model_name="iris")
    np.set_printoptions(suppress=True)
    print(response.outputs[0].as_numpy().round(4))
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(os.environ.get("PREDICTOR_URL", "http://127.0.0.1:8080")))

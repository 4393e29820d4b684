"""Models of a file, which is served as it is."""

import numpy as np

import pilotlight

OFFSET = 10.0


@pilotlight.model(name="shift", min_replicas=1)
class Shift:
    def predict(self, x: np.ndarray) -> dict[str, np.ndarray]:
        if x.sum() > 1000:
            raise ValueError("more than a thousand")
        return {"y": x + OFFSET}


def negated(x: np.ndarray) -> dict[str, np.ndarray]:
    return {"y": -x}


@pilotlight.model(requirements=["six"])
class Unfit:
    def predict(self, x: np.ndarray) -> np.ndarray:
        return x


@pilotlight.model(inputs={"x": ("FP32", [-1, 2])}, outputs={"y": ("FP32", [-1, 2])})
class Doubled:
    def predict(self, x: np.ndarray) -> np.ndarray:
        return 2 * x

"""A model that takes as long as its request says, without using the machine: how many are in flight is then known."""

import time

import numpy as np

INPUTS = {"x": ("FP32", [-1, 1])}
OUTPUTS = {"y": ("FP32", [-1, 1])}


def predict(x: np.ndarray) -> np.ndarray:
    time.sleep(float(x[0, 0]))
    return x

"""The predictor: bytes → protocol → scheduler → batcher → backend → protocol → bytes."""

__version__ = "0.1.0"

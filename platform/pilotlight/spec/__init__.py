"""Readers of InferenceService, ServingRuntime and BaseModel documents of both API groups into one internal model."""

"""The control plane: one InferenceService document becomes running replicas, on one machine or on Kubernetes."""

__version__ = "0.1.0"

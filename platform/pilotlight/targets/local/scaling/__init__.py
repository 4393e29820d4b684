"""Autoscalers of the embedded platform: Knative's KPA, the HPA and KEDA as pure functions."""

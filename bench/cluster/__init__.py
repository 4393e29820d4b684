"""Figures of a real cluster: cold starts through Knative, and real autoscalers beside the local one."""

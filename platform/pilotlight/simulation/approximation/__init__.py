"""Simulation of long traces: autoscaler and replicas as they are, requests in bulk."""

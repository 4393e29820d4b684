"""Observability of the platform: metrics and logs of its processes, dashboards, recording rules and alerts.

Metric names come from contract.py.
"""

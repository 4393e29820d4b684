"""Observability of the platform: metrics of the control process, dashboards, recording rules and alerts.

Metric names come from contract.py.
"""

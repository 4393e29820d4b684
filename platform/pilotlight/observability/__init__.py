"""What an operator sees of the platform: the control process's metrics, dashboards, recording rules and alerts.

Everything here is made of names of contract.py, and nothing here decides: it tells what others have decided.
"""

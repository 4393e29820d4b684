"""Targets on machines of a cloud, without a control process of ours: one endpoint for each service."""

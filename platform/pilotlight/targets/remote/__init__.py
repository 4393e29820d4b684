"""Targets that are clouds: each service is one endpoint, and neither gateway nor control process runs."""

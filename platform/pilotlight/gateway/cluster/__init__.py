"""The gateway as a component of a cluster: the same data plane, with endpoints from the API and counts for KEDA."""

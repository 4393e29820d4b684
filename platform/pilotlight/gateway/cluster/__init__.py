"""Gateway in a cluster: the same data plane, with endpoints from the Kubernetes API and load reports for KEDA."""

"""Kubernetes target: manifests are applied to a cluster, with the same status as on one machine."""

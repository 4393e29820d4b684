"""Embedded target: runs the manifests of a cluster as processes of one machine."""

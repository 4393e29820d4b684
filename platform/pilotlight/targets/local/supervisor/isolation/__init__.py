"""Isolation of replicas from each other and from the machine: control groups, private models, sandboxes."""

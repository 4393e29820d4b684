"""The embedded target: the manifests that a cluster would get, brought to life as processes of one machine."""

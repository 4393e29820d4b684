"""Where manifests come to life: one machine, a cluster, and others; each behind the same protocol."""

"""How many replicas there should be, and why: Knative's and KEDA's rules as pure functions."""

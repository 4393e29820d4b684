"""Simulation: a trace of requests replayed on virtual time against the autoscaling and queueing of a document."""

"""Inference microservices over HTTP, for clients of TAO's API: an area of the control API. table.py is the entry."""

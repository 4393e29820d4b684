"""Inference microservices over HTTP, for clients of TAO's API: areas of the control API. routes.py is the entry."""

"""Codecs: request and response bodies of each protocol ↔ InferRequest and InferResponse. Pure."""

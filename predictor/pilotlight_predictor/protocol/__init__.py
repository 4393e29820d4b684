"""Codecs: bytes of a dialect ↔ InferRequest and InferResponse. Pure; no sockets, no aiohttp, no models."""

"""Framing of HTTP/1.1 and HTTP/2, and unix sockets, that gateway and predictor share. Knows bytes, not models."""

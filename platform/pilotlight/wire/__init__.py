"""HTTP/1.1 framing that gateway and predictor share. Knows bytes, not models."""

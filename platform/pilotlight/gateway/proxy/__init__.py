"""Data plane: one request between client and replica."""

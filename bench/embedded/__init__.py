"""Figures of the embedded platform: its gateway, its cold starts, and what many services cost on one machine."""

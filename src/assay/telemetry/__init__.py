"""Logs and names of traces."""

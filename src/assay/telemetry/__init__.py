"""Logging, and the names of trace spans."""

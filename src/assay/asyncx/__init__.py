"""Helpers for asynchronous code: owned contexts, listening on a port."""

"""Asynchronous building blocks: owned contexts, listening sockets."""

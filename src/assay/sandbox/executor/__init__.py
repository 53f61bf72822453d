"""Serves a sandbox backend over gRPC to clients that are known, counted and kept apart."""

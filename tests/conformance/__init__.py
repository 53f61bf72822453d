"""Conformance suites that only tests use."""

"""Conformance and attack suites for sandbox backends, run by `assay sandbox selftest`."""

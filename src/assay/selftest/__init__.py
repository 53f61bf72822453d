"""Conformance and security suites for sandbox backends, run by `assay sandbox selftest`."""

"""Benchmarks: how many exercises of a suite a model solves, alone or with Assay."""

"""Suites of exercises: how many of them a model, or Assay with that model, really solves."""

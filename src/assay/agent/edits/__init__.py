"""Edits that a model requests: matched and applied, all or none."""

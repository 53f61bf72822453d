"""Edits that a model asks for: matched, applied, all of them or none."""

"""Test runners, one module each, and the parsers of their reports."""

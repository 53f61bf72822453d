"""Test runners, one module each, and readers of their reports."""

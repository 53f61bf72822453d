"""Snippets: reusable functions from accepted files, extracted and tested."""

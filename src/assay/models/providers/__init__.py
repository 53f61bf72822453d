"""Providers of models, one module for each wire format."""

"""Probes for `assay doctor`: what works on this machine, why not, and how to fix it."""

"""Optimizes a zygote's memory layout before it serves, so that forks are cheap."""

"""Isolation by the Linux kernel alone: without daemon, root or helper binary."""

"""Isolation by the Linux kernel alone: no daemon, no root, no helper binary."""

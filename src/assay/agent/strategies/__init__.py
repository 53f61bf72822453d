"""The strategies that make an attempt."""

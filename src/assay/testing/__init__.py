"""Doubles and suites, shipped so that people who add a backend can hold it to the contract."""

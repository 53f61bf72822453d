"""Toolchains: the programs that run each language's tests in a sandbox without network."""

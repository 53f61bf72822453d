"""The environment that a project declares: found in its files, never by running them."""

"""The Docker backend: a container for each sandbox, and in it the native engine."""

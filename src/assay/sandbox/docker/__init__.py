"""The Docker backend: one container per sandbox, each with the native engine."""

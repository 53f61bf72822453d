"""HTTP endpoints, middleware and response models."""

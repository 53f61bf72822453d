"""Ways of getting an answer from a model, and of choosing one."""

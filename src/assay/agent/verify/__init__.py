"""The independent check: what decides that a goal is met, instead of the model."""

"""The loop: plan, code, screen, execute, verify, reflect. Knows the contracts and nothing else."""

"""A sandbox backend in another process: what serves it there, and what stands for it here."""

"""One module or folder per way of isolating code, and the factory that chooses."""

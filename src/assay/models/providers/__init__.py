"""Model providers, one module per wire format."""

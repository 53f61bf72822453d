"""What a reply of a model asks for."""

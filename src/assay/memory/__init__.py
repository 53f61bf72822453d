"""What earlier failures taught, kept for later runs."""

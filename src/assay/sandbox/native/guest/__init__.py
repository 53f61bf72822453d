"""What runs in and around the jail. Standard library only."""

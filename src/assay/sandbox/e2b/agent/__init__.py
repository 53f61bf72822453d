"""What runs inside the virtual machine. Standard library only."""

"""What people ask of a run while it lives, and afterwards."""

"""What is reckoned before a run, and the controller that follows a plan."""

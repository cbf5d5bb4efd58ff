"""What bounds a learner's utilisation: supply, training and staleness."""

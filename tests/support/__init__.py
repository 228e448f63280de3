"""What test files of several rooms share."""

"""The length of training and the schedule."""

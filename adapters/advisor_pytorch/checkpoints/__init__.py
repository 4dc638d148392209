"""What a training goes on from, and when it is saved."""

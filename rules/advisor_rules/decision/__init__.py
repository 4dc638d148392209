"""What to adopt, and when to stop tuning."""

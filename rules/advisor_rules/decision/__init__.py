"""The choice of a setting to adopt, and the end of tuning."""

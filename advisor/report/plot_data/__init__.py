"""Data of the plots, computed before anything is drawn."""

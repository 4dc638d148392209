"""Studies from and for other tools."""

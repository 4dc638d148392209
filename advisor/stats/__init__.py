"""Statistics that rules share. Functions take arrays and return numbers; no module here depends on studies."""

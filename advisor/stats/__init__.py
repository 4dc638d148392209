"""Statistics that rules share. Functions take arrays and return numbers; none of them depends on studies."""

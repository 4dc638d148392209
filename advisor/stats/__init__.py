"""Statistical functions that rules share. The functions take arrays and return numbers; none of them depends on studies."""

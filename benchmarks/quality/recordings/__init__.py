"""Small real trainings with one cause each switched on and off: recorded studies whose labels are what was switched."""

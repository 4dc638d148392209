"""What several rules read from a study in the same way, so that they never disagree on it. Studies in, numbers and changes out."""

"""From an experiment to a study. `assemble` puts the decisions together; each other module makes one of them."""

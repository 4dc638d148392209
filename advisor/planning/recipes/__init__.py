"""Recipes for first studies of language models, one study file each. Users get its leading comment, too."""

"""Recipes for first studies of language models, one study file each. Users get a copy with the leading comment."""

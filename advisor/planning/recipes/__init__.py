"""Recipes for first studies of language models, one study file each. The leading comment of a recipe's file is copied to the
user's study file."""

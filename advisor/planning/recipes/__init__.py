"""Recipes for first studies of language models, one study file each. The file's leading comment is copied to the user's study
file.
"""

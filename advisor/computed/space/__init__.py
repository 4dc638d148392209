"""Analyses the hyperparameter settings of a study, their failures, and the importance of each hyperparameter."""

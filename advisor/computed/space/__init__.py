"""Settings, failures and importance of hyperparameters."""

"""The playbook's study designs, one a file."""

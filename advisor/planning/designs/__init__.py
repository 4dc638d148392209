"""The study designs of the playbook, one per file; `catalogue.DESIGNS` lists those that rules can request."""

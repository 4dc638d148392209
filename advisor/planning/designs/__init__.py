"""The study designs of the playbook, one per module. `catalogue.DESIGNS` lists the designs that rules can request."""

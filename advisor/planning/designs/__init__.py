"""The study designs of the playbook, one per module. `catalogue.STUDY_DESIGNS` lists the designs that rules can request."""

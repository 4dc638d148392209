"""The autopsy of a training: what was known at its first non-finite value, in one small file (`advisor.contract.AUTOPSY_PATH`)."""

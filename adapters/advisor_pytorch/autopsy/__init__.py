"""The autopsy of a training: facts at its first non-finite value, in one small file (`advisor.contract.AUTOPSY_PATH`)."""

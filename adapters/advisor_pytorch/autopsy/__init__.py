"""The autopsy of a training run: facts at its first non-finite value, in one small file (`advisor.contract.AUTOPSY_PATH`)."""

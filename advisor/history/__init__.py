"""The history of a study: its earlier rounds, the predictions for each round, and the earlier trials that still count as data.

`predict` writes predictions into the next study files, and `judge` compares them with the results. `rounds` combines both. `pool`
finds the earlier trials that lie in the latest search space. All of these modules are pure functions of studies.
"""

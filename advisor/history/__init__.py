"""The history of a study: its earlier rounds, the predictions for each round, and the earlier trials that count as data of the
study.

`predict` writes predictions into the next study file, `judge` compares them with results, and `rounds` combines both. `pool`
finds earlier trials that lie in the latest search space. `predict`, `judge` and `pool` consist of pure functions of studies.
"""

"""The history of a study: its earlier rounds, the predictions for each round, and the earlier trials that count as its data.

`predict` writes predictions into the next study files, `judge` compares predictions with results, and `rounds` combines both.
`pool` finds the earlier trials that lie in the latest search space. The functions of `predict`, `judge` and `pool` are pure
functions of studies.
"""

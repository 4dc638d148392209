"""The history of a study: its earlier rounds, the predictions for each round, and the earlier trials that count as data of the
study.

`predict` writes predictions into the next study file, `judge` compares them with results, and `rounds` describes each round
with its judged predictions. `pool` finds earlier trials whose settings lie in the search space of the latest study. `predict`,
`judge` and `pool` consist of pure functions of studies."""

from advisor.tracking.study.roles import parameter_roles


def trials(n=12):
    return [
        {"lr": 0.001 * 1.5**i, "learning_rate": 0.001 * 1.5**i, "min_lr": 0.0001 * 1.5**i, "wd": (i * 7 % 5) / 10}
        for i in range(n)
    ]


def test_duplicates_and_tied_hyperparameters_are_not_searched():
    roles = parameter_roles(trials(), (), [10] * 12)
    assert roles.omitted_names == {"learning_rate"}
    assert roles.derived["min_lr"].formula == "0.1 * lr"
    assert [d.text for d in roles.decisions] == [
        "learning_rate has the values of lr in every trial, so it is omitted.",
        "min_lr follows from lr and is not searched: 0.1 * lr.",
    ]
    assert all(d.overrule for d in roles.decisions)


def test_declared_parameters_keep_their_role():
    roles = parameter_roles(trials(), ("min_lr", "learning_rate", "lr"), [10] * 12)
    assert (roles.derived, roles.omitted_names) == ({}, set())


def test_the_length_of_training_is_fixed_under_any_name():
    params = [{"horizon": 10 + 3 * i, "lr": 0.1 * 1.1**i} for i in range(8)]
    roles = parameter_roles(params, (), [10 + 3 * i - 1 for i in range(8)])
    assert (roles.lengths["horizon"].role, roles.steps[0]) == ("fixed", 10)
    assert roles.steps_per_unit == {"horizon": 1.0}

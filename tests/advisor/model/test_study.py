from small_experiments import curves, run, study_of


def test_a_metric_without_a_name_before_its_suffix_is_no_maximum_of_an_absent_curve():
    loss, other = curves([5, 5], lambda i, s: 1 / s), curves([5, 5], lambda i, s: 9.0)
    study = study_of([run(0, lr=1), run(1, lr=2)], objective="val/loss", **{"val__loss": loss, ".max": other})
    assert ".max" in study.metrics
    assert not len(study.peaks(study.trials[0], "grad_norm"))

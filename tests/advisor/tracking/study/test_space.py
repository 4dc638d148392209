from small_experiments import declared, points, run, study_of

from advisor.model.spec import Parameter


def test_only_undeclared_parameters_are_inferred():
    runs = [run(i, lr=10.0**-i, wd=0.1 * i, model="cnn") for i in range(1, 6)]
    spec = declared(lr=Parameter(low=1e-6, high=1, scale="log"))
    study = study_of(runs, val__loss=points(*((i, 1, 1.0, 1) for i in range(5))), spec=spec)
    assert (study.searched["lr"].low, study.searched["lr"].type) == (1e-6, "float")
    assert study.searched["wd"].scale == "linear"
    assert study.spec.parameters["model"].value == "cnn"
    assert study.inferred == {"wd": "range inferred from the trials"}

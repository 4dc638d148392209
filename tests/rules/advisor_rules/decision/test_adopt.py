import numpy as np
import pytest
from promise import scaled, studies
from studies import lacking, make_study, verdict

from advisor.model.change import Advise, RepeatTrial
from advisor.planning import plan
from advisor.planning.sampling.halton import draw_trials
from advisor_rules.decision import adopt


def repeated(values, *, status=None, **options):
    """A study of settings with repeats: {learning rate: values of its seeds}."""
    params = [{"lr": lr} for lr, ys in values.items() for _ in ys]
    seeds = [seed for ys in values.values() for seed in range(len(ys))]
    curves = [[2.0, y] for ys in values.values() for y in ys]
    return make_study(params, {"val/loss": curves}, seeds=seeds, status=status, **options)


CLOSE = {0.1: [0.50, 0.53, 0.56, 0.52], 0.2: [0.51, 0.54, 0.57, 0.53], 0.3: [0.90, 0.91, 0.92, 0.95]}
CLEAR = {0.1: [0.50, 0.51, 0.52, 0.50], 0.2: [0.72, 0.74, 0.71, 0.71], 0.3: [0.90, 0.91, 0.92, 0.95]}


def example():
    """Two settings with four seeds each, hardly apart."""
    return repeated({0.1: [0.50, 0.53, 0.52, 0.51], 0.2: [0.52, 0.54, 0.55, 0.51]})


def test_a_lead_within_the_trial_variance_is_no_lead():
    found = verdict("adopt", example()).findings[0]
    assert found.confidence > 0.5


def test_settings_with_a_lead_too_small_to_find_out_about_are_equally_good():
    found = verdict("adopt", repeated(CLOSE)).findings[0]
    assert str(found.action).startswith("Treat lr 0.1 and lr 0.2 as equally good")
    assert [c.kind for c in found.changes] == ["advise"]
    assert found.changes[0].text == str(found.action)


def test_a_higher_objective_leads_where_it_is_maximized():
    params = [{"lr": 0.1}] * 4 + [{"lr": 0.2}] * 4
    study = make_study(
        params,
        {"val/acc": [0.60, 0.61, 0.62, 0.60, 0.61, 0.63, 0.62, 0.60]},
        objective="val/acc",
        direction="maximize",
        seeds=list(range(8)),
    )
    assert "a mean of 0.6150 over" in verdict("adopt", study).findings[0].message


def test_a_winner_by_luck_of_one_seed_is_found_out():
    found = verdict("adopt", repeated({0.1: [0.40, 0.60, 0.61, 0.59], 0.2: [0.50, 0.51, 0.52, 0.50]})).findings[0]
    assert "behind on average" in found.message
    assert "lr 0.2" in found.action


def test_a_best_setting_of_which_a_seed_fails_does_not_repeat():
    study = repeated({0.1: [0.50, 0.51, 0.52, 0.501, 0.9], 0.2: [0.72, 0.74, 0.71, 0.71, 0.73]})
    found = verdict("adopt", study).findings[0]
    assert found.subject == "seed"
    assert found.trials == ("run4",)
    assert all(text in found.message for text in ("5 runs", "0.5", "1 ended", "0.9"))
    crashed = repeated({0.1: [0.5, 0.51, 0.52], 0.2: [0.7, 0.71, 0.72]}, status=["infeasible"] + ["complete"] * 5)
    assert "1 failed" in verdict("adopt", crashed).findings[0].message


def test_a_setting_that_few_of_its_seeds_make_the_best_does_not_repeat():
    found = verdict("adopt", repeated({0.1: [0.10, 0.80, 0.801, 0.802, 0.803], 0.2: [0.5, 0.51, 0.52, 0.5, 0.51]})).findings[0]
    assert found.subject == "seed"
    assert found.trials == ("run1", "run2", "run3", "run4")


def test_repeats_of_a_single_setting_are_judged_too():
    assert verdict("adopt", repeated({0.1: [0.0969, 0.0970, 0.0998, 0.8966, 0.8967]})).findings[0].subject == "seed"
    assert lacking("adopt", repeated({0.1: [0.751, 0.7515, 0.7496, 0.7492, 0.7502]}))


def test_the_best_setting_is_compared_with_a_repeated_one_even_if_a_single_run_is_better():
    values = {0.1: [0.50, 0.53, 0.52, 0.51], 0.2: [0.52, 0.54, 0.55, 0.51], 0.3: [0.517]}
    (finding,) = verdict("adopt", repeated(values)).findings
    assert str(finding.action).startswith("Run lr 0.1 and lr 0.2 ")


def test_quiet_if_the_lead_is_real_also_by_the_variance_of_other_settings():
    assert verdict("adopt", repeated(CLEAR)).status == "quiet"
    values = {0.1: [0.10], 0.2: [0.72, 0.74, 0.71, 0.71], 0.3: [0.9]}
    assert verdict("adopt", repeated(values)).status == "quiet"
    assert verdict("adopt", repeated({**values, 0.1: [0.70]})).status == "fired"


def test_cannot_tell_without_repeats():
    assert "repeat the best trial 5 times" in lacking("adopt", repeated({0.1: [0.5], 0.2: [0.6]}))


def test_runs_with_the_same_seed_are_no_repeats():
    study = make_study([{"lr": 0.1}] * 2 + [{"lr": 0.2}] * 2, {"val/loss": [0.5, 0.5, 0.6, 0.6]}, seeds=[1, 1, 1, 1])
    assert lacking("adopt", study)


def test_values_that_text_rounded_are_one_setting():
    params = [{"lr": 0.003981071705534973}, {"lr": 0.0039810717055}, {"lr": 0.1}, {"lr": 0.1}]
    study = make_study(params, {"val/loss": [0.50, 0.52, 0.51, 0.53]}, seeds=[0, 1, 0, 1])
    assert "over 2 seeds, compared with" in verdict("adopt", study).findings[0].message


def test_ties_are_no_lead():
    assert verdict("adopt", repeated({0.1: [1.0] * 4, 0.2: [1.0] * 4})).status == "fired"


def test_the_next_study_repeats_both_settings():
    study = example()
    said = verdict("adopt", study)
    (spec,) = plan(study, [said]).specs
    seeds = said.findings[0].changes[1].seeds
    assert spec.goal == f"Compare lr: 0.1 and 0.2, {seeds} seeds each"
    assert (list(draw_trials(spec, 2)), spec.trials, spec.seeds) == ([{"lr": 0.1}, {"lr": 0.2}], 2, seeds)


@pytest.mark.parametrize(("settings", "seeds"), [(2, 4), (6, 3), (12, 5), (3, 10)])
def test_keeps_its_promise_where_all_settings_are_equal(settings, seeds):
    passed = 0
    for i in studies(100):
        rng = np.random.default_rng(i)
        values = {0.001 * (k + 1): np.round(rng.normal(1, 0.1, seeds), 2 if i % 2 else 6).tolist() for k in range(settings)}
        passed += verdict("adopt", repeated(values)).status == "quiet"
    assert passed <= scaled(9, of=100)  # 5 % of 100, and two standard deviations


def test_does_not_doubt_a_clear_lead():
    doubted = 0
    for i in studies(100):
        rng = np.random.default_rng(i)
        values = {0.1: rng.normal(0, 1, 5), 0.2: rng.normal(4, 1, 5), 0.3: rng.normal(4.5, 1, 5)}
        doubted += verdict("adopt", repeated({k: v.tolist() for k, v in values.items()})).status == "fired"
    assert doubted <= scaled(9, of=100)


def test_repeats_that_noted_no_seed_are_runs_and_a_tie_is_no_lead():
    params = [{"lr": lr} for lr in (0.1, 0.1, 0.2, 0.2)]
    tied = make_study(params, {"val/loss": [0.50, 0.54, 0.51, 0.53]})
    (finding,) = verdict("adopt", tied).findings
    assert "is as good as lr 0.2" in finding.message
    assert "between runs" in finding.message
    assert "seed" not in f"{finding.message}{finding.action}"


def selected(best, others=(0.52, 0.54, 0.56)):
    """Single runs of four settings, then repeats of the best one and of the next."""
    params = [{"lr": 0.1}, *({"lr": 0.2 + 0.1 * i} for i in range(len(others))), *[{"lr": 0.1}] * 4, *[{"lr": 0.2}] * 4]
    values = [best, *others, 0.51, 0.53, 0.52, 0.50, 0.52, 0.51, 0.53, 0.50]
    return make_study(params, {"val/loss": [[2.0, y] for y in values]}, seeds=list(range(len(params))))


def test_the_run_that_was_selected_is_not_one_of_its_repeats():
    message = str(verdict("adopt", selected(0.40)).findings[0].message)
    assert "0.5150 over 4 seeds, compared with 0.5150 over 4 seeds after the selection" in message


def test_a_significant_lead_that_is_too_small_to_matter_is_no_lead():
    values = [3.276, 3.2761, 3.2759, 3.276, 3.2761, 3.28, 3.2801, 3.2799, 3.28, 3.2801]
    params = [{"lr": 0.1}] * 5 + [{"lr": 0.2}] * 5
    study = make_study(params, {"val/loss": [[4.0, y] for y in values]}, seeds=list(range(10)))
    (found,) = verdict("adopt", study).findings
    assert str(found.action) == "Treat lr 0.1 and lr 0.2 as equally good: the lead is too small to matter."


def lucky_study(noise, better=0.0, repeats=1):
    """Ten equal trials, the last one with this noise between evaluations; settings run with this number of seeds."""
    rng = np.random.default_rng(0)
    course = 1 + np.exp(-np.arange(40) / 8)
    curves = [course + 0.002 * rng.standard_normal(40) for _ in range(9)]
    curves.append(course - better + noise * rng.standard_normal(40))
    params = [{"lr": 0.1 * (i // repeats + 1)} for i in range(10)]
    return make_study(params, {"val/loss": curves}, seeds=[i % repeats for i in range(10)])


def test_a_lucky_winner_is_found_and_said():
    luck = adopt.find_lucky_lead(lucky_study(0.05))
    assert luck is not None
    assert luck.best.name == "trial-9"
    assert 0.02 < luck.best_noise_sd < 0.1
    assert 0 < luck.observed_lead <= luck.expected_lead
    assert 0.5 <= luck.rival_as_good_probability < 1
    (finding,) = verdict("adopt", lucky_study(0.05)).findings
    assert (finding.subject, finding.severity) == ("evaluations", "note")


def test_a_lead_beyond_luck_and_equal_noise_are_no_luck():
    assert adopt.find_lucky_lead(lucky_study(0.05, better=0.5)) is None
    assert adopt.find_lucky_lead(lucky_study(0.002)) is None
    assert adopt.find_lucky_lead(make_study([{"lr": 0.1}], {"val/loss": [[1.0]]})) is None


def test_a_lead_not_clearly_larger_than_luck_is_stated_beside_it():
    luck = adopt.find_lucky_lead(lucky_study(0.05))
    beyond = luck.expected_lead - luck.observed_lead + 0.025
    found = adopt.find_lucky_lead(lucky_study(0.05, better=beyond))
    assert found.observed_lead > found.expected_lead
    assert 0.05 < found.rival_as_good_probability < 0.5
    (finding,) = verdict("adopt", lucky_study(0.05, better=beyond)).findings
    assert "Part of its lead may be luck" in str(finding.message)


def test_the_lucky_trial_is_repeated():
    (finding,) = verdict("adopt", lucky_study(0.05)).findings
    advice, repeat = finding.changes
    assert isinstance(advice, Advise)
    assert isinstance(repeat, RepeatTrial)
    assert (repeat.seeds, repeat.parameters) == (5, {"lr": pytest.approx(1.0)})
    assert "Repeat trial-9 5 times" in finding.action
    assert finding.confidence >= 0.5


def test_if_repeats_are_known_only_they_decide():
    made = lucky_study(0.05, repeats=3)
    assert adopt.find_lucky_lead(made) is not None
    findings = verdict("adopt", made).findings
    assert len(findings) <= 1
    assert all(f.subject != "evaluations" for f in findings)


def test_the_confidence_is_at_most_the_share_of_studies_in_which_the_other_trial_is_as_good():
    stated, right = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        levels, course = 0.03 * rng.standard_normal(6), np.exp(-np.arange(40) / 8)
        noise = np.where(np.arange(6) == rng.integers(6), 0.05, 0.005)
        curves = [level + course + sd * rng.standard_normal(40) for level, sd in zip(levels, noise, strict=True)]
        luck = adopt.find_lucky_lead(make_study([{"lr": 0.1 * (i + 1)} for i in range(6)], {"val/loss": curves}))
        if luck is not None:
            stated.append(luck.rival_as_good_probability)
            right.append(levels[luck.rival.index] <= levels[luck.best.index])
    assert len(stated) >= 10
    assert np.mean(right) >= np.mean(stated)

"""Every verdict on data that should fail it: a verdict that nothing could turn is none."""

import numpy as np
import pytest
from tiny import claims, measured, result

from mirrormax._statistics import Sample
from mirrormax.experiments import VERDICTS, Measurement, _measurements, fig4, fig9, number, thm4, worst_of


def named(name, data, part):
    found = [row for row in measured(name, data) if part in row.name]
    assert found, part
    return {row.verdict for row in found}


# The rules themselves.


def trials(mean, std, count=100):
    """Numbers of just this mean and standard deviation."""
    noise = np.random.default_rng(0).normal(size=count)
    return mean + std * (noise - noise.mean()) / noise.std(ddof=1)


def test_a_smaller_mean_betters_another_only_beyond_its_uncertainty():
    def verdict(values):
        return _measurements.same_mean("D", Sample(0.0052, 0.009, 100), values, "bettered").verdict

    assert verdict(trials(0.0041, 0.0026)) == "met"
    assert verdict(trials(0.0011, 0.0026)) == "bettered"
    assert verdict(trials(0.0152, 0.009)) == "differs"
    assert verdict([0.0011]) == "undecided"


def test_a_mean_is_the_same_within_its_standard_error_not_within_the_spread_of_trials():
    def verdict(mean):
        return _measurements.same_mean("D", Sample(0.175, 0.19, 100), trials(mean, 0.19)).verdict

    assert verdict(0.2) == "met"
    assert verdict(0.3) == "differs", "less than one deviation off"
    assert verdict(0.05) == "differs"


def test_a_claim_of_more_is_met_refuted_smaller_or_open_by_its_interval():
    rng = np.random.default_rng(0)
    low, high = 70 + rng.normal(size=10), 75 + rng.normal(size=10)
    assert _measurements.greater("points", "+2", high, low, size=2).verdict == "met"
    assert _measurements.greater("points", "+2", low, high, size=2).verdict == "differs"
    same = 70 + rng.normal(size=(2, 10)) * 0.1
    assert _measurements.greater("points", "+2", *same, size=2).verdict == "smaller than published"
    wide = 70 + rng.normal(size=(2, 3)) * 10
    assert _measurements.greater("points", "+2", *wide, size=2).verdict == "undecided"
    assert _measurements.greater("points", "more", *same).verdict == "undecided", "no size was published"
    assert _measurements.greater("points", "+2", [1.0], [0.0], size=2).verdict == "undecided", "single runs"


def test_a_published_gap_outside_the_interval_differs_however_wide_that_is():
    first, second = [40.0, 40.4], [45.0, 45.6]
    found = _measurements.same_gap("gap", -0.2, first, second, resolution=0.5, why="because")
    assert (found.verdict, found.why) == ("differs", "because")
    assert _measurements.same_gap("gap", -5.1, first, second, resolution=0.5, why="").verdict == "undecided"
    assert _measurements.same_gap("gap", -5.1, first, second, resolution=5, why="").verdict == "met"


def test_exact_numbers_are_compared_as_they_are():
    assert _measurements.exactly_smaller("D", 1e-3, 1e-4).verdict == "bettered"
    assert _measurements.exactly_smaller("D", 1e-3, 2e-3).verdict == "differs"


def test_the_worst_verdict_speaks_for_several():
    assert worst_of(VERDICTS) == "differs"
    assert worst_of(["met", "bettered"]) == "met"


def test_runs_that_are_none_meet_no_threshold():
    assert _measurements.most("runs", [True] * 9 + [False], 0.9).verdict == "met"
    assert _measurements.most("runs", [True] * 9 + [False]).verdict == "differs"
    assert _measurements.most("runs", np.zeros(0, bool)).verdict == "differs"


def test_what_was_not_measured_cannot_be_told():
    found = _measurements.Measured([Measurement("D to the SVM", "1", "2", "met", column="p = 2", value=2.0)])
    assert found.values("D to", "p = 2") == [2.0]
    with pytest.raises(KeyError, match="norm"):
        found.ours("norm")


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.0, "0"), (-0.0, "0"), (1e-12, "10⁻¹²"), (-3.14159, "−3.14"), (0.000123, "1.23×10⁻⁴"), (np.nan, "—")],
)
def test_numbers_have_true_minus_signs_and_no_computer_notation(value, told):
    assert number(value) == told


# Every experiment's verdicts.


def test_fig1_fails_if_a_random_cone_holds_as_many_or_a_run_leaves():
    data = result("fig1")
    share = "‖W(0)‖ = 30, p"
    assert "met" in named("fig1", data, share)
    hollow = data["farthest"].copy()
    hollow[:, :, 1] = 0.0
    assert "met" not in named("fig1", data | {"farthest": hollow}, share)
    left = data["farthest"].copy()
    left[:, -1, 0, 0, 0] = 1.9
    assert "met" not in named("fig1", data | {"farthest": left}, share)


def made_up_fig4(own, other, spread=0.1):
    """100 trials with these means of D to the own SVM and to the others, at the published steps."""
    p = np.array(fig4.PUBLISHED_P)
    data = {"p": p, "published_steps": np.array([1500, 2000, 20000])}
    noise = np.random.default_rng(0).normal(size=(1, 100, 3))
    noise -= noise.mean(1, keepdims=True)
    for start in fig4.STARTS:
        for k, q in enumerate(p):
            D = np.full((1, 100, 3), 1.0) * np.array([fig4.RERUN_ENDS[q][r][0] for r in p]) + other + spread * noise
            D[..., k] = fig4.RERUN_ENDS[q][q][0] + own + 0.003 * noise[..., k]
            steps = [fig4.TARGETS[q][0]] if start == "shared" else data["published_steps"][[k]]
            data |= {f"{start}/steps/{q:g}": np.unique([*steps, data["published_steps"][k]])}
            data[f"{start}/D/{q:g}"] = np.repeat(D, len(data[f"{start}/steps/{q:g}"]), 0)
        data |= {f"{start}/alpha": np.zeros((100, 3, 1), int), f"{start}/later_D": np.full((100, 3), 0.01)}
        data |= {f"{start}/{name}": np.ones((100, 3), bool) for name in ("optimal", "later_optimal")}
    return data


def test_fig4_fails_off_the_diagonal_by_the_standard_error_and_betters_on_it_beyond_it():
    def verdicts(own, other):
        rows = [row for row in measured("fig4", made_up_fig4(own, other)) if row.source == "rerun"]
        on = {row.verdict for row in rows if row.quantity == fig4.OWN}
        return on, {row.verdict for row in rows if row.quantity != fig4.OWN}

    assert verdicts(own=0.0, other=0.0) == ({"met"}, {"met"})
    assert verdicts(own=0.0, other=0.1) == ({"met"}, {"differs"})
    assert verdicts(own=-0.004, other=0.0)[0] == {"bettered"}
    assert verdicts(own=0.01, other=0.0)[0] == {"differs"}


def test_fig4_claims_nothing_of_paths_that_end_nearest_to_another_svm():
    near = made_up_fig4(own=-0.0051, other=0.0) | {f"shared/D/{q:g}": np.full((2, 100, 3), 0.1) for q in (1.75, 2, 3)}
    for k, q in enumerate((1.75, 2.0, 3.0)):
        near[f"shared/D/{q:g}"] = near[f"shared/D/{q:g}"][: len(near[f"shared/steps/{q:g}"])].copy()
        near[f"shared/D/{q:g}"][..., k] = 1e-5
    assert claims("fig4", near)[0].verdict == "bettered" or claims("fig4", near)[0].verdict == "met"
    assert claims("fig4", made_up_fig4(own=0.5, other=0.0))[0].verdict == "differs"


def test_fig4_fails_if_a_trial_never_becomes_locally_optimal():
    data = made_up_fig4(own=0.0, other=0.0)
    unsettled = {"random/optimal": data["random/optimal"].copy()}
    unsettled["random/optimal"][0, 0] = False
    part = "N(0, 1) starts: tokens not locally optimal"
    assert named("fig4", data | unsettled, part) == {"met"}, "it is locally optimal after more steps"
    never = unsettled | {"random/later_optimal": unsettled["random/optimal"]}
    assert named("fig4", data | never, part) == {"differs", "met"}
    assert claims("fig4", data | never)[1].verdict == "differs"


@pytest.mark.parametrize("alike", [60, 48])
def test_how_many_plain_steps_select_other_tokens_is_said_and_decides_nothing(alike):
    plain = np.zeros((60, 1), int)
    plain[alike:] = 1
    data = made_up_fig4(own=0.0, other=0.0) | {f"plain/{q:g}": plain for q in fig4.PUBLISHED_P}
    found = [row for row in measured("fig4", data) if row.quantity == fig4.PLAIN]
    assert {row.verdict for row in found} == {"not published"}
    assert all(f"{100 * (60 - alike) / 60:.0f} % differ" in row.ours for row in found)


def test_fig5_fails_if_the_path_turns_away():
    data = {"p": np.array([2.0]), "entries": np.array([[1, 2], [3, 4]]), "svm/2": np.array([1.0, 0.0])}
    data |= {"steps/2": np.array([10, 100]), "published/2": np.array(10), "longer": np.array(10), "D/2": np.ones(2)}
    for path, verdict in (
        ([[1.0, 0.1], [10.0, 0.1]], "met"),
        ([[1.0, 0.0], [10.0, 0.0]], "met"),  # none cannot become less
        ([[1.0, 0.0], [10.0, 0.1]], "differs"),
        ([[1.0, 2.0], [10.0, 1.0]], "differs"),
    ):
        assert named("fig5", data | {"path/2": np.array(path)}, "times these") - {"not published"} == {verdict}


def test_fig6_fails_on_other_tokens_margins_and_distances():
    data = dict(result("fig6"))
    for p in data["p"]:
        data |= {f"{name}/{p:g}": np.ones_like(data[f"{name}/{p:g}"]) for name in ("D_W", "D_v")}
        data[f"alpha/{p:g}"] = np.array([2, 2])
        data[f"label_margins/{p:g}"] = 1.01 * data[f"label_margins/{p:g}"]
    assert {row.verdict for row in measured("fig6", data)} == {"differs", "not published"}


def test_fig7_fails_if_attention_stays_open():
    data = dict(result("fig7"))
    for p in data["p"]:
        data |= {f"{curve}/{p:g}": np.full_like(data[f"{curve}/{p:g}"], 0.9) for curve in ("softmax", "logistic")}
    assert {row.verdict for row in measured("fig7", data)} == {"differs", "not published"}


def test_feasibility_fails_if_one_selection_above_the_bound_cannot_be_separated():
    data = result("feasibility")
    assert named("feasibility", data, "d ≥ max") == {"met"}
    fewer = data["feasible"].copy()
    fewer[:, -1] -= 1
    assert named("feasibility", data | {"feasible": fewer}, "d ≥ max") == {"differs"}
    assert claims("feasibility", data | {"feasible": fewer})[0].verdict == "differs"


def test_theorem_1_fails_if_the_limit_is_another_or_a_search_elsewhere_comes_lower():
    data = dict(result("thm1"))
    data["D"] = 1e-4 * data["D"]
    assert named("thm1", data, "largest D to") == {"met"}
    assert named("thm1", data | {"D": np.full_like(data["D"], 0.01)}, "largest D to") == {"differs"}
    lower = {"alone/log_excess": data["log_excess"] - 1}
    assert named("thm1", data | lower, "largest D to") == {"differs"}


def made_up_thm3(good, norm, control):
    """20 runs of each group: D falls by these factors, and norms grow by that."""
    steps = np.arange(1, 11)
    data = {
        "p": np.array([2.0]),
        "radius": np.array([8.0]),
        "lr": np.array([1.0]),
        "keys": np.array(["2"]),
        "steps": steps,
    }
    for group, factor in (("global", good), ("local", good), ("neither", control)):
        data[f"2/{group}/D"] = np.repeat(0.1 * factor ** steps[:, None].astype(float), 20, 1)
        data[f"2/{group}/norm"] = np.repeat(8 * norm ** steps[:, None].astype(float), 20, 1)
        data[f"2/{group}/kept"] = np.full(20, factor < 1)
    return data | {"2/largest_lr": np.array([1.0])}


def test_theorems_2_and_3_fail_if_norms_shrink_runs_leave_or_the_control_converges_as_well():
    def found(part, **made_up):
        return named("thm3", made_up_thm3(**made_up), part)

    assert found("Theorem", good=0.8, norm=1.1, control=1.1) == {"met"}
    assert found("Theorem 2", good=0.8, norm=0.9, control=1.1) == {"differs"}
    assert found("Theorem 3", good=1.1, norm=1.1, control=1.1) == {"differs"}
    assert found("Theorem 3", good=0.8, norm=1.1, control=0.8) == {"differs"}


def test_theorem_3_is_judged_from_the_largest_norm_of_each_p():
    near, far = made_up_thm3(1.1, 1.1, 1.1), made_up_thm3(0.8, 1.1, 1.1)
    data = near | {f"far/{name[2:]}": value for name, value in far.items() if name.startswith("2/")}
    data |= {
        "p": np.array([2.0, 2.0]),
        "radius": np.array([8.0, 30.0]),
        "lr": np.ones(2),
        "keys": np.array(["2", "far"]),
    }
    assert claims("thm3", data)[1].verdict == "met"
    assert named("thm3", data, "a start that is too near") == {"not published"}


def test_a_step_above_the_bound_of_remark_1_is_said_to_be_so():
    data = made_up_thm3(good=0.8, norm=1.1, control=1.1)

    def notes(bound):
        rows = measured("thm3", data | {"2/largest_lr": np.array([bound])})
        return [row.note for row in rows if row.quantity.startswith("Theorem")]

    within, above, none = notes(2.0), notes(1 / 400), notes(0.0)
    assert len(within) == 2
    assert not any("Remark 1" in note for note in within)
    assert all("400 times the bound of Remark 1" in note for note in above)
    assert all("Remark 1 allows no step size" in note for note in none)


def made_up_thm4(power, norm):
    """Eight trials at p = 2 with D = (log log k)²/(log k)^power and this norm of log k, a little noise on both."""
    steps = np.unique(np.r_[np.geomspace(10, 1e5, 60).astype(int), 1000, 10000])
    log = np.log(steps)[:, None] * np.ones(8)
    noise = 1 + 0.02 * np.random.default_rng(0).normal(size=8)
    data = {
        "p": np.array([2.0]),
        "normalised_p": np.array([2.0]),
        "steps": steps,
        "divergence": np.array(0.1),
        "radius": np.array([8.0]),
        "lr": np.array([1.0]),
    }
    data |= {"plain/2/D": np.log(log) ** 2 / log ** (power * noise), "plain/2/norm": norm(log) * noise}
    data |= {"plain/2/L": np.ones(8), "plain/2/mu": np.full(8, 1e-8), "plain/2/R_mu": np.full(8, 1e10)}
    data |= {"plain/2/growth_29": np.full((3, 2, 8), 0.5), "growth_1d": np.array([0.5])}
    data |= {"normalised/2/D": 1 / log, "normalised/2/finite": np.ones(8, bool)}
    return data


def linear(log):
    return 8 + 3 * log


def test_theorem_4s_fit_is_that_of_made_up_data():
    data = made_up_thm4(1.7, linear)
    exponents, expected = thm4.powers(data, 2.0)
    assert exponents.mean() == pytest.approx(1.7, abs=0.05)
    assert expected == 1
    np.testing.assert_allclose(thm4.increments(data, data["plain/2/norm"]), 1, rtol=1e-3)


def test_theorem_4_fails_on_a_slower_rate():
    part = "power of 1/log k in D"
    assert named("thm4", made_up_thm4(1.7, linear), part) == {"met"}
    assert named("thm4", made_up_thm4(0.7, linear), part) == {"differs"}
    assert named("thm4", made_up_thm4(1.0, linear), part) == {"undecided"}


def test_a_norm_that_grows_like_log_k_passes_and_one_like_log_log_k_does_not():
    part = "plain steps: growth"
    assert named("thm4", made_up_thm4(1.7, linear), part) == {"met"}
    assert named("thm4", made_up_thm4(1.7, lambda log: 8 + 3 * np.log(log)), part) == {"differs"}
    assert named("thm4", made_up_thm4(1.7, lambda log: 8 + np.sqrt(np.log(log))), part) == {"differs"}


def test_the_rate_in_the_norm_fails_on_a_slower_one():
    part = "power of 1/‖W‖"
    data = made_up_thm4(1.7, linear)
    norm = data["plain/2/norm"]
    for power, verdict in ((1.5, "met"), (0.5, "differs")):
        D = np.log(norm) ** 2 / norm**power
        assert named("thm4", data | {"plain/2/D": D}, part) == {verdict}


def test_equation_29_fails_if_a_step_of_a_run_adds_more_than_its_bound():
    data = made_up_thm4(1.7, linear)
    assert named("thm4", data, "over ηL, p") == {"met"}
    assert named("thm4", data | {"plain/2/L": np.full(8, 1e-3)}, "over ηL, p") == {"differs"}
    elsewhere = {"growth_1d": np.array([1.5])}
    assert named("thm4", data | elsewhere, "over ηL, p") == {"met"}, "it is stated for runs in a cone"


@pytest.mark.parametrize(("p", "growth"), [(1.75, 2.31), (1.9, 1.23), (2.0, 0.95)])
def test_without_a_cone_equation_29_fails_below_p_2_where_attention_is_not_saturated(p, growth):
    assert thm4.one_dimension(p) == pytest.approx(growth, rel=0.02)


def test_theorem_5_fails_on_another_selection_and_another_limit_where_assumption_b_may_hold():
    data = dict(result("thm5"))
    near = {name: 1e-9 + 0 * data[name] for name in ("D_W/3", "D_v/3")}
    far = {name: 0.5 + 0 * data[name] for name in ("D_W/3", "D_v/3")} | {"alpha/3": data["widest/3"] + 1}
    within = {"refuted/3": np.zeros_like(data["refuted/3"])}
    assert {row.verdict for row in measured("thm5", data | near | within)} == {"met", "not published"}
    assert {row.verdict for row in measured("thm5", data | far | within)} == {"differs", "not published"}
    assert claims("thm5", data | far | within)[0].verdict == "differs"
    falling = {name: values.copy() for name, values in far.items() if name.startswith("D_")}
    for values in falling.values():
        values[..., -1] = 0.1
    assert claims("thm5", data | falling | within)[0].verdict == "undecided", (
        "a path that has not ended decides nothing"
    )
    outside = {name: values.copy() for name, values in near.items()}
    for values in outside.values():
        values[1:] = 0.5
    refuted = {"refuted/3": np.arange(len(data["refuted/3"])) > 0}
    assert claims("thm5", data | outside | refuted)[0].verdict == "met", "the theorem does not speak of these"


def test_the_nuclear_norm_fails_if_the_factors_end_nearer_to_the_other_svm():
    D = np.abs(np.random.default_rng(0).normal(1, 0.05, (3, 10)))
    data = {"steps": np.array([0, 10, 100]), "factors/rank": D, "whole/rank": D}
    data |= {
        "factors/nuclear": 0.01 * D,
        "factors/frobenius": D[::-1],
        "whole/nuclear": D,
        "whole/frobenius": 0.01 * D[::-1],
    }
    assert named("nuclear", data, "which SVM is nearer") == {"met"}
    swapped = data | {"factors/nuclear": D, "factors/frobenius": 0.01 * D[::-1]}
    assert claims("nuclear", swapped)[0].verdict == "differs"
    alike = data | {"factors/nuclear": D}
    assert claims("nuclear", alike)[0].verdict == "undecided"


def test_trained_models_verdicts_turn_with_the_runs():
    data = dict(result("table1"))
    size = str(data["sizes"][0])
    ahead = {f"{size}/ℓ1.1/test_accuracy": np.array([0.80, 0.801]), f"{size}/ℓ2/test_accuracy": np.array([0.70, 0.701])}
    behind = {key: 1.5 - value for key, value in ahead.items()}
    level = {key: np.array([0.70, 0.7001]) for key in ahead}
    assert named("table1", data | ahead, "above ℓ2") == {"met"}
    assert named("table1", data | behind, "above ℓ2") == {"differs"}
    assert named("table1", data | level, "above ℓ2") == {"smaller than published"}
    weights = dict(result("fig8"))
    for role in ("key", "query", "value"):
        for measure in ("hoyer", "top_mass"):
            weights |= {
                f"ℓ1.1/{role}/{measure}": np.array([0.1, 0.101]),
                f"ℓ2/{role}/{measure}": np.array([0.2, 0.201]),
            }
    assert named("fig8", weights, "sparser than ℓ2") == {"differs"}
    images = dict(result("vit"))
    images |= {"ℓ1.1/last_test_accuracy": np.array([0.2, 0.201]), "AdamW/last_test_accuracy": np.array([0.9, 0.901])}
    (row,) = (row for row in measured("vit", images) if row.name == "last test accuracy above Adam's, points, ℓ1.1")
    assert row.verdict == "differs"


def test_attention_on_decisive_words_turns_with_the_scores():
    data = dict(result("fig9"))
    shape = data["ℓ1.1/mass"].shape
    noise = 0.001 * np.random.default_rng(0).normal(size=(2, *shape))
    data |= {"ℓ1.1/mass": 0.2 + noise[0], "ℓ2/mass": 0.1 + noise[1]}
    (row,) = (
        row for row in measured("fig9", data) if row.name == "ℓ1.1 above ℓ2, attention on the decisive words, share"
    )
    assert row.verdict == "met"
    data |= {"ℓ1.1/mass": 0.1 + noise[0], "ℓ2/mass": 0.2 + noise[1]}
    (row,) = (
        row for row in measured("fig9", data) if row.name == "ℓ1.1 above ℓ2, attention on the decisive words, share"
    )
    assert row.verdict == "differs"


def test_the_authors_sentences_are_judged_apart_from_ours():
    data = dict(result("fig9"))
    assert not any("authors'" in row.name for row in measured("fig9", data))
    noise = 0.001 * np.random.default_rng(0).normal(size=(2, 2, 50))
    theirs = {"authors/ℓ1.1/scaled": 0.439 + noise[0], "authors/ℓ2/scaled": 0.312 + noise[1]}
    assert named("fig9", data | theirs, "authors' sentences") == {"met", "not published"}
    swapped = {key: 0.751 - values for key, values in theirs.items()}
    assert named("fig9", data | swapped, "authors' sentences") == {"differs", "not published"}


def test_the_authors_sentences_are_read_with_the_word_that_decides(tmp_path):
    path = tmp_path / fig9.AUTHORS_FILE
    path.write_text(
        "text,pivot,label\nThe movie was Fantastic!,fantastic,True\nI hated it,hated,False\nI enjoyed "
        "it,excellent,True\n"
    )
    first, second = fig9.authors_sentences(path)
    assert [pivot.text[slice(*pivot.spans[0])] for pivot in (first, second)] == ["Fantastic", "hated"]
    assert (first.label, second.label) == (1, 0)
    path.write_text("text,pivot,label\nThe movie,awful,False\n")
    with pytest.raises(ValueError, match="text, pivot and label"):
        fig9.authors_sentences(path)

"""Every verdict on data that should fail it: a verdict that nothing could turn is none."""

import numpy as np
import pytest
from tiny import result

from mirrormax.experiments import (
    VERDICTS,
    Comparison,
    _contract,
    feasibility,
    fig1,
    fig4,
    fig5,
    fig6,
    fig7,
    fig8,
    fig9,
    nuclear,
    table1,
    thm1,
    thm3,
    thm4,
    thm5,
    vit,
)
from mirrormax.experiments._contract import Sample


def named(rows, part):
    found = [row for row in rows if part in row.name]
    assert found, part
    return {row.verdict for row in found}


# The rules themselves.


def test_a_smaller_mean_betters_another_only_beyond_its_uncertainty():
    published = Sample(0.0052, 0.009, 100)
    assert _contract.smaller_is_better("D", published, Sample(0.0041, 0.0026, 100)).verdict == "met"
    assert _contract.smaller_is_better("D", published, Sample(0.0011, 0.0026, 100)).verdict == "bettered"
    assert _contract.smaller_is_better("D", published, Sample(0.0152, 0.009, 100)).verdict == "differs"
    assert _contract.smaller_is_better("D", published, Sample(0.0011, np.nan, 1)).verdict == "undecided"


def test_a_mean_is_the_same_within_its_standard_error_not_within_the_spread_of_trials():
    published = Sample(0.175, 0.19, 100)
    assert _contract.same_mean("D", published, Sample(0.2, 0.19, 100)).verdict == "met"
    assert _contract.same_mean("D", published, Sample(0.3, 0.19, 100)).verdict == "differs", (
        "less than one deviation off"
    )
    assert _contract.same_mean("D", published, Sample(0.05, 0.19, 100)).verdict == "differs"


def test_a_claim_of_more_is_met_refuted_smaller_or_open_by_its_interval():
    rng = np.random.default_rng(0)
    low, high = 70 + rng.normal(size=10), 75 + rng.normal(size=10)
    assert _contract.greater("points", "+2", high, low, size=2).verdict == "met"
    assert _contract.greater("points", "+2", low, high, size=2).verdict == "differs"
    same = 70 + rng.normal(size=(2, 10)) * 0.1
    assert _contract.greater("points", "+2", *same, size=2).verdict == "smaller than published"
    wide = 70 + rng.normal(size=(2, 3)) * 10
    assert _contract.greater("points", "+2", *wide, size=2).verdict == "undecided"
    assert _contract.greater("points", "more", *same).verdict == "undecided", "no size was published"
    assert _contract.greater("points", "+2", [1.0], [0.0], size=2).verdict == "undecided", "single runs decide nothing"


def test_a_published_gap_outside_the_interval_differs_however_wide_that_is():
    first, second = [40.0, 40.4], [45.0, 45.6]
    found = _contract.same_gap("gap", -0.2, first, second, unit=1, resolution=0.5, why="because")
    assert (found.verdict, found.why) == ("differs", "because")
    assert _contract.same_gap("gap", -5.1, first, second, unit=1, resolution=0.5, why="").verdict == "undecided"
    assert _contract.same_gap("gap", -5.1, first, second, unit=1, resolution=5, why="").verdict == "met"


def test_exact_numbers_are_compared_as_they_are():
    assert _contract.exactly_smaller("D", 1e-3, 1e-4).verdict == "bettered"
    assert _contract.exactly_smaller("D", 1e-3, 2e-3).verdict == "differs"


def test_the_worst_verdict_speaks_for_several():
    rows = [Comparison("a", "", "", verdict) for verdict in VERDICTS]
    assert _contract.worst(rows) == "differs"
    assert _contract.worst([row for row in rows if row.verdict in ("met", "bettered")]) == "met"


def test_a_share_has_the_interval_of_clopper_and_pearson():
    assert _contract.share_interval(0, 20) == (0.0, pytest.approx(0.1684, abs=1e-4))
    assert _contract.share_interval(20, 20) == (pytest.approx(0.8316, abs=1e-4), 1.0)


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.0, "0"), (-0.0, "0"), (1e-12, "10⁻¹²"), (-3.14159, "−3.14"), (0.000123, "1.23×10⁻⁴"), (np.nan, "—")],
)
def test_numbers_have_true_minus_signs_and_no_computer_notation(value, told):
    assert _contract.number(value) == told


# Every experiment's verdicts.


def test_fig1_fails_if_a_random_cone_holds_as_many_or_a_run_leaves():
    data = result("fig1")
    share = "stay in C_μ"
    assert named(fig1.comparisons(data), share) == {"met"}
    hollow = data["farthest"].copy()
    hollow[:, :, 1] = 0.0
    assert named(fig1.comparisons(data | {"farthest": hollow}), share) == {"differs"}
    left = data["farthest"].copy()
    left[:, -1, 0, 0, 0] = 1.9
    assert named(fig1.comparisons(data | {"farthest": left}), share) == {"differs"}


def made_up_fig4(own, other, spread=0.1):
    """100 trials with these means of D to the own SVM and to the others, at the published steps."""
    p = np.array([1.75, 2.0, 3.0])
    data = {"p": p, "published_steps": np.array([1500, 2000, 20000])}
    noise = np.random.default_rng(0).normal(size=(1, 100, 3))
    noise -= noise.mean(1, keepdims=True)
    for protocol in fig4.PROTOCOLS:
        for k, q in enumerate(p):
            D = np.full((1, 100, 3), 1.0) * np.array([fig4.RERUN[q, r][0] for r in p]) + other + spread * noise
            D[..., k] = fig4.RERUN[q, q][0] + own + 0.003 * noise[..., k]
            data |= {f"{protocol}/steps/{q:g}": data["published_steps"][[k]], f"{protocol}/D/{q:g}": D}
        data |= {f"{protocol}/alpha": np.zeros((100, 3, 1), int), f"{protocol}/optimal": np.ones((100, 3), bool)}
        data[f"{protocol}/settled"] = np.zeros((100, 3), int)
    return data


def test_fig4_fails_off_the_diagonal_by_the_standard_error_and_betters_on_it_beyond_it():
    rows = fig4.comparisons(made_up_fig4(own=0.0, other=0.0))[:9]
    assert {row.verdict for row in rows} == {"met"}
    rows = fig4.comparisons(made_up_fig4(own=0.0, other=0.1))[:9]
    assert [row.verdict for row in rows] == ["met" if k % 4 == 0 else "differs" for k in range(9)]
    rows = fig4.comparisons(made_up_fig4(own=-0.004, other=0.0))[:9]
    assert {rows[k].verdict for k in (0, 4, 8)} == {"bettered"}
    rows = fig4.comparisons(made_up_fig4(own=0.01, other=0.0))[:9]
    assert {rows[k].verdict for k in (0, 4, 8)} == {"differs"}


def test_fig4_claims_nothing_of_paths_that_end_nearest_to_another_svm():
    (good,) = fig4.claims(made_up_fig4(own=0.0, other=0.0))
    assert good.verdict == "met"
    (bad,) = fig4.claims(made_up_fig4(own=0.5, other=0.0))
    assert bad.verdict == "differs"


def test_fig5_fails_if_the_path_turns_away():
    data = {"p": np.array([2.0]), "entries": np.array([[1, 2], [3, 4]]), "svm/2": np.array([1.0, 0.0])}
    data |= {"steps/2": np.array([10, 100]), "published/2": np.array(10)}
    assert fig5.comparisons(data | {"path/2": np.array([[1.0, 0.1], [10.0, 0.1]])})[0].verdict == "met"
    assert fig5.comparisons(data | {"path/2": np.array([[1.0, 0.0], [10.0, 0.1]])})[0].verdict == "differs"
    assert fig5.comparisons(data | {"path/2": np.array([[1.0, 2.0], [10.0, 1.0]])})[0].verdict == "differs"


def test_fig6_fails_on_other_tokens_margins_and_distances():
    data = dict(result("fig6"))
    for p in data["p"]:
        data |= {f"D_W/{p:g}": np.array([1.0]), f"D_v/{p:g}": np.array([1.0]), f"alpha/{p:g}": np.array([2, 2])}
        data[f"label_margins/{p:g}"] = 1.01 * data[f"label_margins/{p:g}"]
    assert {row.verdict for row in fig6.comparisons(data)} == {"differs"}


def test_fig7_fails_if_attention_stays_open():
    data = dict(result("fig7"))
    for p in data["p"]:
        data |= {f"{curve}/{p:g}": np.full_like(data[f"{curve}/{p:g}"], 0.9) for curve in ("softmax", "logistic")}
    assert {row.verdict for row in fig7.comparisons(data)} == {"differs"}


def test_feasibility_fails_if_one_selection_above_the_bound_cannot_be_separated():
    data = result("feasibility")
    assert named(feasibility.comparisons(data), "d ≥ max") == {"met"}
    fewer = data["feasible"].copy()
    fewer[:, -1] -= 1
    assert named(feasibility.comparisons(data | {"feasible": fewer}), "d ≥ max") == {"differs"}
    assert feasibility.claims(data | {"feasible": fewer})[0].verdict == "differs"


def test_theorem_1_fails_if_the_limit_is_another_or_a_search_elsewhere_comes_lower():
    data = dict(result("thm1"))
    data["D"] = 1e-4 * data["D"]
    rows = thm1.comparisons(data)
    assert named(rows, "largest D") == {"met"}
    assert named(thm1.comparisons(data | {"D": np.full_like(data["D"], 0.01)}), "largest D") == {"differs"}
    lower = {"alone/log_excess": data["log_excess"] - 1}
    assert named(thm1.comparisons(data | lower), "largest D") == {"differs"}


def made_up_thm3(good, norm, control):
    """20 runs of each group: D falls by these factors, and norms grow by that."""
    steps = np.arange(1, 11)
    data = {"p": np.array([2.0]), "steps": steps}
    for group, factor in (("global", good), ("local", good), ("neither", control)):
        data[f"2/{group}/D"] = np.repeat(0.1 * factor ** steps[:, None].astype(float), 20, 1)
        data[f"2/{group}/norm"] = np.repeat(8 * norm ** steps[:, None].astype(float), 20, 1)
        data[f"2/{group}/kept"] = np.full(20, factor < 1)
    return data | {"2/largest_lr": np.array([1.0]), "2/lr": np.array(1.0)}


def test_theorems_2_and_3_fail_if_norms_shrink_runs_leave_or_the_control_converges_as_well():
    def found(**made_up):
        rows = thm3.comparisons(made_up_thm3(**made_up))
        return named(rows, "Theorem 2") | named(rows, "Theorem 3")

    assert found(good=0.8, norm=1.1, control=1.1) == {"met"}
    assert named(thm3.comparisons(made_up_thm3(good=0.8, norm=0.9, control=1.1)), "Theorem 2") == {"differs"}
    assert named(thm3.comparisons(made_up_thm3(good=1.1, norm=1.1, control=1.1)), "Theorem 3") == {"differs"}
    assert named(thm3.comparisons(made_up_thm3(good=0.8, norm=1.1, control=0.8)), "Theorem 3") == {"differs"}


def made_up_thm4(power, norm):
    """Eight trials at p = 2 with D = (log log k)²/(log k)^power and this norm of log k, a little noise on both."""
    steps = np.unique(np.r_[np.geomspace(10, 1e5, 60).astype(int), 1000, 10000])
    log = np.log(steps)[:, None] * np.ones(8)
    noise = 1 + 0.02 * np.random.default_rng(0).normal(size=8)
    data = {"p": np.array([2.0]), "normalised_p": np.array([2.0]), "steps": steps, "start": np.array([0.1, 8.0])}
    data |= {"plain/2/D": np.log(log) ** 2 / log ** (power * noise), "plain/2/norm": norm(log) * noise}
    data |= {"plain/2/mu": np.full(8, 1e-8), "plain/2/R_mu": np.full(8, 1e10)}
    data["plain/2/growth_29"] = np.full((3, 2, 8), 0.5)
    data |= {"normalised/2/D": 1 / log, "normalised/2/finite": np.ones(8, bool)}
    return data


def linear(log):
    return 8 + 3 * log


def test_theorem_4s_fit_is_that_of_made_up_data():
    data = made_up_thm4(1.7, linear)
    exponents, expected = thm4.powers(data, 2.0)
    assert exponents.mean() == pytest.approx(1.7, abs=0.05)
    assert expected == 1
    np.testing.assert_allclose(thm4.increments(data, 2.0), 1, rtol=1e-3)


def test_theorem_4_fails_on_a_slower_rate():
    part = "power of 1/log k in D"
    assert named(thm4.comparisons(made_up_thm4(1.7, linear)), part) == {"met"}
    assert named(thm4.comparisons(made_up_thm4(0.7, linear)), part) == {"differs"}
    assert named(thm4.comparisons(made_up_thm4(1.0, linear)), part) == {"undecided"}


def test_a_norm_that_grows_like_log_k_passes_and_one_like_log_log_k_does_not():
    part = "plain steps: growth"
    assert named(thm4.comparisons(made_up_thm4(1.7, linear)), part) == {"met"}
    assert named(thm4.comparisons(made_up_thm4(1.7, lambda log: 8 + 3 * np.log(log))), part) == {"differs"}
    assert named(thm4.comparisons(made_up_thm4(1.7, lambda log: 8 + np.sqrt(np.log(log)))), part) == {"differs"}


def test_the_rate_in_the_norm_fails_on_a_slower_one():
    part = "power of 1/‖W‖"
    data = made_up_thm4(1.7, linear)
    norm = data["plain/2/norm"]
    for power, verdict in ((1.5, "met"), (0.5, "differs")):
        D = np.log(norm) ** 2 / norm**power
        assert named(thm4.comparisons(data | {"plain/2/D": D}), part) == {verdict}


def test_equation_29_is_an_erratum_where_a_step_adds_more_and_a_difference_at_p_2():
    data = made_up_thm4(1.7, linear)
    longer = {"plain/2/growth_29": 3 * data["plain/2/growth_29"]}
    assert named(thm4.comparisons(data), "(29)") == {"met"}
    assert named(thm4.comparisons(data | longer), "(29)") == {"differs"}
    at_3 = {key.replace("plain/2/", "plain/3/"): value for key, value in (data | longer).items()} | {
        "p": np.array([3.0])
    }
    assert named(thm4.comparisons(at_3), "(29)") == {"erratum"}


def test_theorem_5_fails_on_another_selection_and_another_limit():
    data = dict(result("thm5"))
    data |= {"D_W/3": 1e-9 + 0 * data["D_W/3"], "D_v/3": 1e-9 + 0 * data["D_v/3"]}
    assert {row.verdict for row in thm5.comparisons(data)} == {"met", "not published"}
    far = {"D_W/3": 0.5 + 0 * data["D_W/3"], "D_v/3": 0.5 + 0 * data["D_v/3"], "alpha/3": data["widest/3"] + 1}
    assert {row.verdict for row in thm5.comparisons(data | far)} == {"differs", "not published"}
    assert thm5.claims(data | far)[0].verdict == "differs"


def test_the_nuclear_norm_fails_if_the_factors_end_nearer_to_the_other_svm():
    D = np.abs(np.random.default_rng(0).normal(1, 0.05, (3, 10)))
    data = {"steps": np.array([0, 10, 100]), "factors/rank": D, "whole/rank": D}
    data |= {
        "factors/nuclear": 0.01 * D,
        "factors/frobenius": D[::-1],
        "whole/nuclear": D,
        "whole/frobenius": 0.01 * D[::-1],
    }
    assert named(nuclear.comparisons(data), "which SVM is nearer") == {"met"}
    swapped = data | {"factors/nuclear": D, "factors/frobenius": 0.01 * D[::-1]}
    assert nuclear.claims(swapped)[0].verdict == "differs"
    alike = data | {"factors/nuclear": D}
    assert nuclear.claims(alike)[0].verdict == "undecided"


def test_trained_models_verdicts_turn_with_the_runs():
    data = dict(result("table1"))
    size = str(data["sizes"][0])
    ahead = {f"{size}/ℓ1.1/test_accuracy": np.array([0.80, 0.801]), f"{size}/ℓ2/test_accuracy": np.array([0.70, 0.701])}
    behind = {key: 1.5 - value for key, value in ahead.items()}
    level = {key: np.array([0.70, 0.7001]) for key in ahead}
    assert named(table1.comparisons(data | ahead), "above ℓ2") == {"met"}
    assert named(table1.comparisons(data | behind), "above ℓ2") == {"differs"}
    assert named(table1.comparisons(data | level), "above ℓ2") == {"smaller than published"}
    weights = dict(result("fig8"))
    for role in ("key", "query", "value"):
        for measure in ("hoyer", "top_mass"):
            weights |= {
                f"ℓ1.1/{role}/{measure}": np.array([0.1, 0.101]),
                f"ℓ2/{role}/{measure}": np.array([0.2, 0.201]),
            }
    assert named(fig8.comparisons(weights), "sparser than ℓ2") == {"differs"}
    images = dict(result("vit"))
    images |= {"ℓ1.1/last_test_accuracy": np.array([0.2, 0.201]), "AdamW/last_test_accuracy": np.array([0.9, 0.901])}
    (row,) = (row for row in vit.comparisons(images) if row.name == "last test accuracy above Adam's, points, ℓ1.1")
    assert row.verdict == "differs"


def test_attention_on_decisive_words_turns_with_the_scores():
    data = dict(result("fig9"))
    shape = data["ℓ1.1/mass"].shape
    noise = 0.001 * np.random.default_rng(0).normal(size=(2, *shape))
    data |= {"ℓ1.1/mass": 0.2 + noise[0], "ℓ2/mass": 0.1 + noise[1]}
    (row,) = (
        row for row in fig9.comparisons(data) if row.name == "ℓ1.1 above ℓ2, attention on the decisive words, share"
    )
    assert row.verdict == "met"
    data |= {"ℓ1.1/mass": 0.1 + noise[0], "ℓ2/mass": 0.2 + noise[1]}
    (row,) = (
        row for row in fig9.comparisons(data) if row.name == "ℓ1.1 above ℓ2, attention on the decisive words, share"
    )
    assert row.verdict == "differs"

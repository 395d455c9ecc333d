"""What the Geometry page is told agrees with the library asked directly."""

import base64
import json

import numpy as np
import pytest

import mirrormax as mm
from mirrormax.app.geometry import geometry
from mirrormax.app.question import Problems, Question, read_question
from mirrormax.app.sharing import batch, snippet
from mirrormax.data import Problem, example1, example2, sphere_problem

SPHERE = {"problem": "sphere", "seed": 1, "n": 3, "T": 4, "d": 5}
ASKED = {**SPHERE, "p": 1.75, "lr": 0.1, "steps": 100, "start": "zero"}


def answer(problem, p, steps=100, start="zero", **choices):
    """The page's answer for a problem that is given."""
    return geometry(problem, Question("{}", p, 0.1, steps, start, **choices), "tensor")


def test_the_answer_is_that_of_the_library():
    problem = sphere_problem(1, n=3, T=4, d=5)
    found = answer(problem, 1.75, 100, "zero")
    run = mm.simulate(
        problem.X,
        problem.y,
        problem.z,
        problem.v,
        p=1.75,
        lr=0.1,
        steps=100,
        options=mm.dynamics.SimulationOptions(backend="tensor"),
    )
    solution = mm.att_svm(problem.X, problem.z, run.alpha, p=1.75)
    assert found["alpha"] == run.alpha.tolist()
    assert found["solution"]["margin"] == pytest.approx(float(solution.margin))
    assert found["solution"]["support"] == solution.support.tolist()
    distance = mm.directional_divergence(solution.W, run.W[-1], 1.75)
    assert found["divergence"]["own"][-1] == pytest.approx(float(distance), rel=1e-4)
    assert found["steps"][0] == 0
    assert found["divergence"]["own"][0] is None  # zero has no direction
    assert found["mass"][-1] == pytest.approx(float(run.mass[-1]), rel=1e-4)
    np.testing.assert_allclose(np.sum(found["tokens"]["attention"], -1), 1, atol=1e-3)


def test_distances_along_the_horizontal_axis_are_margins():
    problem = sphere_problem(1, n=3, T=4, d=5)
    found = answer(problem, 2.0, 100, "zero")
    W = mm.att_svm(problem.X, problem.z, np.array(found["alpha"]), p=2.0).W
    for i, alpha in enumerate(found["alpha"]):
        across = np.array(found["tokens"]["places"][i])[:, 0]
        margins = (problem.X[i, alpha] - problem.X[i]) @ W @ problem.z[i]
        np.testing.assert_allclose((across[alpha] - across) * np.linalg.norm(W @ problem.z[i]), margins, atol=1e-3)


def test_training_turns_to_the_solution_and_not_to_that_of_another_p():
    found = answer(example1(), 3.0, 1500, "random")
    own, plain = found["divergence"]["own"], found["divergence"]["plain"]
    assert own[-1] < 1e-3 * own[0]
    assert own[-1] < 0.1 * plain[-1]
    np.testing.assert_allclose(found["weights"]["path"][-1], found["weights"]["solution"], atol=0.01)


def test_a_draft_has_fewer_steps_and_the_same_numbers_at_these():
    problem = sphere_problem(1, n=3, T=4, d=5)
    whole = answer(problem, 1.75, 300, "random")
    for shown in (0, 41, whole["steps"][9]):
        draft = answer(problem, 1.75, 300, "random", draft=shown)
        assert {0, 1, shown, 300} <= {*draft["steps"]}
        assert len(draft["steps"]) < len(whole["steps"]) / 2
        both = [(draft["steps"].index(k), whole["steps"].index(k)) for k in draft["steps"] if k in whole["steps"]]
        assert len(both) >= len(draft["steps"]) - 1
        for now, later in both:
            for series in ("mass", "norms"):
                assert draft[series][now] == whole[series][later]
            assert draft["divergence"]["own"][now] == whole["divergence"]["own"][later]
            assert draft["tokens"]["attention"][now] == whole["tokens"]["attention"][later]
            assert draft["weights"]["path"][now] == whole["weights"]["path"][later]
        assert draft["solution"] == whole["solution"]
        assert draft["rate"] is None  # its constant is a maximum over frames: a few of them would draw another line
    assert whole["rate"] is not None


def test_at_p_2_there_is_no_other_solution_to_tell_apart():
    assert answer(example1(), 2.0, 100, "zero")["divergence"]["plain"] is None


def test_a_head_of_zeros_is_trained_too():
    found = answer(example2(), 2.0, 300, "zero")
    assert found["joint"]
    assert found["alpha"] == [1, 0]


def test_tokens_that_nothing_separates_are_shown_without_a_solution():
    # Two samples whose tokens score alike never move, and tie with the first token of each: one is the other's last.
    X = np.array([[[0.0, 1.0], [0.0, -1.0]], [[0.0, -1.0], [0.0, 1.0]], [[1.0, 0.0], [-1.0, 0.0]]])
    z = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    problem = Problem(X=X, y=np.ones(3), z=z, v=np.array([1.0, 0.0]))
    found = answer(problem, 2.0, 100, "zero")
    assert found["solution"] is None
    assert found["divergence"] == {"own": None, "plain": None}
    assert found["weights"]["half_planes"] == []
    json.dumps(found, allow_nan=False)


def test_masked_tokens_get_no_attention():
    problem = sphere_problem(0, n=2, T=4, d=3)
    mask = np.array([[True, True, True, False], [True] * 4])
    masked = Problem(X=problem.X, y=problem.y, z=problem.z, v=problem.v, mask=mask)
    found = answer(masked, 1.5, 100, "random")
    assert found["tokens"]["present"] == mask.tolist()
    assert all(frame[0][3] == 0 for frame in found["tokens"]["attention"])
    json.dumps(found, allow_nan=False)


def test_a_start_from_which_nothing_moves_is_told():
    X = np.array([[[1.0, 0.0], [0.0, 1.0]]] * 2)
    problem = Problem(X=X, y=np.array([1.0, -1.0]), z=np.ones((2, 2)), v=np.array([1.0, -1.0]))
    with pytest.raises(ValueError, match="training does not move from the zero start"):
        answer(problem, 2.0, 100, "zero")


def test_dragged_tokens_and_queries_are_solved_where_they_are():
    moves = {"x": [[0, 1, [0.5, 0, 0, 0, 0]]], "z": [[2, [0, 0.25, 0, 0, 0]]]}
    question = read_question({**ASKED, "moves": moves})
    found = geometry(sphere_problem(1, n=3, T=4, d=5), question, "tensor")
    moved = sphere_problem(1, n=3, T=4, d=5)
    X, z = moved.X.copy(), moved.z.copy()
    X[0, 1, 0] += 0.5
    z[2, 1] += 0.25
    solution = mm.att_svm(X, z, np.array(found["alpha"]), p=1.75)
    assert found["solution"]["margin"] == pytest.approx(float(solution.margin))
    assert found["solution"]["gap"] == pytest.approx(float(solution.gap), abs=1e-9)


def test_a_held_plane_stays_while_a_token_is_dragged():
    axes = np.eye(5)[:2]
    found = geometry(
        sphere_problem(1, n=3, T=4, d=5), read_question({**ASKED, "held": [0, axes.ravel().tolist()]}), "tensor"
    )
    np.testing.assert_allclose(found["tokens"]["places"][0], sphere_problem(1, n=3, T=4, d=5).X[0, :, :2], rtol=1e-4)
    assert found["tokens"]["axes"][1] != axes.tolist()


def test_other_exponents_are_shown_beside_it_each_with_its_own_solution():
    problem = sphere_problem(1, n=3, T=4, d=5)
    found = geometry(problem, read_question({**ASKED, "others": [1.1, 3]}), "tensor")
    assert [other["p"] for other in found["others"]] == [1.1, 3]
    for other in found["others"]:
        run = mm.simulate(
            problem, p=other["p"], lr=0.1, steps=100, record=50, options=mm.dynamics.SimulationOptions(backend="tensor")
        )
        solution = mm.att_svm(problem, run.alpha, p=other["p"])
        D = mm.directional_divergence(solution.W, run.W[-1], other["p"])
        assert other["divergence"][-1] == pytest.approx(float(D), rel=1e-4)
        bytes_ = np.frombuffer(base64.b64decode(other["heat"]), np.int8).reshape(-1, 5, 5)
        np.testing.assert_allclose(bytes_[-1] / 127, run.W[-1] / np.abs(run.W[-1]).max(), atol=0.5 / 127 + 1e-9)


def test_the_svm_is_asked_about_the_tokens_that_were_chosen():
    problem = sphere_problem(1, n=3, T=4, d=5)
    best = geometry(problem, read_question({**ASKED, "alpha": "optimal"}), "tensor")
    assert best["alpha"] == mm.optimal_tokens(problem).alpha.tolist()
    mine = geometry(problem, read_question({**ASKED, "alpha": [3, 0, 2]}), "tensor")
    assert mine["alpha"] == [3, 0, 2]
    assert mine["trained"] == best["trained"]


def test_the_rate_lies_above_the_run_and_touches_it():
    found = answer(example1(), 3.0, 1500, "random")
    pairs = [
        (D, bound) for D, bound in zip(found["divergence"]["own"], found["rate"], strict=True) if bound is not None
    ]
    assert len(pairs) > 5
    assert all(bound * (1 + 1e-4) >= D for D, bound in pairs)
    assert min(bound / D for D, bound in pairs) == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize(
    ("rule", "norm", "problem"),
    [("sign", "linf", sphere_problem(1, n=3, T=4, d=5)), ("muon", "spectral", example1())],
    ids=["sign descent, sphere", "Muon, example 1"],
)
def test_another_rule_turns_to_the_solution_of_another_norm(rule, norm, problem):
    found = geometry(problem, Question("{}", 1.75, 0.03, 1500, "zero", rule=rule, others=(2.0,)), "tensor")
    assert found["norm"] == norm
    assert -1e-6 < found["divergence"]["own"][-1] < 0.06
    solution = mm.att_svm(problem, np.array(found["alpha"]), norm=norm)
    assert found["solution"]["margin"] == pytest.approx(float(solution.margin))
    # The solution lies on the edge of the ball that is drawn, and the ball is that of the norm.
    ball, place = np.array(found["weights"]["ball"]), np.array(found["weights"]["solution"])
    assert np.linalg.norm(ball - place, axis=1).min() < 0.05
    assert found["others"][0]["p"] == 2


@pytest.mark.parametrize("potential", ["SquaredLp", "Hypentropy"])
def test_other_potentials_are_trained_and_named(potential):
    found = answer(sphere_problem(1, n=3, T=4, d=5), 1.5, potential=potential, beta=0.1)
    assert found["potential"] == potential
    assert found["norm"] == (1.5 if potential == "SquaredLp" else 1.01)
    assert found["solution"]["margin"] > 0


def test_a_batch_of_seeds_is_that_of_the_problems_one_by_one():
    problems = Problems()
    found = batch(problems, read_question(ASKED), 4, "tensor")
    last = []
    for seed in range(1, 5):
        one = geometry(sphere_problem(seed, n=3, T=4, d=5), read_question({**ASKED, "seed": seed}), "tensor")
        last += [one["divergence"]["own"][-1]] if one["solution"] else []
    assert found["separable"] == len(last)
    assert found["quartiles"][1][-1] == pytest.approx(np.median(last), rel=1e-3)
    with pytest.raises(ValueError, match="seeds change nothing here"):
        batch(problems, read_question({**ASKED, "problem": "example1"}), 4, "tensor")


VIEWS = {
    "sphere, two p, moved": {**ASKED, "others": [3], "moves": {"x": [[0, 1, [0.5, 0, 0, 0, 0]]], "z": []}},
    "example 2, trained head": {**ASKED, "problem": "example2", "start": "random", "steps": 300},
    "hypentropy": {**ASKED, "potential": "Hypentropy", "beta": 0.1},
    "Muon beside p = 2": {**ASKED, "rule": "muon", "others": [2]},
    "best tokens": {**ASKED, "alpha": "optimal", "potential": "SquaredLp"},
    "my tokens": {**ASKED, "alpha": [3, 0, 2]},
}


@pytest.mark.parametrize("asked", VIEWS.values(), ids=VIEWS)
def test_the_python_of_a_view_gives_what_is_on_the_screen(asked, capsys):
    question = read_question(asked)
    problem = Problems().named(asked)
    shown = geometry(problem, question, "tensor")
    names = {}
    exec(snippet(question.moved(problem), question), names)
    name = question.p if question.rule == "mirror" else question.rule
    run, solution = names["runs"][name], names["solutions"][name]
    assert run.steps.tolist() == shown["steps"]
    assert solution.optimal == (shown["solution"] is not None)
    if solution.optimal:
        assert float(solution.margin) == pytest.approx(shown["solution"]["margin"], rel=1e-9)
    np.testing.assert_allclose(run.norm, shown["norms"], rtol=1e-4)
    assert capsys.readouterr().out.startswith(f"{name}: tokens")

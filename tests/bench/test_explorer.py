"""The measurement asks what the explorer's page asks."""

from contextlib import contextmanager

import pytest

starlette = pytest.importorskip("starlette.testclient")
from mirrormax.app import make_app  # noqa: E402
from mirrormax.app.guards import cookie_name  # noqa: E402
from mirrormax.app.question import STEPS  # noqa: E402
from mirrormax.bench import explorer  # noqa: E402


@pytest.fixture
def client(tmp_path):
    cookies = {cookie_name("token"): "token"}
    return starlette.TestClient(make_app(None, tmp_path, "token"), base_url="http://127.0.0.1", cookies=cookies)


@pytest.mark.parametrize("name", explorer.PROBLEMS)
def test_the_page_takes_every_problem_that_is_measured(name, client):
    asked = {
        **explorer.CHOICES,
        **explorer.PROBLEMS[name],
        "steps": 100,
        "p": 2.0,
        "draft": 100,
    }  # without the film strip
    answer = client.post("/api/geometry", json=asked)
    assert answer.status_code == 200
    assert answer.json()["backend"] == "tensor"


def test_every_problem_and_its_longest_answer_are_told(monkeypatch, capsys):
    @contextmanager
    def server():
        yield "http://nowhere/"

    monkeypatch.setattr(explorer, "server", server)
    asked = set()

    def ask(address, request):
        asked.add({**explorer.CHOICES, **request}["steps"])
        return {"backend": "numba"}, request["p"] / 10

    monkeypatch.setattr(explorer, "ask", ask)
    monkeypatch.setattr(explorer, "BROWSERS", ())
    explorer.main()
    told = capsys.readouterr().out.splitlines()
    for name in explorer.PROBLEMS:
        rows = [line.split()[-2:] for line in told if line.startswith(name)]
        assert rows == [["0.60", "0.60"]] * 2
    assert asked == {300, 6000}
    assert told[-1].startswith("No redraws are counted")


def test_the_page_makes_no_more_steps_than_are_measured():
    assert max(explorer.STEPS) == max(STEPS)

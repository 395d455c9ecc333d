"""The application: answers, one-sentence refusals, and who may ask."""

import io
import re
import zipfile

import numpy as np
import pytest

from mirrormax._drawing import EXPONENTS
from mirrormax.app.guards import cookie_name
from mirrormax.app.server import STATIC
from mirrormax.data import example1, load_problem, save_problem

QUESTION = {"problem": "example1", "p": 1.75, "lr": 0.1, "steps": 100, "start": "random"}
SPHERE = {**QUESTION, "problem": "sphere", "seed": 0, "n": 2, "T": 3, "d": 3}


def refused(response, status=400):
    """The sentence of a refusal."""
    assert response.status_code == status
    assert set(response.json()) == {"error"}
    assert "\n" not in response.json()["error"]
    return response.json()["error"]


def test_the_page_and_all_that_it_names_are_served(client):
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "mirrormax" in page.text
    assert "{version}" not in page.text
    for name in ("main.js", "geometry.js", "attention.js", "runs.js", "style.css", "icon.svg"):
        assert client.get(f"/static/{name}").status_code == 200


@pytest.mark.parametrize("path", ["/", "/static/main.js", "/api/runs", "/nothing"])
def test_every_answer_forbids_what_is_not_its_own(client, path):
    headers = client.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'self';")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "",
        "localhost@evil.example",
        "[::",
        "user@localhost",
        "a:b@127.0.0.1:80",
        "localhost:",
        "localhost:x",
    ],
)
def test_other_hosts_are_refused(client, host):
    assert "127.0.0.1 and localhost only" in refused(client.get("/", headers={"host": host}))


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:8765", "localhost"])
def test_this_machine_is_answered(client, host):
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:99", "https://127.0.0.1"])
def test_pages_of_others_are_refused(client, origin):
    assert "its own page only" in refused(client.post("/api/geometry", json=QUESTION, headers={"origin": origin}), 403)
    assert client.post("/api/geometry", json=QUESTION, headers={"origin": "http://127.0.0.1"}).status_code == 200


@pytest.mark.parametrize("question", [QUESTION, SPHERE], ids=["example1", "sphere"])
def test_geometry_is_answered(client, question):
    found = client.post("/api/geometry", json=question).json()
    assert found["p"] == 1.75
    assert found["steps"][-1] == 100
    assert client.post("/api/geometry", json=question).json() == found  # from memory, time and all


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"p": 1}, "p must be a finite number at least 1.01 and less than 12, got 1."),
        ({"p": "two"}, "p must be a number, got 'two' (str)."),
        ({"p": None}, "p must be a number, got None (NoneType)."),
        ({"p": True}, "p must be a number, got True (bool)."),
        ({"lr": -1}, "step size must be a finite number at least 0.0001"),
        ({"steps": 10**9}, "steps must be one of 100, 300, 1500, 6000, got 1000000000."),
        ({"steps": [100]}, "steps must be one of"),
        ({"start": "nowhere"}, "start must be one of random, zero, got 'nowhere'."),
        ({"start": {}}, "start must be one of random, zero, got {}."),
        ({"potential": "Log"}, "potential must be one of Lp, SquaredLp, Hypentropy, got 'Log'."),
        ({"potential": "Hypentropy", "beta": 0}, "beta must be a finite number at least 0.001"),
        ({"others": 3}, "others must list at most 4 exponents, got 3."),
        ({"others": [0.5]}, "others must be a finite number at least 1.01"),
        ({"alpha": "mine"}, "alpha must be one of trained, optimal, got 'mine'."),
        ({"alpha": [0, 9]}, "alpha must name one of 2 tokens for each of 2 samples, got [0, 9]."),
        ({"alpha": [-1, 0]}, "alpha must be at least 0, got -1."),
        ({"moves": []}, "moves must have the lists x and z."),
        ({"moves": {"x": [[0, 7, [1, 2]]]}}, "moves names x[0, 7] with 2 numbers; the problem has no such."),
        ({"moves": {"z": [[0, [1]]]}}, "moves names z[0] with 1 numbers; the problem has no such."),
        ({"moves": {"x": [[0, 1, [1e9, 0]]]}}, "moves of x must be a finite number at least -1000 and at most 1000"),
        ({"moves": {"x": [[0, 1, [0, 0]]] * 41}}, "moves of x must be a list of at most 40; put some back."),
        ({"draft": -1}, "draft must be"),
        ({"draft": [1]}, "draft must be"),
        ({**SPHERE, "held": [5, [0] * 6]}, "held must name one of 2 samples and 6 numbers."),
        ({"problem": "example9"}, "problem must be one of example1, example2, sphere or file, got 'example9'."),
        ({"problem": ["example1"]}, "problem must be one of"),
        ({"problem": "file", "file": "gone"}, "upload it again"),
        ({"problem": "sphere"}, "seed must be an integer, got None"),
        ({**SPHERE, "n": 2.5}, "n must be an integer, got 2.5"),
        ({**SPHERE, "n": 40, "T": 40}, "n·T = 1600 tokens"),
    ],
    ids=str,
)
def test_bad_questions_get_one_sentence(client, change, sentence):
    assert sentence in refused(client.post("/api/geometry", json={**QUESTION, **change}))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"{", "not JSON"), (b"\xff", "not JSON"), (b"[1]", "must be a JSON object"), (b"[" * 50_000, "not JSON")],
)
def test_what_is_no_question_is_refused(client, content, sentence):
    response = client.post("/api/geometry", content=content, headers={"content-type": "application/json"})
    assert sentence in refused(response)


def test_a_form_of_another_site_is_no_question(client):
    assert "application/json" in refused(
        client.post("/api/geometry", content=b"{}", headers={"content-type": "text/plain"})
    )


def test_requests_have_a_largest_size(client):
    assert "100,000 bytes" in refused(client.post("/api/attention", json={"text": "x" * 200_000}), 413)
    assert "2,000,000 bytes" in refused(client.post("/api/problem", content=b"x" * 2_000_001), 413)


def test_an_uploaded_problem_is_shown(client, tmp_path):
    save_problem(tmp_path / "mine.npz", example1())
    sent = client.post("/api/problem?name=mine.npz", content=(tmp_path / "mine.npz").read_bytes())
    assert sent.json()["shape"] == {"n": 2, "T": 2, "d": 2}
    found = client.post("/api/geometry", json={**QUESTION, "problem": "file", "file": sent.json()["file"]}).json()
    usual = client.post("/api/geometry", json=QUESTION).json()
    assert found["solution"] == usual["solution"]


def npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def bomb():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", b"\0" * 20_000_000)
    return file.getvalue()


BAD_FILES = {
    "no archive": (b"hello", "mine.npz is not an .npz file"),
    "empty": (b"", "mine.npz is empty"),
    "lacks an array": (npz(X=np.zeros((1, 2, 2))), "mine.npz has no array 'y'"),
    "a pickle": (npz(X=np.array([{}], dtype=object), y=1, z=1, v=1), "cannot be read (it holds Python objects)"),
    "wrong shape": (
        npz(X=np.zeros((1, 2, 2)), y=[1.0, 2.0], z=np.zeros((1, 2)), v=np.zeros(2)),
        "y must have the shape",
    ),
    "too large": (
        npz(X=np.zeros((100, 10, 2)), y=np.ones(100), z=np.ones((100, 2)), v=np.ones(2)),
        "X has n·T = 1000 tokens",
    ),
    "a bomb": (bomb(), "mine.npz unpacks to 20,000,000 bytes"),
}


@pytest.mark.parametrize(("content", "sentence"), BAD_FILES.values(), ids=BAD_FILES)
def test_bad_files_get_one_sentence_with_their_name(client, content, sentence):
    told = refused(client.post("/api/problem?name=mine.npz", content=content))
    assert sentence in told
    assert "/tmp" not in told


def test_the_problem_on_the_screen_is_exported_as_it_is(client, tmp_path):
    moves = {"x": [[0, 1, [0.5, -0.5]]], "z": []}
    sent = client.post("/api/export", json={**QUESTION, "moves": moves})
    (tmp_path / "problem.npz").write_bytes(sent.content)
    problem = load_problem(tmp_path / "problem.npz")
    assert problem.X[0, 1].tolist() == [0.5, 0.5]
    assert problem.X[1].tolist() == example1().X[1].tolist()


def test_seeds_and_python_are_answered(client):
    found = client.post("/api/seeds", json={**QUESTION, "seeds": 3}).json()
    assert found["count"] == 3
    assert found["of"] == "start"
    assert "mm.data.example1()" in client.post("/api/snippet", json=QUESTION).json()["python"]
    assert "seeds must be at most 40, got 41." in refused(client.post("/api/seeds", json={**QUESTION, "seeds": 41}))
    assert "seeds must be an integer" in refused(client.post("/api/seeds", json=QUESTION))


def test_attention_of_two_checkpoints_is_answered(client):
    assert {model["name"] for model in client.get("/api/models").json()} >= {"first", "run"}
    found = client.post("/api/attention", json={"text": "a warm film", "models": ["first", "run"]}).json()
    assert [reading["name"] for reading in found] == ["first", "run"]
    assert found[0]["heads"] == [2, 2]
    halves = client.post(
        "/api/attention",
        content=r'{"text": "a \ud800 film", "models": ["first"]}',
        headers={"content-type": "application/json"},
    )
    assert [token["text"] for token in halves.json()[0]["tokens"]] == ["[CLS]", "a", "?", "film", "[SEP]"]
    kinds = client.post("/api/kinds", json={"model": "first"}).json()
    assert [len(layer) for layer in kinds["layers"]] == [2, 2]
    assert "there is no checkpoint None" in refused(client.post("/api/kinds", json={}))


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ({"text": "", "models": ["first"]}, "text is empty; type a review."),
        ({"text": 3, "models": ["first"]}, "text must be a text, got 3."),
        ({"text": "film", "models": []}, "models must name one or two checkpoints."),
        ({"text": "film", "models": "first"}, "models must name one or two checkpoints."),
        ({"text": "film", "models": ["/etc"]}, "there is no checkpoint '/etc'"),
        ({"text": "film", "models": [{}]}, "there is no checkpoint {}"),
        (
            {"text": "film", "models": ["first"], "queries": [99]},
            "query must be the place of one of the 3 tokens, got 99.",
        ),
        ({"text": "film", "models": ["first"], "queries": ["0"]}, "queries must be an integer"),
        ({"text": "film", "models": ["first"], "queries": [0, 1]}, "queries must be as many as models."),
        ({"text": "film", "models": ["first"], "head": "first"}, "head must be an integer"),
        ({"text": "film", "models": ["first"], "layer": -1}, "layer must be at least 0, got -1."),
        (
            {"text": "film", "models": ["first"], "pruned": 1},
            "pruned must be a finite number at least 0 and less than 1",
        ),
        ({"text": "film", "models": ["first"], "without": [0, 1]}, "without must be as many as models."),
    ],
)
def test_bad_questions_about_attention_get_one_sentence(client, question, sentence):
    assert sentence in refused(client.post("/api/attention", json=question))


def test_results_are_served_and_may_run_nothing(client):
    assert client.get("/api/runs").json()["reports"] == ["report.html"]
    report = client.get("/runs/report.html")
    assert report.status_code == 200
    assert report.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    assert client.get("/runs/fig2/abc/fig2.svg").headers["content-type"] == "image/svg+xml"


@pytest.mark.parametrize(
    "path", ["/runs/..%2fsecret.json", "/runs/fig2/%2e%2e/%2e%2e/secret.json", "/runs/%2fetc%2fpasswd"]
)
def test_paths_outside_the_results_are_refused(client, path):
    assert "is not a file" in refused(client.get(path), 404)


@pytest.mark.parametrize("path", ["/static/../server.py", "/static/..%2fserver.py", "/nothing"])
def test_nothing_else_is_served(client, path):
    refused(client.get(path), 404)


def test_a_wrong_method_is_refused(client):
    refused(client.get("/api/geometry"), 405)


EVERYTHING = ["/", "/static/main.js", "/api/runs", "/api/models", "/runs/report.html", "/nothing"]


@pytest.mark.parametrize("path", EVERYTHING)
@pytest.mark.parametrize(
    "query", ["", "?token=", "?token=the-toke", "?token=the-token2", "?token=%ff", "?tokens=the-token"]
)
def test_without_the_token_nothing_is_told(stranger, path, query):
    answer = stranger.get(f"{path}{query}")
    assert answer.status_code == 403
    assert "Open the address" in answer.text
    assert "set-cookie" not in answer.headers
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")


def test_posts_want_the_token_too(stranger):
    assert stranger.post("/api/geometry", json=QUESTION).status_code == 403
    assert stranger.post("/api/geometry?token=the-token", json=QUESTION).status_code == 200
    assert stranger.post("/api/problem", content=b"x" * 100).status_code == 403


def test_a_wrong_cookie_opens_nothing(stranger):
    name = cookie_name("the-token")
    for cookie in (f"{name}=the-toke", f"{name}=", "token=the-token", f"{name}=\xff", "=", ";;"):
        assert stranger.get("/api/runs", headers={"cookie": cookie.encode("latin-1")}).status_code == 403
    assert stranger.get("/api/runs", headers={"cookie": f"{name}=the-token"}).status_code == 200


def test_the_token_becomes_a_strict_cookie_and_leaves_the_address(stranger):
    answer = stranger.get("/?token=the-token")
    assert answer.status_code == 200
    assert "content='0; url=/'" in answer.text
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "the-token" not in answer.text
    assert stranger.get("/").status_code == 200
    assert "main.js" in stranger.get("/").text


def test_the_way_on_stays_on_this_server(stranger):
    assert "url=/evil.example/" in stranger.get("http://127.0.0.1//evil.example/?token=the-token").text
    assert "<script>" not in stranger.get("/%3Cscript%3E?token=the-token").text


def test_a_p_has_one_colour_on_the_page_and_in_every_figure():
    style = (STATIC / "style.css").read_text("utf-8")
    light = style[: style.index("@media")]
    told = dict(re.findall(r"--p-([0-9-]+): (#[0-9a-f]{6});", light))
    assert {float(name.replace("-", ".")): colour for name, colour in told.items()} == {
        p: look.colour.lower() for p, look in EXPONENTS.items()
    }
    dashes = re.search(r"DASHES = {(.*?)}", (STATIC / "plot.js").read_text("utf-8"), re.DOTALL)
    assert [float(p) for p in re.findall(r"([0-9.]+): \"", dashes[1])] == list(EXPONENTS)

import pytest


@pytest.fixture(params=("tensor", "numba"))
def backend(request: pytest.FixtureRequest) -> str:
    """Each way to compute a run; numba only where it is installed."""
    if request.param == "numba":
        pytest.importorskip("numba")
    return str(request.param)

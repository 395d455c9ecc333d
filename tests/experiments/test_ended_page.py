"""The script behind the page of runs that were trained to the end."""

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "results" / "ended.py"


def test_differences_of_accuracies_are_points_and_others_are_as_they_are():
    runs = {name: [] for name in ("ℓ1.1", "ℓ2", "ℓ3", "AdamW")}
    for name, base in (("ℓ1.1", 0.80), ("ℓ2", 0.78)):
        runs[name] = [
            {"ended": True, "test_by_validation": base + k / 1000, "hoyer": base + k / 1000} for k in range(3)
        ]
    found = {row["quantity"]: row for row in runpy.run_path(str(SCRIPT))["differences"]("reviews", runs)}
    assert found["test_by_validation"]["difference"] == pytest.approx(2.0)
    assert found["hoyer"]["difference"] == pytest.approx(0.02)
    assert found["test_by_validation"]["high"] == pytest.approx(100 * found["hoyer"]["high"])
    assert {row["verdict"] for row in found.values()} == {"holds"}

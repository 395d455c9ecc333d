"""Numbers of the paper, and of its authors' protocol rerun, that the experiments are held against."""

from __future__ import annotations

# Fig 4: final directional divergence of the path of one p to the attention SVM of another, mean and standard
# deviation over 100 trials, by (path, SVM).
FIG4: dict[tuple[float, float], tuple[float, float]] = {
    (1.75, 1.75): (0.0142, 0.004),
    (1.75, 2.0): (0.175, 0.19),
    (1.75, 3.0): (0.222, 0.18),
    (2.0, 1.75): (0.169, 0.19),
    (2.0, 2.0): (0.0068, 0.004),
    (2.0, 3.0): (0.171, 0.17),
    (3.0, 1.75): (0.238, 0.18),
    (3.0, 2.0): (0.180, 0.17),
    (3.0, 3.0): (0.0052, 0.009),
}

# The lengths of the published runs, for Fig 4 to 7.
STEPS: dict[float, int] = {1.75: 1500, 2.0: 2000, 3.0: 20000}

# Fig 6: selected tokens, and the final divergences of W and of v.
FIG6_ALPHA: dict[float, tuple[int, int]] = {1.75: (1, 0), 2.0: (1, 0), 3.0: (0, 0)}
FIG6_DIVERGENCE: dict[float, tuple[float, float]] = {
    1.75: (8.3e-3, 2.0e-4),
    2.0: (3.8e-3, 3.2e-4),
    3.0: (2.7e-3, 2.4e-3),
}
# Label margins of the selections (0, 0) and (1, 0), on the authors' data: half of what the paper prints.
FIG6_MARGINS: dict[float, tuple[float, float]] = {1.75: (2.106, 2.170), 2.0: (2.177, 2.174), 3.0: (2.312, 2.178)}

# Fig 7: the attention on the selected token at steps 0 and 1, and at least so much from step 20 on.
FIG7_START = 1 / 3
FIG7_STEP_20 = 0.998

# Example 1: the weights printed as those of p = 3, first column (the second is zero).
EXAMPLE1_PRINTED = (0.03846, -0.00769)
EXAMPLE1_P3 = (0.03672, -0.01642)

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

# Table 1: IMDb test accuracy in percent, mean and standard deviation over ten trials, best epoch on the test set, by
# (p, blocks); then at the last epoch.
TABLE1: dict[tuple[float, int], tuple[float, float]] = {
    (1.1, 3): (83.47, 0.09),
    (1.1, 4): (83.36, 0.13),
    (1.1, 6): (83.65, 0.13),
    (2.0, 3): (81.66, 0.09),
    (2.0, 4): (81.05, 0.17),
    (2.0, 6): (82.22, 0.13),
    (3.0, 3): (82.57, 0.09),
    (3.0, 4): (82.40, 0.12),
    (3.0, 6): (81.97, 0.10),
}
TABLE1_LAST: dict[tuple[float, int], float] = {
    (1.1, 3): 82.57,
    (1.1, 4): 82.93,
    (1.1, 6): 82.63,
    (2.0, 3): 80.61,
    (2.0, 4): 79.97,
    (2.0, 6): 81.15,
    (3.0, 3): 81.33,
    (3.0, 4): 80.91,
    (3.0, 6): 80.41,
}

# Fig 8: entries with |w| >= 0.06 of 884,736 in W_K, W_Q and W_V of the model with six blocks.
FIG8_LARGE: dict[float, dict[str, int]] = {
    1.1: {"key": 18206, "query": 13964, "value": 7643},
    2.0: {"key": 27224, "query": 14654, "value": 10127},
}

# Fig 9: the pivotal token's attention, scaled to [0, 1], mean over 44 reviews.
FIG9_PIVOT: dict[float, float] = {1.1: 0.439, 2.0: 0.312}

# The vision transformer on CIFAR-10: last test accuracy, and key weights with |w| < 0.01 of 1.57 million.
VIT_ACCURACY: dict[str, float] = {"Adam": 0.8263, "ℓ1.1": 0.8241, "ℓ1.75": 0.8192, "ℓ2": 0.8232, "ℓ3": 0.8248}
VIT_NEAR_ZERO: dict[str, float] = {"Adam": 249e3, "ℓ1.1": 427e3, "ℓ1.75": 472e3, "ℓ2": 323e3, "ℓ3": 72e3}
VIT_KEYS = 1.57e6

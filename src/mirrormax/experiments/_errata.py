"""What we found wrong in the paper's print, proofs and protocol: each in one sentence, with where it is shown."""

from __future__ import annotations

from typing import NamedTuple


class Erratum(NamedTuple):
    """Where it stands, what is wrong or right there, the experiment that shows it (none for a plain misprint), and what
    else there is to say."""

    where: str
    sentence: str
    shown_by: str = ""
    more: str = ""


ERRATA = (
    Erratum(
        "Example 1",
        "The weights printed for p = 3 are the solution at p = 2.",
        "fig2",
        "At p = 3 it is [.03672, 0; −.01642, 0].",
    ),
    Erratum(
        "Example 2",
        "It is printed at twice the scale of the data that was run.",
        "fig6",
        "No selected token changes, label margins double.",
    ),
    Erratum("Definition 5", "The cone asks ‖W'‖ ≥ R of its member; ‖W‖ ≥ R of its centre is printed."),
    Erratum("Theorem 4", "For p < 2 its statement has a factor log log k that its own proof (32c) has not.", "thm4"),
    Erratum(
        "(29), in the proof of Theorem 4",
        "‖W(k+1)‖ ≤ ‖W(k)‖ + ηL holds at p = 2 alone.",
        "thm4",
        "The step is made in the dual, where it adds at most η‖∇L‖_q to ‖W‖^{p−1}. For p > 2 steps from small W add "
        "more, for p < 2 steps from large W whose attention is not saturated.",
    ),
    Erratum(
        "Assumption B",
        "It can hold only if every chosen token is a label support vector, which few problems satisfy.",
        "thm5",
        "A sample with label margin to spare may read other tokens at no cost.",
    ),
    Erratum(
        "The proof of Theorem 5",
        "Its comparison of losses drops a factor 1/2n, and M and ε in (35)-(37) want the p/(p−1) norm.",
        "thm5",
        "The factor is that of the mean over samples and of log(1 + x) ≥ x/2; with it the argument needs r to grow "
        "exponentially in R. The theorem itself was not seen to fail where Assumption B is not refuted.",
    ),
    Erratum(
        "Joint training",
        "W converges to the attention SVM only if every sample is a label support vector, else to a relaxed problem.",
        "joint",
        "A sample with label margin to spare needs less attention when W and v are trained together.",
    ),
    Erratum(
        "Appendix B",
        "A' wants the p/(p−1) norm, Q_i sums over the tokens that are not support tokens, R_δ drops a factor n, and ψ "
        "in Lemma 12 lacks its p-th power.",
    ),
    Erratum(
        "Fig 4's start",
        "The text says “initialized near the origin”; the published scripts draw W(0) with standard deviation 1.",
        "fig4",
        "From 0.01 most trials select the same tokens for every p, from 1 about a quarter do.",
    ),
    Erratum(
        "Fig 4, off the diagonal",
        "Most of the plateau between a path and another p's SVM is that each p had its own random start.",
        "fig4",
        "Other starts select other tokens; from small or shared starts the plateau shrinks several times.",
    ),
    Erratum(
        "Fig 4, on the diagonal",
        "The floor is cancellation; with gradients in log scale the divergence keeps falling.",
        "fig4",
        "Once attention is saturated to 1e-16 the gradient is noise, and normalising follows it.",
    ),
    Erratum(
        "Theorems 2 to 4",
        "Their cone is out of reach of every published run.",
        "thm4",
        "It asks for starts within 3e-7 of the direction or less, at norms of 4e8 or more, where a plain step no "
        "longer moves anything.",
    ),
    Erratum(
        "Table 1",
        "It prints the best test epoch, which selects on the test set.",
        "table1",
        "Its ten trials share one initial model, so that their spread shows shuffling and dropout alone.",
    ),
    Erratum(
        "Fig 8",
        "Entries with |w| ≥ 0.06 are those that left the initial range U(±0.051), not the dense ones.",
        "fig8",
        "Of the vision transformers ℓ1.75, not ℓ1.1, has the most entries near zero.",
    ),
    Erratum(
        "Near p = 1 in float32",
        "Weights stored by themselves forget steps smaller than their rounding; a dual state does not.",
    ),
    Erratum("Batches", "Truncation drops [SEP] and padding queries attend to [CLS] in the published code; not here."),
)
"""All of them, in the order of the report."""

MISPRINTS = (
    ("Lemma 5", "its proof has its inequalities reversed"),
    ("(18)", "lacks a ∇ and a factor 1/n"),
    ("(34)", "has a bar over W in Ξ that does not belong there"),
    ("(35b)", "defines q̂_max as the largest q*, where the largest q̂ is meant"),
    ("Remark 1", "says “there exists an index k” where every k is meant"),
    ("Definition 3", "takes support tokens from (4), that is from p = 2, for every p"),
    ("Lemma 18", "takes its constant c from Lemma 16; it is that of Lemma 11"),
)
"""Slips of the print that change nothing, by where they stand."""

READINGS = (
    (
        "Example 1",
        "X_2 is printed with three rows, X_1 with two. Read with T = 2 and X_2 = −X_1, which gives the printed W "
        "exactly; with the zero token W would be [.04, 0; 0, 0] for every p.",
    ),
    (
        "Fig 4's start",
        "The text (near the origin) and the scripts (standard deviation 1) disagree: both are shown, and a zero start.",
    ),
    (
        "Fig 1, Lemma 17",
        "The lemma is about plain steps, which at this size move nothing where it applies: ours are normalised.",
    ),
    ("Fig 5", "The trial is the authors' own draw, torch's generator with seed 1."),
    (
        "Numbering",
        "Lemmas, theorems and equations are numbered as in arXiv 2410.14581 v1; the journal has other numbers.",
    ),
)
"""Where the text is open to more than one reading, which one is taken."""

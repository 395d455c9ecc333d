"""What we found in the paper's print, proofs and protocol: each in one sentence, with where it is shown.

``ERRATA`` are wrong as they stand and change a number, a proof or what a figure shows. ``LIMITS`` are right, with how
far they reach. ``MISPRINTS`` change nothing. Every one was read in the text of arXiv 2410.14581 v1; what comes from the
authors' scripts or notebooks says so. ``READINGS`` say which one is taken where the text is open to more than one.
"""

from __future__ import annotations

from typing import NamedTuple


class Erratum(NamedTuple):
    """Where it stands, what is wrong or right there, the experiment that shows it (none if nothing was run), and what
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
        "It is printed at twice the scale of the data that the authors' scripts run.",
        "fig6",
        "No selected token changes, label margins double.",
    ),
    Erratum(
        "The proof of Theorem 5",
        "It leaves out a factor 1/2n “for simplicity”; with it, the argument needs r to grow exponentially in R.",
        "thm5",
        "The factor is that of the mean over samples and of log(1 + x) ≥ x/2. In Sub-Case 1.1, M and ε take the "
        "p-norm, and Hölder's inequality needs that of p/(p−1), which is larger for p > 2. The theorem itself was not "
        "seen to fail where Assumption B is not refuted.",
    ),
    Erratum(
        "Fig 4's start",
        "The text says “initialized near the origin”; the published scripts draw W(0) with standard deviation 1.",
        "fig4",
        "From 0.01 most trials select the same tokens for every p, from 1 about a third do. A summary of the journal "
        "version speaks of a zero start.",
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
        "Table 1",
        "By the authors' notebook its numbers are those of the best test epoch, which selects on the test set.",
        "table1",
        "Its ten trials share one initial model, so that their spread shows shuffling and dropout alone.",
    ),
    Erratum(
        "Fig 8",
        "Entries with |w| ≥ 0.06 are those that left the initial range U(±0.051): the count does not measure sparsity.",
        "fig8",
        "In the authors' notebook for the vision transformers ℓ1.75, not ℓ1.1, has the most key weights near zero.",
    ),
    Erratum(
        "Long texts", "The published code cuts them off after 512 tokens, without [SEP]; here [SEP] is the last token."
    ),
)

LIMITS = (
    Erratum(
        "Theorems 2 to 4",
        "The cone that their proofs construct is out of reach of every published run.",
        "thm4",
        "It asks for starts within 3e-7 of the direction or less, at norms of 4e8 or more, where a plain step no "
        "longer moves anything.",
    ),
    Erratum(
        "(29), in the proof of Theorem 4",
        "‖W(k+1)‖ ≤ ‖W(k)‖ + ηL needs the cone: for p ≠ 2 it does not follow from Lemma 8 alone.",
        "thm4",
        "The step is made in the dual, where it adds at most η‖∇L‖_q to ‖W‖^{p−1}. From small W at p > 2, or from "
        "large W whose attention is not saturated at p < 2, one step adds more. In the cone gradients are "
        "exponentially small in ‖W‖, so that the inequality holds from some norm on, and the theorem stands.",
    ),
    Erratum(
        "Assumption B",
        "It can hold only if every chosen token is a label support vector, which few random problems satisfy.",
        "thm5",
        "A sample with label margin to spare may read other tokens at no cost.",
    ),
    Erratum(
        "Joint training",
        "W converges to the attention SVM, as in Fig 6, if every sample is a label support vector, as there; else to "
        "a relaxed problem.",
        "joint",
        "A sample with label margin to spare needs less attention when W and v are trained together.",
    ),
    Erratum(
        "Near p = 1 in float32",
        "Weights stored by themselves forget steps smaller than their rounding; a dual state does not.",
    ),
)

MISPRINTS = (
    ("Definition 5", "(5b) asks ‖W‖ ≥ R, of the centre; ‖W'‖ ≥ R, of the member, is meant"),
    (
        "Theorem 4",
        "has a factor log log k for p < 2 that its proof (32c) does not; the journal states the proof's rate",
    ),
    ("Definition 3", "takes W_mm from (4), which is p = 2, before Definition 4 generalises it; read with the same p"),
    ("(8)", "A' has the norm p−1, p/(p−1); its use in Lemma 9 takes p/(p−1) twice"),
    ("Appendix B.1", "Q_i sums over the support tokens, as S_i does; its use in Lemma 10 sums over the other tokens"),
    ("Lemma 5", "the inequalities of its proof point the other way than those of the lemma, which are right"),
    ("(18)", "lacks a ∇, and the 1/n of its second term; with it, the n in the next bound of R' goes, as R_δ has it"),
    (
        "Lemma 10",
        "asks for V of norm ‖W_mm‖ in a cone of norms from R_δ on, which is larger; V in S_{p,μ0} is meant, and enough",
    ),
    ("Lemma 12", "its ψ lacks the p-th power, and its “both sides of (3)” are those of the dual form of (MD)"),
    ("Lemma 18", "takes its constant c from Lemma 16, which has none; its proof takes Lemma 11's"),
    ("(34)", "Ξ has the norm of W̄_mm, which is defined by Ξ; that of W_mm is meant"),
    ("(35b)", "defines q̂_max as the largest q*; the largest q̂ is meant"),
    ("(38)", "bounds differences of tokens by M = sup ‖X_it‖; twice that does, and f(ε) vanishes all the same"),
)

READINGS = (
    (
        "Example 1",
        "Its matrices are garbled in the text we have: rows (5, 0), (0, 0), 1 and (−5, 0), (0, 0), (0, −1). Read with "
        "T = 2, X_1 = [5, 0; 0, 1] and X_2 = −X_1, which gives the printed W exactly; with a zero token W would be "
        "[.04, 0; 0, 0] for every p.",
    ),
    (
        "Fig 4's start",
        "The text (near the origin) and the scripts (standard deviation 1) disagree: both are shown, and a zero start.",
    ),
    (
        "Fig 1, Lemma 17",
        "The lemma is about plain steps, which at this size move nothing where it applies: ours are normalised.",
    ),
    (
        "Remark 1",
        "“There exists an index k and r such that W̃ = rW(k) + (1−r)W(k+1)” says which points lie on the path, and "
        "ψ − ηL is to be convex at all of them. As a condition of its own it would be too weak: at p = 2 a run whose "
        "last segment meets it has a risk that rises before.",
    ),
    ("Fig 5", "The trial is the authors' own draw, torch's generator with seed 1."),
    (
        "Numbering",
        "Lemmas, theorems and equations are numbered as in arXiv 2410.14581 v1; the journal has other numbers.",
    ),
)

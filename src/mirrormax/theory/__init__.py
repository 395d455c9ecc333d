"""What the paper proves, as numbers and checks: constants, cones, step sizes, lemmas along a run, rates."""

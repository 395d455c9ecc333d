"""Members of every registered family of potentials, on which the shared conformance tests run."""

from mirrormax.geometry import ElasticNet, GroupElasticNet, Hypentropy, Lp, Potential, SquaredLp

EXAMPLES = {
    Lp: [Lp(p) for p in (1.01, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 6.0, 50.0)],
    SquaredLp: [SquaredLp(p) for p in (1.1, 1.5, 2.0, 3.0, 10.0)],
    Hypentropy: [Hypentropy(beta) for beta in (1e-3, 1.0, 100.0)],
    ElasticNet: [ElasticNet(0.05), ElasticNet(0.01, 2.0), ElasticNet(0.0, 0.5)],
    GroupElasticNet: [GroupElasticNet(0.05), GroupElasticNet(0.01, 2.0, by="head")],
}
POTENTIALS = [example for family in Potential.registry.values() for example in EXAMPLES.get(family) or [family()]]

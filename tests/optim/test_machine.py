"""Both optimizers driven through what people do between steps, each weight compared with the reference after each.

Every kernel steps a model of its own, beside a reference in float64. After each step u, the moments and the weights
must be those of the reference within ``ULP`` units in the last place of the numbers that made them; the reference then
goes on from what it was shown, so that errors do not add up and one bound holds for runs of any length.
"""

import copy
import math
import pickle
import warnings

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from torch import nn

from mirrormax import MirrorAdamW, MirrorDescent
from mirrormax.geometry import Lp
from mirrormax.optim.reference import ReferenceTensor, firm, power, reference_threshold

ULP = 24
SHAPES = [(5, 7), (3,), (), (2, 3), (4, 6)]
ZERO, STRIDED = 3, 4  # a tensor that begins at zero, one whose rows lie far apart
MATRICES, OTHERS = (0, ZERO), (1, 2)  # in a group each, to which STRIDED may come later
PS = (1.1, 1.25, 1.5, 1.75, 2.0, 3.0, 10.0)
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
GRADIENTS = ("ordinary", "missing", "zero", "huge", "strided", "sparse")
KERNELS = {
    "fused": {"fused": None, "compile": False},
    "eager": {"fused": False, "compile": False},
    "compiled": {"fused": False, "compile": True},
}
OTHER = {"fused": "eager", "eager": "fused", "compiled": "fused"}
CHANGES = {
    "lr": (0.0, 1e-3, 0.3),
    "weight_decay": (0.0, 0.01, 5.0),
    "clip": (None, 0.5),
    "trust": (None, 0.05, 0.5),
    "maximize": (False, True),
    "betas": ((0.9, 0.999), (0.0, 0.5)),
    "momentum": (0.0, 0.5, 0.9),
}
OPTIONS = {
    MirrorAdamW: {"lr": 0.01, "p": 1.1},
    MirrorDescent: {"lr": 0.01, "p": 1.1, "momentum": 0.9, "scale": "tensor", "trust": 0.5, "clip": 1.0},
}


def model(dtype):
    generator = torch.Generator().manual_seed(0)
    tensors = [0.3 * torch.randn(shape, generator=generator) for shape in SHAPES]
    tensors[ZERO].zero_()
    tensors[STRIDED] = tensors[STRIDED].t().contiguous().t()
    return nn.ParameterList([nn.Parameter(t.to(dtype)) for t in tensors])


def groups(model):
    return [{"params": [model[k] for k in places]} for places in (MATRICES, OTHERS)]


def gradient(param, kind, generator):
    g = (0.1 * torch.randn(param.shape, generator=generator)).to(param.dtype)
    if kind == "missing":
        return None
    if kind == "zero":
        return torch.zeros_like(param)
    if kind == "huge":
        return g * 1e12
    if kind == "strided" and g.ndim:
        return torch.stack([g, g], -1)[..., 0]
    if kind == "sparse" and g.ndim == 2:
        return (g * (torch.arange(len(g)) % 2)[:, None]).to_sparse(1)
    return g


def within(values, dtype):
    """Which numbers of the reference a type can hold, with some room for what they are made of."""
    return values.abs() < 1e-6 * torch.finfo(dtype).max


def behind(u, lam):
    lams = lam.expand_as(u).flatten().tolist()
    given = [firm(x, each) for x, each in zip(u.flatten().tolist(), lams, strict=True)]
    return torch.tensor(given, dtype=torch.float64).view(u.shape)


def dual_of(w, lam):
    """A u whose weight is w."""
    return torch.where(w == 0, 0.0, torch.where(w.abs() > 3 * lam, w, w.sign() * (lam + w.abs() / 1.5)))


class Rider:
    """A model under one kernel, with its reference."""

    def __init__(self, kind, dtype, kernel):
        self.kind, self.kernel, self.model = kind, kernel, model(dtype)
        self.optimizer = kind(groups(self.model), **OPTIONS[kind], **KERNELS[kernel])
        self.reference = [ReferenceTensor(param.detach()) for param in self.model]
        self.lams = [None] * len(SHAPES)  # the thresholds behind which weights are dual variables, under a target
        self.coarse = [0.0] * len(SHAPES)  # what somebody else's rounding may have cost since the last step
        self.lost = False  # whether a number has left the range of its type, as of huge gradients at another p

    def group_of(self, k):
        param = self.model[k]
        return next((g for g in self.optimizer.param_groups if any(p is param for p in g["params"])), None)

    def disturbed(self):
        """Others have touched the weights, or what the optimizer knows of them."""
        for k, param in enumerate(self.model):
            self.coarse[k] = max(self.coarse[k], torch.finfo(param.dtype).eps)
            self.written(self.reference[k], param.detach(), self.lams[k])

    def written(self, ours, w, lam):
        """Somebody else wrote the weights: entries that are no longer those of their u get u = ∇ψ(w)."""
        new = w.to(torch.float64, copy=True)
        if ours.u is not None and ours.p is not None:
            given = power(ours.u, 1 / (ours.p - 1)) if lam is None else behind(ours.u, lam)
            given = given.to(w.dtype).to(torch.float64)
            # λ is kept in float64 and compared in the type of u, so a u at λ may be on either side of it.
            rounding = 4 * torch.finfo(w.dtype).eps * new.abs() + (0.0 if lam is None else 3e-7 * lam)
            near = (given == new) | ((given - new).abs() <= rounding)
            ours.u = torch.where(near, ours.u, power(new, ours.p - 1) if lam is None else dual_of(new, lam))
        ours.w = new

    def step(self, kinds, seed):
        generator = torch.Generator().manual_seed(seed)
        for param, kind in zip(self.model, kinds, strict=True):
            param.grad = gradient(param, kind, generator)
        before = [param.detach().clone() for param in self.model]
        duals = [self.state(k).get("dual", before[k]).clone() for k in range(len(SHAPES))]
        self.optimizer.step()
        self.advance_reference()
        for k in range(len(SHAPES)):
            self.compare(k, before[k], duals[k])

    def state(self, k):
        return self.optimizer.state.get(self.model[k], {})

    def advance_reference(self):
        moving = [k for k, param in enumerate(self.model) if param.grad is not None and self.group_of(k) is not None]
        dense = {k: self.model[k].grad.to_dense().double() for k in moving}
        clipped = [dense[k].flatten() for k in moving if self.group_of(k)["clip"] is not None]
        length = float(torch.cat(clipped).norm()) if clipped else 0.0
        typical = self.typical
        for k in moving:
            group, ours = self.group_of(k), self.reference[k]
            if group["scale"] is not None or group["trust"] is not None:
                ours.measured(typical)
            g = dense[k] * (-1 if group["maximize"] else 1)
            if group["clip"] is not None:
                g = g * min(1.0, group["clip"] / (length + 1e-6))
            p = 2.0 if (k == ZERO and group["scale"]) or group["sparsity"] is not None else group["p"]
            (ours.adapt if self.kind is MirrorAdamW else ours.descend)(g, p, group)

    @property
    def typical(self):
        known = [r.w for k, r in enumerate(self.reference) if bool(r.w.any()) and self.group_of(k) is not None]
        return (sum(float(w.square().sum()) for w in known) / sum(w.numel() for w in known)) ** 0.5

    def compare(self, k, before, dual_before):
        param, state, ours = self.model[k].detach(), self.state(k), self.reference[k]
        if self.model[k].grad is None or ours.u is None:
            assert torch.equal(param, before), "a tensor without gradient has moved"
            return
        u = state.get("dual", param)
        eps = torch.finfo(u.dtype).eps
        slack = ULP * (eps * ours.rounding + self.coarse[k] * max(1.0, ours.p - 1) * ours.rounding)
        assert u.dtype in (torch.float32, torch.float64)
        known = self.in_range(k, u, ours.u, "u")
        near = (u.double() - ours.u).abs() <= slack + 1e-300
        assert bool(near[known].all()), (self.kernel, k, "u", u, ours.u)
        for name, value in (("exp_avg", ours.m), ("momentum_buffer", ours.m), ("exp_avg_sq", ours.v)):
            if name in state and (name != "momentum_buffer" or self.group_of(k)["momentum"]):
                one = name == "exp_avg_sq" and self.group_of(k)["moments"] == "tensor"
                assert state[name].dtype == (torch.float64 if one else u.dtype)
                known = self.in_range(k, state[name], value, name)
                size = value.abs() + float(value.abs().max() if value.numel() else 0)
                size = size if name == "exp_avg_sq" else size + ours.terms
                near = (state[name].double() - value).abs() <= ULP * (eps + self.coarse[k]) * size + 1e-40
                assert bool(near[known].all()), (self.kernel, k, name, state[name], value)
        if self.group_of(k)["sparsity"] is not None:
            self.compare_behind_the_threshold(k)
        elif "dual" in state:
            given = Lp(ours.p).inverse_map(u.double())
            known = self.in_range(k, param, given, "w")
            wide = torch.finfo(param.dtype)
            off = (param.double() - given).abs()
            # Powers that are not multiplied out are exp2(log2|u|/(p − 1)), whose error grows with the logarithm; 10 is
            # taken where p − 1 differs from 0.1 by rounding alone.
            logarithm = given.abs().log2().abs().nan_to_num(0, 0)
            units = (4 + 2 / (ours.p - 1) + logarithm) * max(eps, wide.eps) + 2e-14 * logarithm
            near = off <= units * given.abs() + wide.tiny
            still = (u == dual_before.to(u.dtype)) & (param == before)
            assert bool((near | still)[known].all()), (self.kernel, k, "w", param, given)
            if self.coarse[k] == 0 and u.dtype == dual_before.dtype:
                same = u == dual_before
                assert torch.equal(param[same], before[same]), "u has not moved, and w has"
        # The reference goes on from here.
        ours.w, ours.u = param.double().clone(), u.double().clone()
        ours.m = state.get("exp_avg", state.get("momentum_buffer", ours.m)).double().clone()
        ours.v = state.get("exp_avg_sq", ours.v).double().clone()
        self.coarse[k] = 0.0
        if self.group_of(k)["sparsity"] is None:
            self.lams[k] = None

    def in_range(self, k, shown, value, name):
        """Which entries the type can hold; the others must have become huge, or not finite."""
        known = within(value, shown.dtype)
        gone = ~shown.isfinite() | ~within(shown, shown.dtype)
        assert bool((known | gone).all()), (self.kernel, k, name, shown, value)
        self.lost |= not bool(known.all())
        return known

    def compare_behind_the_threshold(self, k):
        """The weights are those of the dual variables as they are, of all that moved together."""
        group = self.group_of(k)
        moved = [j for j in range(len(SHAPES)) if self.group_of(j) is group and self.model[j].grad is not None]
        if group["lr"] == 0:
            return
        duals, share = [self.state(j)["dual"] for j in moved], group["sparsity_given"]
        behind = dict(zip(moved, reference_threshold(duals, share, group["scope"]), strict=True))[k]
        param = self.model[k].detach()
        near = (param.double() - behind).abs() <= 4 * torch.finfo(param.dtype).eps * behind.abs()
        assert bool(near.all()), (self.kernel, k, "w", param, behind)
        level = self.state(k)["threshold"][0].clone()
        if group["scope"] == "row":
            sizes = self.state(k)["dual"].abs().sort(dim=1).values.double()
            count = round(float(level) * sizes.shape[1])
            level = sizes[:, count - 1 : count] if count else torch.zeros(len(sizes), 1, dtype=torch.float64)
        self.lams[k] = level


class Machine(RuleBasedStateMachine):
    kernels: tuple[str, ...] = ("fused", "eager")

    @initialize(kind=st.sampled_from([MirrorAdamW, MirrorDescent]), dtype=st.sampled_from(DTYPES))
    def begin(self, kind, dtype):
        self.kind, self.threads = kind, getattr(self, "threads", torch.get_num_threads())
        self.riders = [Rider(kind, dtype, kernel) for kernel in self.kernels]
        self.late, self.seed = False, 0

    def each(self, act):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for rider in self.riders:
                act(rider)
        if any(rider.lost for rider in self.riders):
            assert all(rider.lost for rider in self.riders), "a kernel has left the range of its type, another has not"
            self.begin(self.kind, self.riders[0].model[0].dtype)

    @rule(
        kinds=st.lists(st.sampled_from(GRADIENTS), min_size=len(SHAPES), max_size=len(SHAPES)), seed=st.integers(0, 99)
    )
    def step(self, kinds, seed):
        self.each(lambda rider: rider.step(kinds, seed))
        for ours, theirs in zip(self.riders[0].model, self.riders[-1].model, strict=True):
            assert ours.dtype == theirs.dtype
            assert bool(torch.isfinite(ours).eq(torch.isfinite(theirs)).all())

    def and_step(self):
        """What was done shows at the next step, which follows at once."""
        self.seed += 1
        self.step(["ordinary"] * len(SHAPES), 1000 + self.seed)

    @rule(data=st.data())
    def change_options(self, data):
        chosen = {name: data.draw(st.sampled_from(values), label=name) for name, values in CHANGES.items()}
        names = data.draw(st.lists(st.sampled_from(sorted(CHANGES)), min_size=1, max_size=4), label="changed")

        def act(rider):
            for group in rider.optimizer.param_groups:
                group.update({name: chosen[name] for name in names if name in group})

        self.each(act)
        self.and_step()

    @rule(p=st.sampled_from(PS))
    def change_p(self, p):
        def act(rider):
            for group in rider.optimizer.param_groups:
                group.update(p=p, sparsity=None)
            rider.disturbed()
            for ours in rider.reference:
                ours.u = None

        self.each(act)
        self.and_step()

    @precondition(lambda self: self.kind is MirrorAdamW)
    @rule(moments=st.sampled_from(["entry", "tensor", "matrix"]))
    def change_the_moments(self, moments):
        """Those that the new ones have no use for are gone; those of entries or tensors begin anew after matrices."""

        def act(rider):
            for group in rider.optimizer.param_groups:
                before = group["moments"]
                group["moments"] = "entry" if moments == "matrix" and group["params"][0].ndim < 2 else moments
                for param in group["params"] if before == "matrix" != group["moments"] else ():
                    ours = next(r for r, q in zip(rider.reference, rider.model, strict=True) if q is param)
                    ours.t, ours.m, ours.v = 0, torch.zeros_like(ours.m), torch.zeros_like(ours.v)
                for ours in rider.reference if group["moments"] == "tensor" else ():
                    ours.v = ours.v.mean()

        self.each(act)
        self.and_step()

    @rule(share=st.sampled_from([0.0, 0.3, 0.8]), scope=st.sampled_from(["global", "matrix", "row"]))
    def aim_at_a_share(self, share, scope):
        """Or change it on the way."""

        def act(rider):
            for group in rider.optimizer.param_groups:
                if group["sparsity"] is None:
                    group.update(p=2.0, sparsity=0.9, clip=None)
                    rider.disturbed()
                    for k, ours in enumerate(rider.reference):
                        if rider.group_of(k) is group:
                            ours.u = rider.lams[k] = None
                group["scope"] = scope if group["params"][0].ndim > 1 else "matrix"
            rider.optimizer.set_sparsity(share)

        self.each(act)
        self.and_step()

    @rule()
    def replace_the_groups(self):
        """And change them: an old dict says nothing any more."""

        def act(rider):
            rider.optimizer.param_groups = [dict(group) for group in rider.optimizer.param_groups]
            for group in rider.optimizer.param_groups:
                group["weight_decay"] = 5.0 if group["weight_decay"] < 5 else 0.0

        self.each(act)
        self.and_step()

    @rule(dtype=st.sampled_from(DTYPES))
    def change_the_type(self, dtype):
        def act(rider):
            old = [torch.finfo(param.dtype).eps for param in rider.model]
            rider.model.to(dtype)
            rider.disturbed()
            rider.coarse = [max(a, b) for a, b in zip(rider.coarse, old, strict=True)]

        self.each(act)
        self.and_step()

    @rule(clone=st.sampled_from(["deepcopy", "pickle"]))
    def go_on_with_a_copy(self, clone):
        def act(rider):
            pair = rider.model, rider.optimizer
            rider.model, rider.optimizer = (
                copy.deepcopy(pair) if clone == "deepcopy" else pickle.loads(pickle.dumps(pair))
            )

        self.each(act)
        self.and_step()

    @rule(dtype=st.sampled_from(DTYPES), swap=st.booleans())
    def resume_from_a_checkpoint(self, dtype, swap):
        """In a new optimizer, with weights of any type, by either kernel."""
        if self.late:
            return
        for rider in self.riders:
            old = [torch.finfo(param.dtype).eps for param in rider.model]
            saved = copy.deepcopy(rider.optimizer.state_dict())
            rider.model = copy.deepcopy(rider.model).to(dtype)
            rider.optimizer = self.kind(groups(rider.model), **OPTIONS[self.kind])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                rider.optimizer.load_state_dict(saved)
            for group in rider.optimizer.param_groups:
                group.update(KERNELS[OTHER[rider.kernel] if swap else rider.kernel])
            rider.disturbed()
            rider.coarse = [max(a, b) for a, b in zip(rider.coarse, old, strict=True)]
        self.and_step()

    @precondition(lambda self: not self.late)
    @rule(p=st.sampled_from(PS))
    def add_a_group(self, p):
        self.late = True
        self.each(lambda r: r.optimizer.add_param_group({"params": [r.model[len(SHAPES) - 1]], "p": p}))
        self.and_step()

    @rule(factor=st.sampled_from([0.5, 0.999]), hidden=st.booleans())
    def write_the_weights(self, factor, hidden):
        def act(rider):
            for param in rider.model:
                if hidden:
                    param.data.mul_(factor)
                else:
                    with torch.no_grad():
                        param.mul_(factor)
            if hidden:
                rider.optimizer.resync()
            rider.disturbed()

        self.each(act)
        self.and_step()

    @rule()
    def swap_the_storage(self):
        def act(rider):
            for param in rider.model:
                param.data = param.data.clone() * 0.9
            rider.disturbed()

        self.each(act)
        self.and_step()

    @rule(factor=st.sampled_from([1.0, 0.999]))
    def take_a_step_of_length_zero(self, factor):
        """No u moves, so no weight does: least of all one that somebody wrote, which is that of a rounded u."""

        def act(rider):
            with torch.no_grad():
                for param in rider.model:
                    param.mul_(factor)
            rider.disturbed()
            groups = rider.optimizer.param_groups
            lengths, before = [group["lr"] for group in groups], [param.detach().clone() for param in rider.model]
            for group in groups:
                group["lr"] = 0.0
            rider.step(["ordinary"] * len(SHAPES), 7)
            for group, lr in zip(groups, lengths, strict=True):
                group["lr"] = lr
            for param, known in zip(rider.model, before, strict=True):
                assert torch.equal(param.detach(), known), "u has not moved, and w has"

        self.each(act)

    @rule(value=st.sampled_from([math.nan, math.inf, -math.inf]), k=st.integers(0, 3), refuse=st.booleans())
    def meet_a_gradient_that_is_not_finite(self, value, k, refuse):
        """Either nothing moves, or every u but one as if that one had no gradient, to which alone it tells.

        So does w, but under a target, where all have one threshold, and a step of length zero leaves it alone. A
        tensor of which one number is kept, or whose moment is that of a matrix, is told as a whole.
        """
        marks = []

        def act(rider):
            moved = []
            for entry in (value, 0.0):
                weights, optimizer = copy.deepcopy((rider.model, rider.optimizer))
                generator = torch.Generator().manual_seed(3)
                for param in weights:
                    param.grad = gradient(param, "ordinary", generator)
                weights[k].grad.view(-1)[-1] = entry
                for group in optimizer.param_groups:
                    group.update(error_if_nonfinite=refuse, clip=None)
                before = [param.detach().clone() for param in weights]
                if refuse and entry != 0:
                    state = copy.deepcopy(optimizer.state_dict()["state"])
                    with pytest.raises(RuntimeError, match="NaN or Inf"):
                        optimizer.step()
                    assert all(torch.equal(a, b.detach()) for a, b in zip(before, weights, strict=True))
                    after = optimizer.state_dict()["state"]
                    assert state.keys() == after.keys()
                    assert all(torch.equal(state[j][n], after[j][n]) for j in state for n in state[j])
                    return
                optimizer.step()
                whole = rider.group_of(k)["moments"] if self.kind is MirrorAdamW else "entry"
                moved.append([optimizer.state[param].get("dual", param.detach()) for param in weights])
            for place, (odd, even) in enumerate(zip(*moved, strict=True)):
                same = torch.ones(odd.numel(), dtype=torch.bool)
                same[-1 if whole == "entry" else slice(None)] = place != k
                assert torch.equal(odd.reshape(-1)[same], even.reshape(-1)[same])
            last = moved[0][k].reshape(-1)[-1].double()
            assert bool(last.isnan()) or not math.isnan(value)
            marks.append((bool(last.isnan()), bool(last.isinf()), bool(last < 0)))

        self.each(act)
        assert len(set(marks)) <= 1, "kernels differ in what is not finite"

    @rule(threads=st.integers(1, 3))
    def change_the_threads(self, threads):
        torch.set_num_threads(threads)
        self.and_step()

    def teardown(self):
        torch.set_num_threads(self.threads if hasattr(self, "threads") else 1)


class WithCompiler(Machine):
    kernels = tuple(KERNELS)


def run(examples, steps, machine=Machine):
    machine = machine.TestCase
    machine.settings = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    machine().runTest()


def test_whatever_is_done_between_steps_every_weight_is_that_of_the_reference():
    pytest.importorskip("numba")
    run(examples=20, steps=15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moments_of_each_kind_come_after_each_other(dtype):
    """Which few random runs try in this order."""
    machine = Machine.__new__(Machine)
    machine.begin(kind=MirrorAdamW, dtype=dtype)
    machine.change_the_moments(moments="tensor")
    machine.step(kinds=["ordinary", "missing", "huge", "zero", "ordinary"], seed=3)
    machine.change_the_moments(moments="entry")
    machine.change_the_moments(moments="matrix")
    machine.meet_a_gradient_that_is_not_finite(value=math.nan, k=0, refuse=False)
    machine.aim_at_a_share(share=0.3, scope="row")
    machine.write_the_weights(factor=0.5, hidden=True)
    machine.resume_from_a_checkpoint(dtype=torch.bfloat16, swap=True)
    machine.change_the_moments(moments="tensor")
    machine.change_the_type(dtype=torch.float64)
    machine.change_the_moments(moments="matrix")
    machine.change_p(p=1.1)
    machine.take_a_step_of_length_zero(factor=0.999)
    machine.go_on_with_a_copy(clone="pickle")
    machine.add_a_group(p=1.5)
    machine.step(kinds=["sparse", "missing", "huge", "zero", "sparse"], seed=7)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_same_for_longer():
    pytest.importorskip("numba")
    run(examples=400, steps=40)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_same_with_compiled_steps():
    pytest.importorskip("numba")
    run(examples=4, steps=12, machine=WithCompiler)

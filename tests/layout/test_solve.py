"""The cut finds the cheapest labels: compared with trying all of them on random problems."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from litz_layout.frames import FIRST, LAST
from litz_layout.problem import Copy, Demand, Problem, Read, Variable, energy
from litz_layout.solve import solve


def make_problem(seed: int) -> Problem:
    rng = random.Random(seed)
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(f"x{at}") for at in range(8)]
    variables = tuple(
        Variable(node, rng.choice((FIRST, LAST)), rng.random() < 0.25, (rng.randint(0, 9), rng.randint(0, 9)))
        for node in nodes
    )
    copies = []
    for at in range(len(variables)):
        others = [other for other in range(len(variables)) if other != at and rng.random() < 0.3]
        demands = [Demand(nodes[other], other, None, "") for other in others]
        if rng.random() < 0.3:
            demands.append(Demand(nodes[at], None, rng.choice((FIRST, LAST)), ""))
        if demands:
            copies.append(Copy(nodes[at], at, rng.randint(1, 9), tuple(demands)))
    pairs = rng.sample(list(itertools.permutations(range(len(variables)), 2)), 5)
    reads = [Read(nodes[a], nodes[b], a, b, rng.randint(1, 5)) for a, b in pairs]
    return Problem(variables, tuple(copies), tuple(reads), {}, {})


@pytest.mark.parametrize("seed", range(40))
def test_as_cheap_as_the_cheapest_of_all(seed: int) -> None:
    problem = make_problem(seed)
    choices = [(v.traced,) if v.fixed else (FIRST, LAST) for v in problem.variables]
    least = min(energy(problem, labels) for labels in itertools.product(*choices))
    labels = solve(problem)
    assert all(label == v.traced for label, v in zip(labels, problem.variables, strict=True) if v.fixed)
    assert energy(problem, labels) == least


def test_of_equal_plans_the_traced_one() -> None:
    graph = torch.fx.Graph()
    variables = tuple(Variable(graph.placeholder(f"x{label}"), label, us=(3.0, 3.0)) for label in (FIRST, LAST))
    assert solve(Problem(variables, (), (), {}, {})) == (FIRST, LAST)

"""Where a network's residual blocks normalise, and in which precision it computes, read from the graph of one forward pass.

The graph is the one that autograd keeps from a loss to the parameters. It is only looked at: nothing of the model is called,
wrapped or changed, and the graph is still there after the backward pass. What `torch.compile` fused, or a checkpoint hides, is
not in it.

A residual addition adds to a tensor what a branch with weights made of it. With n(.) for a normalisation:

- x + f(n(x)), x + n(f(x)): the branch normalises, nothing on the way from one addition to the next does: *pre-norm*;
- n(x + f(x)): the sum is normalised before the next addition takes it: *post-norm*;
- no normalisation in either place: *none*.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

Node = Any
"""A node of autograd's graph: `torch.autograd.graph.Node` has what is read here only in part."""

MAX_NODES = 10_000
"""Larger graphs, such as those of unrolled recurrences, are left unread: reading takes about 5 µs a node."""
MAX_LOOKS = 100_000
"""Additions whose branches overlap, as in recurrences, go through the same nodes again and again: no more than this, some 0.1 s."""
_AGREE = 0.8
"""Share of the residual additions that must be of one kind for the model to be called so."""
_SEEN = 0.9
"""Share of the model's trainable parameters that the graph must show before it can be said to have no residual blocks."""
_NORM_NODES = 16
"""Most nodes that a norm takes when it is written out."""
_LEAF = "torch::autograd::AccumulateGrad"
_NORMALISES = re.compile("(Layer|Batch|Group|Instance|R[Mm][Ss])Norm")
_MULTIPLIES = ("AddmmBackward", "MmBackward", "BmmBackward", "BaddbmmBackward", "ConvolutionBackward", "LinearBackward")


class Graph:
    """What `roots` were computed from, node by node; empty if there is too much of it."""

    def __init__(self, roots: Sequence[torch.Tensor]) -> None:
        self.parents: dict[Node, list[Node]] = {}
        """What each node was made of."""
        self.rank: dict[Node, int] = {}
        """All nodes in the order of computation: what a node was made of comes before it."""
        stack: list[tuple[Node, bool]] = [(root.grad_fn, False) for root in roots if root.grad_fn is not None]
        while stack:
            node, done = stack.pop()
            if done:
                self.rank[node] = len(self.rank)
            elif node not in self.parents:
                if len(self.parents) > MAX_NODES:
                    self.parents, self.rank = {}, {}
                    break
                parents = [parent for parent, _ in node.next_functions if parent is not None]
                self.parents[node] = parents
                stack.append((node, True))
                stack.extend((parent, False) for parent in parents if parent not in self.parents)
        self.names = {node: str(node.name()) for node in self.rank}
        self.parameters: dict[Node, torch.Tensor] = {}
        """The nodes that are a parameter, if need be transposed, converted or moved by a constant."""
        for node, name in self.names.items():
            parents = self.parents[node]
            if name == _LEAF:
                self.parameters[node] = node.variable
            elif len(parents) == 1 and parents[0] in self.parameters:
                self.parameters[node] = self.parameters[parents[0]]

    def inputs(self, node: Node) -> list[Node]:
        """What a node was made of, parameters apart."""
        return [p for p in self.parents[node] if p not in self.parameters]

    def is_compiled(self) -> bool:
        """Whether parts of it were compiled into one node."""
        return any("Compiled" in name for name in self.names.values())

    def is_opaque(self) -> bool:
        """Whether parts of it cannot be looked into, because they were compiled or are recomputed, or there is too much of it."""
        recomputed = any("CheckpointFunction" in name for name in self.names.values())
        return not self.names or recomputed or self.is_compiled()


def norm_order(graph: Graph, model: torch.nn.Module) -> str | None:
    """The value of `contract.TAG_NORM_ORDER`; None where the graph does not show it."""
    if graph.is_opaque():
        return None
    norms = _norm_nodes(graph, model)
    additions = _residual_additions(graph, norms)
    if additions is None:
        return None
    if not additions:
        trained = {id(p) for p in model.parameters() if p.requires_grad}
        seen = trained & {id(p) for p in graph.parameters.values()}
        return "no-residuals" if len(seen) >= _SEEN * len(trained) else None
    kinds = Counter(_kind(graph, node, additions, norms) for node in additions)
    kind, count = kinds.most_common(1)[0]
    return kind if count >= _AGREE * len(additions) else "mixed"


def compute_dtype(graph: Graph) -> str | None:
    """The type of number that most matrix products and convolutions gave: `bfloat16` under autocast; None if there is none."""
    found: Counter[torch.dtype] = Counter()
    for node, name in graph.names.items():
        if name.startswith(_MULTIPLIES) and (given := getattr(node, "_input_metadata", ())):
            found[given[0].dtype] += 1
    return str(found.most_common(1)[0][0]).removeprefix("torch.") if found else None


def is_norm(module: torch.nn.Module) -> bool:
    """Whether its class is called a norm."""
    name = type(module).__name__.lower()
    return "norm" in name and "normal" not in name


def _norm_nodes(graph: Graph, model: torch.nn.Module) -> set[Node]:
    """The nodes that normalise: PyTorch's own, and those that apply the parameters of a module that is called a norm."""
    scales = {id(p) for m in model.modules() if is_norm(m) for p in m.parameters(recurse=False)}
    scaling = {node for node, parameter in graph.parameters.items() if id(parameter) in scales}
    return {
        node
        for node, name in graph.names.items()
        if node not in scaling and (_NORMALISES.search(name) or not scaling.isdisjoint(graph.parents[node]))
    }


def _residual_additions(graph: Graph, norms: set[Node]) -> dict[Node, tuple[Node, bool]] | None:
    """For each residual addition: what is added to, and whether the branch normalises. None where it takes too long to tell."""
    found = {}
    looks = 0
    for node, name in graph.names.items():
        parents = graph.parents[node]
        if not name.startswith("AddBackward") or len(parents) != 2 or parents[0] is parents[1]:
            continue
        skip, end = sorted(parents, key=graph.rank.__getitem__)
        branch, looked = _between(graph, skip, end)
        looks += looked
        if looks > MAX_LOOKS:
            return None
        if branch is not None and any(graph.parameters[n].dim() >= 2 for n in branch if n in graph.parameters):
            found[node] = (skip, any(n in norms and graph.rank[n] > graph.rank[skip] for n in branch))
    return found


def _between(graph: Graph, first: Node, last: Node) -> tuple[set[Node] | None, int]:
    """All that `last` was made of from `first` on, with the parameters used there; None if `first` is not among it.

    And how many nodes were looked at.
    """
    lowest, seen, stack, reached = graph.rank[first], {last}, [last], False
    while stack:
        for parent in graph.parents[stack.pop()]:
            if parent is first:
                reached = True
            elif parent not in seen:
                seen.add(parent)
                if graph.rank[parent] > lowest:
                    stack.append(parent)
    return (seen if reached else None), len(seen)


def _kind(graph: Graph, node: Node, additions: Mapping[Node, tuple[Node, bool]], norms: set[Node]) -> str:
    skip, in_branch = additions[node]
    before, on_the_way = _origin(skip, graph, additions, norms)
    if before is None and not in_branch:  # the first block: what becomes of its sum?
        after = norms.union(s for s, _ in additions.values())
        on_the_way = (node, True) in [_origin(n, graph, additions, norms) for n in after]
    if before is not None and in_branch and on_the_way:
        return "mixed"
    if in_branch:
        return "pre-norm"
    return "post-norm" if on_the_way else "none"


def _origin(node: Node, graph: Graph, additions: Mapping[Node, Any], norms: set[Node]) -> tuple[Node | None, bool]:
    """The residual addition whose sum this is, but for norms and what has no weights; and whether norms were met on the way."""
    met = False
    while node not in additions:
        if node in norms:
            met, came_from = True, _input_of_norm(node, graph, additions)
        else:
            came_from = graph.parents[node][0] if len(graph.parents[node]) == 1 else None
        if came_from is None or came_from in graph.parameters:
            return None, met
        node = came_from
    return node, met


def _input_of_norm(node: Node, graph: Graph, additions: Mapping[Node, Any]) -> Node | None:
    """What a norm that is one node takes, or the residual addition where all ways meet that lead into one that is written out."""
    ways = set(graph.inputs(node))
    if _NORMALISES.search(graph.names[node]):
        return ways.pop() if len(ways) == 1 else None
    for _ in range(_NORM_NODES):
        last = max(ways, key=graph.rank.__getitem__, default=None)
        if last is None or last in additions:
            return last if len(ways) == 1 else None
        ways.remove(last)
        ways.update(graph.inputs(last))
    return None

"""Reads two facts from the autograd graph of a loss: where residual blocks normalise, and the dtype in which the network computes.

The graph is only inspected. Operations that `torch.compile` fused or that activation checkpointing hides are missing from it. A
residual block adds its input x to the output of a branch f that has weights. With a normalisation n, it is one of:

- *pre-norm*, x + f(n(x)) or x + n(f(x)): the normalisation is inside the branch, and there is none between two additions;
- *post-norm*, n(x + f(x)): the sum is normalised before the next addition;
- *none*: there is no normalisation in either place.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

GraphNode = Any
"""A node of the autograd graph, typed Any because the type stubs of `torch.autograd.graph.Node` lack attributes that we use."""

MAX_GRAPH_NODES = 10_000
"""Maximum number of nodes in an autograd graph that is analysed. Graphs with more nodes, such as those of unrolled recurrent
networks, are skipped, because reading a node takes about 5 µs."""
MAX_NODE_VISITS = 100_000
"""Maximum node visits per search (about 0.1 s). Overlapping branches, as in recurrent networks, are visited repeatedly."""
_MIN_MAJORITY_FRACTION = 0.8
"""Minimum fraction of the model's residual blocks that must be of the most frequent kind (pre-norm, post-norm, none). If no
kind reaches this fraction, the model's kind is "mixed"."""
_MIN_PARAMETER_COVERAGE = 0.9
"""Minimum fraction of the trainable parameters in the graph to conclude that the model has no residual blocks."""
_MAX_NODES_PER_NORM = 16
_LEAF_NODE_NAME = "torch::autograd::AccumulateGrad"
_NORM_NODE_NAMES = re.compile("(Layer|Batch|Group|Instance|R[Mm][Ss])Norm")
_MATRIX_PRODUCTS = ("AddmmBackward", "MmBackward", "BmmBackward", "BaddbmmBackward", "ConvolutionBackward", "LinearBackward")


class AutogradGraph:
    """The autograd graph of the computation of `roots`; empty if it has too many nodes."""

    def __init__(self, roots: Sequence[torch.Tensor]) -> None:
        self.parents: dict[GraphNode, list[GraphNode]] = {}
        """Nodes whose output is an input of the given node."""
        self.rank: dict[GraphNode, int] = {}
        """Position of each node in the order of computation: a node comes after its inputs."""
        stack: list[tuple[GraphNode, bool]] = [(root.grad_fn, False) for root in roots if root.grad_fn is not None]
        while stack:
            node, done = stack.pop()
            if done:
                self.rank[node] = len(self.rank)
            elif node not in self.parents:
                if len(self.parents) > MAX_GRAPH_NODES:
                    self.parents, self.rank = {}, {}
                    break
                parents = [parent for parent, _ in node.next_functions if parent is not None]
                self.parents[node] = parents
                stack.append((node, True))
                stack.extend((parent, False) for parent in parents if parent not in self.parents)
        self.names = {node: str(node.name()) for node in self.rank}
        self.parameters: dict[GraphNode, torch.Tensor] = {}
        """Parameter that a node represents; the parameter may be transposed, converted or shifted by a constant."""
        for node, name in self.names.items():
            parents = self.parents[node]
            if name == _LEAF_NODE_NAME:
                self.parameters[node] = node.variable
            elif len(parents) == 1 and parents[0] in self.parameters:
                self.parameters[node] = self.parameters[parents[0]]

    def inputs(self, node: GraphNode) -> list[GraphNode]:
        return [p for p in self.parents[node] if p not in self.parameters]

    def is_compiled(self) -> bool:
        return any("Compiled" in name for name in self.names.values())

    def is_incomplete(self) -> bool:
        """Return whether nodes are missing: the graph is too large, or parts of it are compiled or will be recomputed."""
        is_recomputed = any("CheckpointFunction" in name for name in self.names.values())
        return not self.names or is_recomputed or self.is_compiled()


def norm_order(graph: AutogradGraph, model: torch.nn.Module) -> str | None:
    """Return the value of `contract.TAG_NORM_ORDER`; None if the graph does not show where residual blocks apply
    normalisation."""
    if graph.is_incomplete():
        return None
    norms = _norm_nodes(graph, model)
    additions = _residual_additions(graph, norms)
    if additions is None:
        return None
    if not additions:
        trained_ids = {id(p) for p in model.parameters() if p.requires_grad}
        trained_ids_in_graph = trained_ids & {id(p) for p in graph.parameters.values()}
        return "no-residuals" if len(trained_ids_in_graph) >= _MIN_PARAMETER_COVERAGE * len(trained_ids) else None
    kinds = Counter(_block_norm_order(graph, node, additions, norms) for node in additions)
    kind, count = kinds.most_common(1)[0]
    # With frozen layers, as beside an adapter, the graph does not show where a normalisation is applied.
    if kind == "none" and any(
        not p.requires_grad for m in model.modules() if is_norm_layer(m) for p in m.parameters(recurse=False)
    ):
        return None
    return kind if count >= _MIN_MAJORITY_FRACTION * len(additions) else "mixed"


def compute_dtype(graph: AutogradGraph) -> str | None:
    """Return the dtype of most matrix products and convolutions, such as `bfloat16` under autocast."""
    dtypes: Counter[torch.dtype] = Counter()
    for node, name in graph.names.items():
        if name.startswith(_MATRIX_PRODUCTS) and (inputs := getattr(node, "_input_metadata", ())):
            dtypes[inputs[0].dtype] += 1
    return str(dtypes.most_common(1)[0][0]).removeprefix("torch.") if dtypes else None


def is_norm_layer(module: torch.nn.Module) -> bool:
    name = type(module).__name__.lower()
    return "norm" in name and "normal" not in name


def _norm_nodes(graph: AutogradGraph, model: torch.nn.Module) -> set[GraphNode]:
    norm_parameter_ids = {id(p) for m in model.modules() if is_norm_layer(m) for p in m.parameters(recurse=False)}
    norm_parameter_nodes = {node for node, parameter in graph.parameters.items() if id(parameter) in norm_parameter_ids}
    return {
        node
        for node, name in graph.names.items()
        if node not in norm_parameter_nodes
        and (_NORM_NODE_NAMES.search(name) or not norm_parameter_nodes.isdisjoint(graph.parents[node]))
    }


def _residual_additions(graph: AutogradGraph, norms: set[GraphNode]) -> dict[GraphNode, tuple[GraphNode, bool]] | None:
    """Return each addition's skip input and whether its branch normalises; None beyond MAX_NODE_VISITS."""
    additions = {}
    visits = 0
    for node, name in graph.names.items():
        parents = graph.parents[node]
        if not name.startswith("AddBackward") or len(parents) != 2 or parents[0] is parents[1]:
            continue
        skip, end = sorted(parents, key=graph.rank.__getitem__)
        branch, branch_visits = _nodes_between(graph, skip, end)
        visits += branch_visits
        if visits > MAX_NODE_VISITS:
            return None
        if branch is not None and any(graph.parameters[n].dim() >= 2 for n in branch if n in graph.parameters):
            additions[node] = (skip, any(n in norms and graph.rank[n] > graph.rank[skip] for n in branch))
    return additions


def _nodes_between(graph: AutogradGraph, first: GraphNode, last: GraphNode) -> tuple[set[GraphNode] | None, int]:
    """Return (nodes between `first` and `last` with their parameters, or None without a path; node visits)."""
    lowest, seen, stack, has_path = graph.rank[first], {last}, [last], False
    while stack:
        for parent in graph.parents[stack.pop()]:
            if parent is first:
                has_path = True
            elif parent not in seen:
                seen.add(parent)
                if graph.rank[parent] > lowest:
                    stack.append(parent)
    return (seen if has_path else None), len(seen)


def _block_norm_order(
    graph: AutogradGraph, node: GraphNode, additions: Mapping[GraphNode, tuple[GraphNode, bool]], norms: set[GraphNode]
) -> str:
    skip, in_branch = additions[node]
    earlier_addition, has_norm_between = _trace_to_addition(skip, graph, additions, norms)
    if earlier_addition is None and not in_branch:  # for the model's first residual block, check which nodes use its sum
        later_nodes = norms.union(s for s, _ in additions.values())
        has_norm_between = (node, True) in [_trace_to_addition(n, graph, additions, norms) for n in later_nodes]
    if earlier_addition is not None and in_branch and has_norm_between:
        return "mixed"
    if in_branch:
        return "pre-norm"
    return "post-norm" if has_norm_between else "none"


def _trace_to_addition(
    node: GraphNode, graph: AutogradGraph, additions: Mapping[GraphNode, Any], norms: set[GraphNode]
) -> tuple[GraphNode | None, bool]:
    """Go back to a residual addition, past normalisations but not past weights. Return the addition, and whether a
    normalisation was passed."""
    met_norm = False
    while node not in additions:
        if node in norms:
            met_norm, input_node = True, _input_of_norm(node, graph, additions)
        else:
            input_node = graph.parents[node][0] if len(graph.parents[node]) == 1 else None
        if input_node is None or input_node in graph.parameters:
            return None, met_norm
        node = input_node
    return node, met_norm


def _input_of_norm(node: GraphNode, graph: AutogradGraph, additions: Mapping[GraphNode, Any]) -> GraphNode | None:
    """If the normalisation consists of elementary operations, return the residual addition before them."""
    input_nodes = set(graph.inputs(node))
    if _NORM_NODE_NAMES.search(graph.names[node]):
        return input_nodes.pop() if len(input_nodes) == 1 else None
    for _ in range(_MAX_NODES_PER_NORM):
        latest_node = max(input_nodes, key=graph.rank.__getitem__, default=None)
        if latest_node is None or latest_node in additions:
            return latest_node if len(input_nodes) == 1 else None
        input_nodes.remove(latest_node)
        input_nodes.update(graph.inputs(latest_node))
    return None

"""Finds the operation in the autograd graph of a loss at which the first non-finite result or derivative appears.

Before the backward pass, the graph still holds saved tensors: `first_forward_fault` finds the first that is not finite or leads
to a non-finite result. Afterwards, `operations_between` lists the operations between the last parameter with a non-finite
gradient and the next with a finite one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

FactsByName = dict[str, Any]

MAX_GRAPH_NODES = 20_000
MAX_LISTED_OPERATIONS = 24
_COPYING_OPERATIONS = ("T", "Transpose", "ToCopy", "View", "UnsafeView", "Expand", "Permute", "Clone", "Alias", "Squeeze")
"""Operations that only rearrange or copy values, so their result is finite exactly if their input is finite."""
_FINITENESS_KEEPING_OPERATIONS = ("Relu", "Gelu", "LeakyRelu", "Hardtanh", "MaxPool2DWithIndices", "Dropout", "NativeDropout")
"""Operations that never create a non-finite value, but pass a non-finite input on to their output."""
_OUTPUT_TENSOR_NAMES = ("result", "output", "result0", "result1", "result2", "out")


class AutogradGraph:
    """The operations that compute a loss, in the order of the forward pass."""

    def __init__(self, loss: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> None:
        self._names = {id(p): name for name, p in parameters.items()}
        self.nodes = sorted(_reachable_nodes(loss.grad_fn), key=lambda node: node._sequence_nr())
        self._owned = [[self._names[id(p)] for p in _leaf_parameters(node) if id(p) in self._names] for node in self.nodes]
        self.is_of_model = any(self._owned)
        """Whether the loss depends on a given parameter; a loss of another model in the same process does not."""

    def first_forward_fault(self) -> FactsByName | None:
        """Return facts about the first operation with a non-finite result; None if all are finite or the tensors were freed."""
        for i, node in enumerate(self.nodes):
            if (fault := _non_finite_result_facts(node)) is not None:
                return fault | self._neighbouring_parameters(i)
        return None

    def operations_between(self, bad: Collection[str]) -> FactsByName:
        """Return the operations in which a finite gradient became non-finite (in parameters `bad`), else those that compute the
        loss."""
        nodes_of_bad = [i for i, own in enumerate(self._owned) if any(name in bad for name in own)]
        last_bad = nodes_of_bad[-1] if nodes_of_bad else max((i for i, own in enumerate(self._owned) if own), default=-1)
        nodes_of_finite = [i for i, own in enumerate(self._owned) if i > last_bad and own]
        end_node = nodes_of_finite[0] if nodes_of_finite else len(self.nodes)
        between = [n for n in self.nodes[max(last_bad, 0) : end_node] if _short_operation_name(n) not in _COPYING_OPERATIONS]
        return {
            "operations": list(dict.fromkeys(map(_operation_name_with_exponent, between)))[-MAX_LISTED_OPERATIONS:],
            "custom": [_short_operation_name(node) for node in between if _is_custom_function(node)][:4],
            "after": self._owned[last_bad][0] if last_bad >= 0 else None,
            "before": self._owned[end_node][0] if nodes_of_finite else None,
        }

    def _neighbouring_parameters(self, i: int) -> FactsByName:
        preceding = [own[0] for own in self._owned[: i + 1] if own]
        following = [own[0] for own in self._owned[i + 1 :] if own]
        return {"after": preceding[-1] if preceding else None, "before": following[0] if following else None}


def _reachable_nodes(root: Any) -> list[Any]:
    reachable: dict[Any, None] = {}
    unvisited = [root] if root is not None else []
    while unvisited and len(reachable) < MAX_GRAPH_NODES:
        node = unvisited.pop()
        if node in reachable or hasattr(node, "variable"):
            continue
        reachable[node] = None
        unvisited += [parent for parent, _ in node.next_functions if parent is not None]
    return list(reachable)


def _leaf_parameters(node: Any) -> Iterator[torch.Tensor]:
    """Yield parameters that are inputs of an operation, also via operations that only rearrange or copy values."""
    for parent, _ in node.next_functions:
        if parent is not None and hasattr(parent, "variable"):
            yield parent.variable
        elif parent is not None and _short_operation_name(parent) in _COPYING_OPERATIONS:
            yield from _leaf_parameters(parent)


def _short_operation_name(node: Any) -> str:
    return str(node.name()).rpartition("::")[2].removesuffix("0").removesuffix("Backward")


def _operation_name_with_exponent(node: Any) -> str:
    """Include an exponent of at least 1, as in `Pow(2)`, because the derivative of such a power is finite at 0."""
    name, exponent = (_short_operation_name(node), getattr(node, "_saved_exponent", None) if "Pow" in node.name() else None)
    return f"{name}({exponent:g})" if isinstance(exponent, (int, float)) and exponent >= 1 else name


def _is_custom_function(node: Any) -> bool:
    return isinstance(node, BackwardCFunction) and not _short_operation_name(node).startswith(("Compiled", "Checkpoint"))


def _saved_tensors(node: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """After the backward pass, an operation holds no saved tensors."""
    try:
        if isinstance(node, BackwardCFunction):
            yield from (("self", t) for t in getattr(node, "saved_tensors", ()) if t is not None)
            return
        for name in dir(node):
            if name.startswith("_saved_"):
                value = getattr(node, name)
                for tensor in value if isinstance(value, (list, tuple)) else (value,):
                    if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                        yield name.removeprefix("_saved_"), tensor.detach()
    except RuntimeError:  # the tensor was freed, or was modified in place after the operation saved it
        return


def _non_finite_result_facts(node: Any) -> FactsByName | None:
    op = _short_operation_name(node)
    for name, tensor in _saved_tensors(node):
        if not tensor.numel():
            continue
        if why := _non_finite_reason(op, name, tensor):
            return {"operation": op, "why": why, "dtype": _dtype_name(tensor)}
        if bool((torch.isnan(tensor) | torch.isposinf(tensor)).any()):
            return _non_finite_origin_facts(node, op, name, tensor)
    return None


def _non_finite_reason(op: str, name: str, tensor: torch.Tensor) -> str | None:
    """Return why the operation's result is not finite for one of its saved tensors; None if the result is finite."""
    if op in ("Log", "Log2", "Log10") and name == "self" and bool((tensor <= 0).any()):
        return "log of 0" if bool((tensor == 0).any()) else "log of a negative number"
    if op == "Div" and name == "other" and bool((tensor == 0).any()):
        return "division by 0"
    if name != "result":
        return None
    if op in ("Exp", "Expm1") and bool(torch.isposinf(tensor).any()):
        return "exp overflows"
    if op in ("Rsqrt", "Reciprocal") and bool(torch.isinf(tensor).any()):
        return "division by 0"
    return "root of a negative number" if op in ("Sqrt", "Rsqrt") and bool(torch.isnan(tensor).any()) else None


def _non_finite_origin_facts(node: Any, op: str, name: str, tensor: torch.Tensor) -> FactsByName:
    source = node if name in _OUTPUT_TENSOR_NAMES and op not in _FINITENESS_KEEPING_OPERATIONS else _last_computing_parent(node)
    if source is None:
        return {"operation": op, "why": "input", "dtype": _dtype_name(tensor)}
    source_dtypes = [_dtype_name(t) for _, t in _saved_tensors(source)] if source is not node else []
    dtype = min([_dtype_name(tensor), *source_dtypes], key=_dtype_bit_width)
    is_masked = any(_short_operation_name(n).startswith(("MaskedFill", "Where")) for n in _nearby_nodes(source, 4))
    facts = {"operation": _short_operation_name(source), "why": "result", "dtype": dtype}
    return facts | {"masked": is_masked, "overflow": bool(torch.isinf(tensor).any())}


def _nearby_nodes(node: Any, hops: int) -> Iterator[Any]:
    yield node
    if hops:
        for parent, _ in node.next_functions:
            if parent is not None and not hasattr(parent, "variable"):
                yield from _nearby_nodes(parent, hops - 1)


def _last_computing_parent(node: Any) -> Any:
    computing_parents = [parent for parent, _ in node.next_functions if parent is not None and not hasattr(parent, "variable")]
    if not computing_parents:
        return None
    last_parent = max(computing_parents, key=lambda parent: parent._sequence_nr())
    return _last_computing_parent(last_parent) if _short_operation_name(last_parent) in _COPYING_OPERATIONS else last_parent


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _dtype_bit_width(dtype: str) -> int:
    return {"float16": 0, "bfloat16": 1}.get(dtype, 2)

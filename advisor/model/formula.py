"""Parses formulas in study files, such as `effective_learning_rate * (1 - momentum)`, and evaluates them without `eval`."""

from __future__ import annotations

import ast
import keyword
import math
import operator
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

_MAX_FORMULA_LENGTH = 300
"""Maximum number of characters; longer formulas can nest deeply enough to exhaust the stack."""
_BRACED_NAME_PATTERN = re.compile(r"\{([^{}]+)\}")
_WORD_PATTERN = re.compile(r"[^\W\d]\w*")
_BINARY_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,  # for a root of a negative number, math.pow raises an error, whereas ** returns a complex number
}
_UNARY_OPERATORS: dict[type[ast.unaryop], Callable[[float], float]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
_SYNTAX = (ast.Name, ast.Load, ast.UnaryOp, ast.BinOp, *_UNARY_OPERATORS, *_BINARY_OPERATORS)


@dataclass(frozen=True)
class Formula:
    """A parsed arithmetic formula; `parse_formula` creates it."""

    names: frozenset[str]
    """Names of the hyperparameters that occur in the formula."""
    syntax_tree: ast.expr
    """Syntax tree of the formula. Do not change the tree: `parse_formula` returns the same formula again for the same text."""

    def value(self, values: Mapping[str, object]) -> float | None:
        """Return the value, or None if a hyperparameter is missing or not a number, or if the value is not finite."""
        try:
            value = _evaluate_node(self.syntax_tree, {name: float(values[name]) for name in self.names})  # type: ignore[arg-type]
        except (ArithmeticError, KeyError, TypeError, ValueError):
            return None
        return value if math.isfinite(value) else None


@lru_cache(maxsize=1000)
def parse_formula(text: str) -> Formula:
    """Parse a formula, with names that are no Python identifiers in braces (`{optimizer/lr}`), or raise ValueError."""
    if len(text) > _MAX_FORMULA_LENGTH:
        raise ValueError(f"a formula has at most {_MAX_FORMULA_LENGTH} characters")
    aliases: dict[str, str] = {}
    code = _BRACED_NAME_PATTERN.sub(lambda match: aliases.setdefault(match[1].strip(), f"braced_{len(aliases)}_"), text)
    code = _WORD_PATTERN.sub(lambda match: _placeholder_for(match[0], aliases), code)
    try:
        tree = _NameReplacer({new: old for old, new in aliases.items()}).visit(ast.parse(code.strip(), mode="eval").body)
    except (SyntaxError, MemoryError, RecursionError):
        python_keyword = next((word for word in _WORD_PATTERN.findall(code) if keyword.iskeyword(word)), None)
        hint = f"; if {python_keyword} is a hyperparameter, write {{{python_keyword}}}" if python_keyword else ""
        raise ValueError(f"the formula {text!r} is not arithmetic such as lr * (1 - momentum){hint}") from None
    for node in ast.walk(tree):
        if not isinstance(node, _SYNTAX) and not (isinstance(node, ast.Constant) and type(node.value) in (int, float)):
            raise ValueError(f"the formula {text!r} may contain only numbers, names, + - * / ** and parentheses")
    return Formula(frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)), tree)


def _placeholder_for(word: str, braced: dict[str, str]) -> str:
    """Return a placeholder for a word that Python would normalise, such as `µ`; any other word unchanged."""
    if not word.isidentifier() or unicodedata.normalize("NFKC", word) == word:
        return word
    return braced.setdefault(word, f"braced_{len(braced)}_")


class _NameReplacer(ast.NodeTransformer):
    """Replaces placeholders by the original names, and joins the parts of dotted names."""

    def __init__(self, braced: Mapping[str, str]) -> None:
        self._braced = braced

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self._braced.get(node.id, node.id), ast.Load())

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        left = self.visit(node.value)
        if not isinstance(left, ast.Name):
            return node
        return ast.Name(f"{left.id}.{self._braced.get(node.attr, node.attr)}", ast.Load())


def _evaluate_node(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            return values[name]
        case ast.UnaryOp(op=op, operand=operand):
            return _UNARY_OPERATORS[type(op)](_evaluate_node(operand, values))
        case ast.BinOp(left=left, op=binary, right=right):
            return _BINARY_OPERATORS[type(binary)](_evaluate_node(left, values), _evaluate_node(right, values))
    raise TypeError(node)

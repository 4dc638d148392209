"""Collects the gradient norms that steps have before clipping, and records whether the gradients were clipped."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch

from advisor import contract
from advisor_pytorch.steps.device import ScalarValue
from advisor_pytorch.steps.gradients import (
    ClippedOptimizers,
    ClippedOptimizersFinder,
    GradientNormPart,
    NormFunction,
    PerParameterGradientNorm,
)
from advisor_pytorch.steps.patches import GradientClipping
from advisor_pytorch.steps.readings import metric_names_by_optimizer
from advisor_pytorch.steps.rows import ColumnRole, RowColumn


class StepNorms:
    """Collects the gradient norms of the steps since the last row, without waiting for the device."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], measure: NormFunction | None) -> None:
        """measure: computes a norm or, with sharded gradients, this rank's part of it; None: no norms are computed."""
        self._optimizers, self._measure = optimizers, measure
        self._scopes = ClippedOptimizersFinder(optimizers)
        self._own = [(k,) for k in range(len(optimizers))]
        self._names = metric_names_by_optimizer(contract.GRAD_NORM, len(optimizers))
        self._known: set[int] = set()
        """Indices of the optimizers for whose next step the gradient norm is already known."""
        self._by_value: dict[int, torch.Tensor] = {}
        """For each optimizer, the gradient norm just before the gradient was clipped by value."""
        self.clear()

    def forget_optimizer(self, k: int) -> None:
        self._scopes = ClippedOptimizersFinder(self._optimizers)
        self._known.discard(k)

    def clear(self) -> None:
        self._norms: dict[tuple[int, ...], torch.Tensor] = {}
        self._clips: list[tuple[torch.Tensor, ScalarValue]] = []

    def affected_optimizers(self, clipping: GradientClipping) -> ClippedOptimizers:
        return self._scopes.find(clipping.parameters)

    def record_clipping(self, clipping: GradientClipping, scope: ClippedOptimizers) -> None:
        if self._measure is None:
            return
        norm_on_this_rank = None if clipping.norm is None else self._norm_on_this_rank(clipping.norm)
        if norm_on_this_rank is not None and clipping.is_l2 and scope.is_exact:
            self._record_norm(scope.optimizers, norm_on_this_rank)
        for k in scope.optimizers:
            self._measure_norm(k)
        if clipping.by == "value":
            self._by_value |= {k: norm for k in scope.optimizers if (norm := self._norms.get(self._own[k])) is not None}
            return
        clipped_norm = self._norms.get(scope.optimizers) if norm_on_this_rank is None and scope.is_exact else norm_on_this_rank
        if clipped_norm is None:
            clipped_norm = self._measure(clipping.parameters)
        if clipped_norm is not None:
            self._clips.append((clipped_norm, clipping.limit))

    def before_step(self, k: int) -> None:
        if self._measure is not None:
            self._measure_norm(k)
            if self._by_value and (norm_before := self._by_value.pop(k, None)) is not None:
                norm_after = self._measure(self._parameters_of_optimizer(k))
                if norm_after is not None:
                    self._clips.append((norm_before, norm_after))

    def latest_norm(self, k: int) -> torch.Tensor | None:
        return next((norm for key, norm in self._norms.items() if k in key), None)

    def take_gradient_norms(self) -> torch.Tensor | None:
        """Return the norm of each parameter's gradient; may be called only once per step."""
        parts = getattr(self._measure, "parts", None)
        if isinstance(self._measure, PerParameterGradientNorm):
            self._measure.parts = None
        return parts

    def after_step(self, k: int) -> None:
        self._known.discard(k)
        if self._by_value:
            self._by_value.pop(k, None)

    def unscale_norms(self, k: int, scale: torch.Tensor) -> None:
        if k in self._known:
            for key in self._norms:
                if k in key:
                    self._norms[key] = self._norms[key] / scale
        self._by_value.pop(k, None)

    def drop_norms(self, k: int) -> None:
        self.after_step(k)
        self._norms = {key: norm for key, norm in self._norms.items() if k not in key}
        self._clips = []

    def set_total_norm(self, norm: torch.Tensor) -> None:
        self._norms = {self._own[0]: norm}

    def append_values(self, tensors: list[torch.Tensor], numbers: list[float]) -> Hashable:
        """Append the gradient norms and clipping thresholds of the row to its tensors and numbers. Return a key that identifies
        the appended values when it is passed to `columns`."""
        tensors += self._norms.values()
        if not self._clips:
            return tuple(self._norms), ()
        for norm, limit in self._clips:
            tensors.append(norm)
            if isinstance(limit, torch.Tensor):
                tensors.append(limit)
            else:
                numbers.append(limit)
        return tuple(self._norms), tuple(isinstance(limit, torch.Tensor) for _, limit in self._clips)

    def columns(self, key: Any) -> tuple[list[RowColumn], list[RowColumn]]:
        """Return (columns of numbers, columns of tensors)."""
        measured, limits = key
        numbers: list[RowColumn] = []
        tensors = [RowColumn(ColumnRole.NORM, self._names[ks[0]] if len(ks) == 1 else "") for ks in measured]
        for i, in_tensor in enumerate(limits):
            tensors.append(RowColumn(ColumnRole.CLIPPED_NORM, str(i)))
            (tensors if in_tensor else numbers).append(RowColumn(ColumnRole.LIMIT, str(i)))
        return numbers, tensors

    def _norm_on_this_rank(self, whole: torch.Tensor) -> torch.Tensor | None:
        return self._measure.part_of_global_norm(whole) if isinstance(self._measure, GradientNormPart) else whole.detach()

    def _measure_norm(self, k: int) -> None:
        if k in self._known or self._measure is None:
            return
        norm = self._measure(self._parameters_of_optimizer(k))
        if norm is None:
            return
        # A gradient scaler sets `grad_scale` if a fused optimizer unscales the gradients itself.
        scale = getattr(self._optimizers[k], "grad_scale", None)
        self._record_norm(self._own[k], norm / scale if isinstance(scale, torch.Tensor) else norm)

    def _record_norm(self, key: tuple[int, ...], norm: torch.Tensor) -> None:
        if self._known.isdisjoint(key):
            self._known.update(key)
            if all(key == other or set(key).isdisjoint(other) for other in self._norms):  # count each optimizer once
                self._norms[key] = norm

    def _parameters_of_optimizer(self, k: int) -> list[torch.Tensor]:
        return [p for group in self._optimizers[k].param_groups for p in group["params"]]

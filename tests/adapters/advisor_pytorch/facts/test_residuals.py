"""Where residual blocks normalise, on real networks of PyTorch and Transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from advisor_pytorch.facts import architecture
from advisor_pytorch.facts.residuals import AutogradGraph, compute_dtype, norm_order
from tests.adapters.samples import RootMeanSquareNorm

SMALL = {"vocab_size": 99, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
SEQ2SEQ = {"vocab_size": 99, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "decoder_start_token_id": 0}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
T5 = {"vocab_size": 99, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
VIT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 16}
SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 2], "num_heads": [1, 2], "window_size": 4}
OPT = {"vocab_size": 99, "hidden_size": 16, "num_hidden_layers": 2, "ffn_dim": 32, "num_attention_heads": 2}
MODELS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("pre-norm", "GPT2Config", "GPT2LMHeadModel", {"n_layer": 3, "n_embd": 16, "n_head": 2, "vocab_size": 99}),
    ("post-norm", "BertConfig", "BertForMaskedLM", SMALL),
    ("post-norm", "RobertaConfig", "RobertaForMaskedLM", {**SMALL, "max_position_embeddings": 64}),
    ("pre-norm", "LlamaConfig", "LlamaForCausalLM", SMALL),
    ("pre-norm", "Olmo2Config", "Olmo2ForCausalLM", SMALL),  # x + norm(f(x))
    ("pre-norm", "GPTNeoXConfig", "GPTNeoXForCausalLM", SMALL),  # attention and MLP side by side
    ("pre-norm", "BloomConfig", "BloomForCausalLM", {"vocab_size": 99, "hidden_size": 16, "n_layer": 3, "n_head": 2}),
    ("pre-norm", "T5Config", "T5ForConditionalGeneration", {**T5, "decoder_start_token_id": 0}),
    ("post-norm", "BartConfig", "BartForConditionalGeneration", SEQ2SEQ | HEADS),
    ("pre-norm", "OPTConfig", "OPTForCausalLM", {**OPT, "word_embed_proj_dim": 16}),
    ("post-norm", "OPTConfig", "OPTForCausalLM", {**OPT, "word_embed_proj_dim": 16, "do_layer_norm_before": False}),
    ("pre-norm", "ViTConfig", "ViTForImageClassification", {**VIT, "patch_size": 8}),
    ("pre-norm", "Swinv2Config", "Swinv2ForImageClassification", SWIN),
    ("pre-norm", "ResNetConfig", "ResNetForImageClassification", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 2]}),
]  # fmt: skip


def order(model: nn.Module, output: torch.Tensor) -> str | None:
    return norm_order(AutogradGraph([output]), model)


@pytest.mark.parametrize(("expected", "config", "model", "settings"), MODELS)
def test_networks_of_transformers(expected: str, config: str, model: str, settings: dict[str, Any]) -> None:
    made = getattr(transformers, model)(getattr(transformers, config)(**settings)).train()
    if "Image" in model:
        size = settings.get("image_size", 32)
        output = made(pixel_values=torch.randn(2, 3, size, size)).logits
    else:
        ids = torch.randint(5, 90, (2, 12))
        output = made(input_ids=ids, labels=ids).loss
    assert order(made, output.float().sum()) == expected


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("layers", [1, 3])
def test_pytorchs_own_layers(norm_first: bool, layers: int) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, norm_first=norm_first, batch_first=True)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    expected = "pre-norm" if norm_first else "post-norm"
    assert order(model, model(torch.randn(2, 5, 16)).sum()) == expected
    assert architecture.declared_norm_order(model) == expected


class Block(nn.Module):
    def __init__(self, form: str, norm: type[nn.Module] | None = None) -> None:
        super().__init__()
        self.f, self.form = nn.Linear(8, 8), form
        self.n = nn.LayerNorm(8) if norm is None else norm()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + functional.gelu(x, approximate="tanh") * 0.1  # an addition without weights is no residual block
        if self.form == "none":
            return x + self.f(x)
        if self.form == "no-residuals":
            return self.n(self.f(x))
        if self.form == "inside":
            return x + self.n(self.f(x))
        return x + self.f(self.n(x)) if self.form == "pre-norm" else self.n(x + self.f(x))


def stack(*forms: str, norm: type[nn.Module] | None = None) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), *[Block(form, norm) for form in forms], nn.Linear(8, 1))


@pytest.mark.parametrize("norm", [None, RootMeanSquareNorm])
@pytest.mark.parametrize("form", ["pre-norm", "inside", "post-norm", "no-residuals"])
def test_blocks_of_ones_own(form: str, norm: type[nn.Module] | None) -> None:
    model = stack(*[form] * 4, norm=norm)
    loss = model(torch.randn(3, 4)).sum()
    expected = "pre-norm" if form == "inside" else form
    assert order(model, loss) == expected
    loss.backward()
    assert order(model, loss) == expected  # also after the backward pass


def test_mixtures_and_what_has_no_norm() -> None:
    for expected, forms in (("none", ["none"] * 3), ("mixed", ["pre-norm", "post-norm"] * 2)):
        model = stack(*forms)
        for block in [m for m in model.modules() if isinstance(m, Block) and expected == "none"]:
            block.n = nn.Identity()  # not used
        assert order(model, model(torch.randn(3, 4)).sum()) == expected


@pytest.mark.parametrize(("norm", "expected"), [(None, "pre-norm"), (RootMeanSquareNorm, None)])
def test_frozen_norms_are_seen_only_if_pytorch_computes_them(norm: type[nn.Module] | None, expected: str | None) -> None:
    model = stack(*["pre-norm"] * 3, norm=norm)
    for block in model.modules():
        if isinstance(block, Block):
            block.n.requires_grad_(False)  # as below an adapter
    assert order(model, model(torch.randn(3, 4)).sum()) == expected


class ResNetBlock(nn.Module):
    """Like torchvision's block, and with the norms before the convolutions."""

    def __init__(self, width: int, out: int, first: bool) -> None:
        super().__init__()
        self.first = first
        self.conv1, self.conv2 = nn.Conv2d(width, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.bn1, self.bn2 = nn.BatchNorm2d(width if first else out), nn.BatchNorm2d(out)
        self.down = nn.Identity() if width == out else nn.Sequential(nn.Conv2d(width, out, 1), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.first:
            return self.down(x) + self.conv2(torch.relu(self.bn2(self.conv1(torch.relu(self.bn1(x))))))
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))) + self.down(x))


@pytest.mark.parametrize("first", [True, False])
def test_residual_networks(first: bool) -> None:
    blocks = [ResNetBlock(8, 8, first), ResNetBlock(8, 16, first), ResNetBlock(16, 16, first)]
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), *blocks)
    assert order(model, model(torch.randn(2, 3, 8, 8)).sum()) == "pre-norm"


def test_what_cannot_be_seen_is_not_guessed() -> None:
    model = stack("pre-norm", "pre-norm")
    x = torch.randn(3, 4)
    assert norm_order(AutogradGraph([model(x).sum().detach()]), model) is None
    hidden = checkpoint(model, x.requires_grad_(), use_reentrant=True)
    assert order(model, hidden.sum()) is None
    cell = nn.GRUCell(4, 4)
    state = torch.zeros(1, 4)
    for _ in range(3000):
        state = cell(torch.zeros(1, 4), state)
    assert AutogradGraph([state.sum()]).rank == {}  # too large
    layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(400)])
    skipped = layers[0](x.detach())
    for layer in layers:
        state = skipped + layer(skipped).tanh() if layer is layers[0] else skipped + layer(state).tanh()
    assert order(layers, state.sum()) is None  # each addition's branch is the whole network up to there
    frozen = stack("no-residuals").requires_grad_(False)
    head = nn.Linear(1, 1)
    model = nn.Sequential(frozen, head)
    frozen[0].weight.requires_grad_()  # type: ignore[union-attr]
    assert order(model, head(frozen(x.detach()).detach()).sum()) is None  # the hidden part may be residual


def test_the_compiled_is_seen_to_be_so() -> None:
    model = stack("pre-norm")
    assert not architecture.is_compiled(model)
    compiled = torch.compile(model, backend="aot_eager")
    graph = AutogradGraph([compiled(torch.randn(3, 4)).sum()])
    assert graph.is_compiled()
    assert norm_order(graph, model) is None
    assert architecture.is_compiled(compiled)
    assert architecture.model_class_name(nn.DataParallel(compiled)) == "Sequential"
    model.compile(backend="eager")
    assert architecture.is_compiled(nn.Sequential(model))


def test_the_precision_of_the_products() -> None:
    model = stack("pre-norm", "pre-norm")
    x = torch.randn(3, 4)
    assert compute_dtype(AutogradGraph([model(x).sum()])) == "float32"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compute_dtype(AutogradGraph([model(x).sum()])) == "bfloat16"
    assert compute_dtype(AutogradGraph([x])) is None

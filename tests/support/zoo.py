"""Small models of every kind that people train: random weights, inputs for any batch size, a loss.

Each is an `Entry`: `make()` gives the module in float32, `inputs(batch)` what it is called with, by name, and
`run(model, inputs)` the tensors that it returns, the loss first. Dropout is off: random numbers differ from eager's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """A model of the zoo.

    autocast: tested in bfloat16 too. heavy: takes long to compile. externs: ops that may stay library calls besides
    `LIBRARY_WORK`, each with its reason.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]
    autocast: bool = False
    heavy: bool = False
    externs: dict[str, str] = field(default_factory=dict)
    patches: dict[str, Any] = field(default_factory=dict)
    """Settings of torch._dynamo.config that the model needs to be captured."""
    prepare_judge: Callable[[nn.Module], object] = lambda model: None
    """Called on the model in float64, before it is run in eager mode."""

    def __str__(self) -> str:
        return self.name


LIBRARY_WORK = (
    "aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.convolution", "aten._scaled_dot_product",
)  # fmt: skip
"""Contractions, convolutions and attention: what may be an Extern in any model."""

CPUS_LIBRARY_WORK = ("aten.max_pool2d_with_indices_backward", "aten.empty_strided")
"""What may be an Extern on a CPU as well: the gradient of a max pool whose windows overlap, and the memory without
values that stands for the pool's input."""


# ------------------------------------------------------------------------------------------------ from transformers


def transformer(model: str, config: str, inputs: Callable[[int], Inputs], **settings: Any) -> dict[str, Any]:
    """make= and inputs= of an Entry for transformers' class `model`."""

    def make() -> nn.Module:
        import transformers

        made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**settings))
        return made

    return {"make": make, "inputs": inputs}


def tokens(batch: int, length: int, vocabulary: int) -> Tensor:
    return torch.randint(3, vocabulary, (batch, length))


def text(length: int = 11, vocabulary: int = 67, labels: int = 0) -> Callable[[int], Inputs]:
    """Token sequences of which the last ones of the first row are padding; `labels` classes, else a language model."""

    def inputs(batch: int) -> Inputs:
        ids = tokens(batch, length, vocabulary)
        mask = torch.ones_like(ids)
        mask[0, length - 2 :] = 0
        target = torch.randint(0, labels, (batch,)) if labels else ids.masked_fill(mask == 0, -100)
        return {"input_ids": ids, "attention_mask": mask, "labels": target}

    return inputs


def pixels(side: int = 32, labels: int = 5) -> Callable[[int], Inputs]:
    # problem_type is set beforehand, as a model that finds it out changes its config, and is compiled anew.
    return lambda batch: {
        "pixel_values": torch.randn(batch, 3, side, side),
        "labels": torch.randint(0, labels, (batch,)),
    }


_BERT = transformer(
    "BertForSequenceClassification", "BertConfig", text(labels=3),
    vocab_size=67, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48, num_labels=3,
    problem_type="single_label_classification",
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=32,
)  # fmt: skip

_GPT2 = transformer(
    "GPT2LMHeadModel", "GPT2Config", text(),
    vocab_size=67, n_embd=32, n_layer=1, n_head=4, n_positions=32, use_cache=False,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip

_T5 = transformer(
    "T5ForConditionalGeneration", "T5Config",
    lambda batch: {"input_ids": tokens(batch, 9, 67), "labels": tokens(batch, 7, 67)},
    vocab_size=67, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, dropout_rate=0.0, use_cache=False,
    feed_forward_proj="gated-gelu", pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
)  # fmt: skip

_LLAMA = transformer(
    "LlamaForCausalLM", "LlamaConfig", text(),
    vocab_size=67, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=32, use_cache=False, bos_token_id=1, eos_token_id=2,
)  # fmt: skip

_MIXTRAL = transformer(
    "MixtralForCausalLM", "MixtralConfig", text(),
    vocab_size=67, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
    num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=32, use_cache=False,
    output_router_logits=True, bos_token_id=1, eos_token_id=2,
)  # fmt: skip


def loop_over_experts(model: nn.Module) -> None:
    """The grouped product that transformers picks has no float64."""
    model.config._experts_implementation = "eager"


_WHISPER = transformer(
    "WhisperForConditionalGeneration", "WhisperConfig",
    lambda batch: {"input_features": torch.randn(batch, 8, 24), "labels": tokens(batch, 7, 67)},
    vocab_size=67, num_mel_bins=8, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_source_positions=12,
    max_target_positions=16, dropout=0.0, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    decoder_start_token_id=1, begin_suppresstokens=None, suppresstokens=None,
)  # fmt: skip

_VIT = transformer(
    "ViTForImageClassification", "ViTConfig", pixels(),
    image_size=32, patch_size=8, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48,
    num_labels=5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    problem_type="single_label_classification",
)  # fmt: skip

_SWIN = transformer(
    "SwinForImageClassification", "SwinConfig", pixels(),
    image_size=32, patch_size=4, embed_dim=16, depths=[2, 1], num_heads=[2, 4], window_size=4, num_labels=5,
    drop_path_rate=0.0, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    problem_type="single_label_classification",
)  # fmt: skip

_CONVNEXT = transformer(
    "ConvNextForImageClassification", "ConvNextConfig", pixels(),
    hidden_sizes=[8, 12], depths=[1, 1], num_stages=2, num_labels=5, drop_path_rate=0.0,
    problem_type="single_label_classification",
)  # fmt: skip

_RESNET = transformer(
    "ResNetForImageClassification", "ResNetConfig", pixels(),
    embedding_size=8, hidden_sizes=[16, 24], depths=[1, 2], num_labels=5,
    problem_type="single_label_classification",
)  # fmt: skip

_MOBILENET = transformer(
    "MobileNetV2ForImageClassification", "MobileNetV2Config", pixels(),
    image_size=32, depth_multiplier=0.25, output_stride=8, num_labels=5, classifier_dropout_prob=0.0,
    problem_type="single_label_classification",
)  # fmt: skip

_MOBILENET_BLOCKS = (0, 1, 5, 6, 9, 12, 15)
"""Of sixteen: each width, and two blocks with a shortcut. The others are like these."""


def _short_mobilenet() -> nn.Module:
    made = _MOBILENET["make"]()
    layers = made.mobilenet_v2.layer
    made.mobilenet_v2.layer = nn.ModuleList(layers[number] for number in _MOBILENET_BLOCKS)
    return made


_CLIP_TEXT = {
    "vocab_size": 67, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
    "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 66,
}  # fmt: skip
_CLIP_VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
_CLIP = transformer(
    "CLIPModel", "CLIPConfig",
    lambda batch: {
        "input_ids": tokens(batch, 9, 67), "pixel_values": torch.randn(batch, 3, 32, 32), "return_loss": True,
    },
    text_config=_CLIP_TEXT, vision_config=_CLIP_VISION, projection_dim=24,
)  # fmt: skip


# -------------------------------------------------------------------------------------------------------- written here


class Lstm(nn.Module):
    """An embedding, two layers in both directions, and a classifier of the last state."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        # torch itself cannot trace the backward of an LSTM whose input needs no gradient.
        self.embedding = nn.Embedding(20, 6)
        self.lstm = nn.LSTM(6, width, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * width, 4)

    def forward(self, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
        states, (hidden, _) = self.lstm(self.embedding(tokens))
        logits = self.head(states[:, -1])
        return {"loss": F.cross_entropy(logits, labels), "logits": logits, "hidden": hidden}


class UNet(nn.Module):
    """Two levels down and up: BatchNorm, pooling, transposed convolution, bilinear upsampling, skip connections."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        first, second, third = 2 * width, 3 * width, 4 * width
        self.down1, self.down2 = self._block(3, first), self._block(first, second)
        self.middle = self._block(second, third)
        self.up2 = nn.ConvTranspose2d(third, second, 2, stride=2)
        self.side2, self.side1 = self._block(2 * second, second), self._block(second + first, first)
        self.head = nn.Conv2d(first, 2, 1)

    @staticmethod
    def _block(inside: int, outside: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU())

    def forward(self, x: Tensor, target: Tensor) -> dict[str, Tensor]:
        high = self.down1(x)
        low = self.down2(F.max_pool2d(high, 2))
        deep = self.middle(F.max_pool2d(low, 2))
        low = self.side2(torch.cat([self.up2(deep), low], 1))
        wide = F.interpolate(low, scale_factor=2.0, mode="bilinear", align_corners=False)
        mask = self.head(self.side1(torch.cat([wide, high], 1)))
        return {"loss": F.binary_cross_entropy_with_logits(mask, target), "mask": mask}


class GraphNetwork(nn.Module):
    """Messages along edges, summed where they arrive, and again their mean and maximum; one graph per batch entry."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.enter = nn.Linear(5, width)
        self.message = nn.Linear(2 * width, width)
        self.update = nn.Linear(3 * width, width)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor, edges: Tensor, graph: Tensor, target: Tensor) -> dict[str, Tensor]:
        nodes = self.enter(x).tanh()
        source, goal = edges[0], edges[1]
        messages = F.silu(self.message(torch.cat([nodes[source], nodes[goal]], -1)))
        total = torch.zeros_like(nodes).index_add(0, goal, messages)
        count = torch.zeros_like(nodes[:, :1]).index_add(0, goal, torch.ones_like(messages[:, :1]))
        where = goal[:, None].expand_as(messages)
        highest = torch.full_like(nodes, -1e3).scatter_reduce(0, where, messages, "amax")
        highest = torch.where(count > 0, highest, 0.0)
        nodes = self.update(torch.cat([nodes, total / count.clamp(min=1), highest], -1)).relu()
        pooled = nodes.new_zeros(target.shape[0], nodes.shape[1]).scatter_add(0, graph[:, None].expand_as(nodes), nodes)
        out = self.head(pooled)[:, 0]
        return {"loss": F.mse_loss(out, target), "out": out}


def graphs(nodes: int = 7, edges: int = 20) -> Callable[[int], Inputs]:
    """As many nodes and edges for each graph of the batch."""
    return lambda batch: {
        "x": torch.randn(nodes * batch, 5),
        "edges": torch.randint(0, nodes * batch, (2, edges * batch)),
        "graph": torch.arange(nodes * batch) // nodes,
        "target": torch.randn(batch),
    }


class Dlrm(nn.Module):
    """Bags of categories and dense features, their pairwise products, a click probability."""

    def __init__(self, rows: int = 30, width: int = 8) -> None:
        super().__init__()
        modes = ("sum", "mean", "max")
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode=mode) for mode in modes)
        self.bottom = nn.Sequential(nn.Linear(4, 2 * width), nn.ReLU(), nn.Linear(2 * width, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + 6, 2 * width), nn.ReLU(), nn.Linear(2 * width, 1))
        below = torch.tril_indices(4, 4, -1)
        self.register_buffer("rows", below[0])
        self.register_buffer("columns", below[1])

    def forward(self, dense: Tensor, categories: Tensor, offsets: Tensor, clicked: Tensor) -> dict[str, Tensor]:
        low = self.bottom(dense)
        # The first bag of fixed length, the others given by offsets.
        found = [self.bags[0](categories.view(dense.shape[0], -1))]
        found += [bag(categories, offsets) for bag in list(self.bags)[1:]]
        features = torch.stack([low, *found], 1)
        products = torch.bmm(features, features.transpose(1, 2))[:, self.rows, self.columns]
        logit = self.top(torch.cat([low, products], 1))[:, 0]
        return {"loss": F.binary_cross_entropy(logit.sigmoid(), clicked), "logit": logit}


def clicks(rows: int = 30) -> Callable[[int], Inputs]:
    return lambda batch: {
        "dense": torch.rand(batch, 4),
        "categories": torch.randint(0, rows, (3 * batch,)),
        "offsets": torch.arange(batch) * 3,
        "clicked": torch.randint(0, 2, (batch,)).float(),
    }


class Diffusion(nn.Module):
    """A step of a denoiser: time embedding, residual blocks with GroupNorm, self-attention over the pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
        self.enter = nn.Conv2d(3, 16, 3, padding=1)
        self.norm1, self.conv1 = nn.GroupNorm(4, 16), nn.Conv2d(16, 16, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(4, 16), nn.Conv2d(16, 16, 3, padding=1)
        self.norm3, self.qkv, self.out = nn.GroupNorm(4, 16), nn.Conv2d(16, 48, 1), nn.Conv2d(16, 16, 1)
        self.down = nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.leave = nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor, noise: Tensor) -> dict[str, Tensor]:
        frequency = torch.exp(-torch.arange(8, device=x.device, dtype=x.dtype))
        angles = t[:, None].to(x.dtype) * frequency
        when = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        first = self.enter(x)
        h = self.conv1(F.silu(self.norm1(first))) + when[:, :, None, None]
        h = first + self.conv2(F.silu(self.norm2(h)))
        h = self.down(h)
        q, k, v = self.qkv(self.norm3(h)).flatten(2).chunk(3, 1)
        seen = F.scaled_dot_product_attention(*(p.unflatten(1, (2, 8)).transpose(-1, -2) for p in (q, k, v)))
        h = h + self.out(seen.transpose(-1, -2).reshape(h.shape))
        h = F.interpolate(h, scale_factor=2.0, mode="nearest")
        guess = self.leave(torch.cat([h, first], 1))
        return {"loss": F.mse_loss(guess, noise), "guess": guess}


def noisy(batch: int) -> Inputs:
    return {
        "x": torch.randn(batch, 3, 8, 8),
        # Small: the sine of a large angle is mostly the rounding of the angle.
        "t": torch.randint(0, 10, (batch,)),
        "noise": torch.randn(batch, 3, 8, 8),
    }


ZOO: tuple[Entry, ...] = (
    Entry("bert", **_BERT, autocast=True),
    Entry("gpt2", **_GPT2),
    Entry("t5", **_T5),
    Entry("llama", **_LLAMA, autocast=True),
    Entry(
        "mixtral",
        **_MIXTRAL,
        prepare_judge=loop_over_experts,
        externs={
            "aten.topk": "sorting is library work",
            "aten.sort": "sorting is library work",
            "aten.histc": "sorts into bins by value",
            "aten._grouped_mm": "a contraction",
            "transformers.grouped_mm_fallback": "a contraction, as transformers' own op where torch has none",
        },
    ),
    Entry("whisper", **_WHISPER),
    Entry("vit", **_VIT),
    Entry("swin", **_SWIN, heavy=True),
    Entry("convnext", **_CONVNEXT),
    Entry("resnet", **_RESNET, autocast=True),
    Entry("mobilenet", _short_mobilenet, _MOBILENET["inputs"], heavy=True),
    Entry("clip", **_CLIP),
    Entry(
        "lstm",
        Lstm,
        lambda batch: {"tokens": torch.randint(0, 20, (batch, 2)), "labels": torch.randint(0, 4, (batch,))},
        patches={"allow_rnn": True},
        externs={"aten.mkldnn_rnn_layer": "the library's LSTM, which torch picks where no gradients are needed"},
    ),
    Entry(
        "unet",
        UNet,
        lambda batch: {"x": torch.randn(batch, 3, 16, 16), "target": torch.rand(batch, 2, 16, 16)},
    ),
    Entry("graph", GraphNetwork, graphs()),
    Entry(
        "dlrm",
        Dlrm,
        clicks(),
        externs={
            "aten._embedding_bag": "bags of any length are no loop of fixed ranges",
            "aten._assert_async": "the loss refuses what is no probability, as eager's kernel does on a CPU",
        },
    ),
    Entry("diffusion", Diffusion, noisy),
)

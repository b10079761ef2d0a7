"""A CLIP of open_clip: image and text features in one space, prompts of any length.

By default its weights are frozen and shared by all clients. A method may give every client separate
weights, and put functions into the places of either tower's blocks (`fedloom.backbones.blocks`).

All features are of unit length: every loss and every logit of CLIP is computed from such.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import Any

import open_clip
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.backbones.base import Pixels, check_file, loading
from fedloom.backbones.blocks import Inserts, Weights, below, check_weights
from fedloom.backbones.clip import image as clip_image
from fedloom.backbones.clip import micro_clip
from fedloom.backbones.clip.text import Inside, TextTower
from fedloom.common.device import arithmetic
from fedloom.common.errors import FedLoomError, shortened, suggestion
from fedloom.common.memory import training_bytes
from fedloom.config.settings import weights_file


class FrozenCLIP:
    """A frozen CLIP, as prompt methods use it.

    Attributes:
        device: where the frozen weights are.
        width: d, the width of a context's tokens.
        image_width: the width of the image tower's tokens.
        text_depth, image_depth: numbers of blocks of the towers; a ResNet has none.
        gradient_checkpointing: True if nothing of the inside of a block that clients have weights
            or inserts in is kept for the backward pass.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        name: str,
        device: torch.device | str = "cpu",
        precision: str = "float32",
        gradient_checkpointing: bool = False,
    ):
        """Freeze `model`, a CLIP or CustomTextCLIP, to compute in `precision`."""
        visual: Any = model.visual
        clip_image.check(visual, name)
        self.model: Any = model.eval().requires_grad_(False).to(device)
        self.device, self.precision = torch.device(device), precision
        self.gradient_checkpointing = gradient_checkpointing
        self._text = TextTower(model, tokenizer, name, precision)
        self._text_prefix = "text." if hasattr(model, "text") else ""
        self._encoded: dict[tuple[str, ...], Tensor] = {}
        self.width: int = self._text.width
        self.text_depth: int = self._text.depth
        blocks, self.image_width, self.image_floats = clip_image.shape(visual)
        self.image_depth = len(blocks)
        self.training_bytes = training_bytes(
            self.image_floats, self.image_depth, gradient_checkpointing, precision
        )
        size = visual.preprocess_cfg["size"]
        size = (size, size) if isinstance(size, int) else size
        channels = next(p for p in visual.parameters() if p.dim() == 4).shape[1]
        self.pixels = Pixels(size, channels, visual.preprocess_cfg, device)

    @cached_property
    def logit_scale(self) -> float:
        """The factor of a cosine in a logit: 100 in OpenAI's models."""
        return float(self.model.logit_scale.exp())

    @cached_property
    def logit_bias(self) -> float:
        """The constant that is added to every logit: 0 in most models."""
        return 0.0 if self.model.logit_bias is None else float(self.model.logit_bias)

    def logits(self, images: Tensor, text: Tensor) -> Tensor:
        """Return the logits [..., B, C] of images [..., B, d_joint] for classes [..., C, d_joint].

        Both are features of unit length.
        """
        return self.logit_scale * images @ text.transpose(-1, -2) + self.logit_bias

    def init_weights(self, pattern: str = "") -> dict[str, Tensor]:
        """Return the pretrained weights by name, without client axis.

        Those of the image tower begin with `visual.`; of the text tower there are blocks, final
        norm and projection, since its vocabulary and positions stay frozen. Only names that the
        regular expression `pattern` is found in.
        """
        parts = ("transformer.resblocks.", "ln_final.", "text_projection")
        known = ("visual.", *(f"{self._text_prefix}{part}" for part in parts))
        return {
            name: value.detach()
            for name, value in self.model.named_parameters()
            if name.startswith(known) and re.search(pattern, name)
        }

    def image_features(
        self, images: Tensor, weights: Weights | None = None, inserts: Inserts | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the features [..., d_joint] of images and those [..., T, d_joint] of patches.

        Patches are the other tokens of the image tower, projected as the class token is.

        Args:
            images: uint8 [..., H, W, channels]; [K, B, H, W, channels] with weights or inserts.
            weights: {name: [K, ...]}, the clients' values of some of `init_weights()`.
            inserts: {block: {place: function}} of the image tower's blocks, of tokens
                [K, B, 1 + T, image_width].
        """
        check_weights(weights, self.model)
        own, tower = below(weights, "visual."), self.model.visual
        with torch.no_grad():
            pixels, shape = self.pixels(images.flatten(0, -4)), images.shape[:-3]
        with arithmetic(self.precision, self.device):
            if own or inserts:
                pixels = pixels.unflatten(0, shape)
                checkpointing = self.gradient_checkpointing
                tokens = clip_image.trained_tokens(tower, pixels, own, inserts, checkpointing)
                final, patches = (_unit(x) for x in tokens)
                return final, patches
            with torch.no_grad():
                tokens = clip_image.tokens(tower, pixels)
        final, patches = (_unit(x).unflatten(0, shape) for x in tokens)
        return final, patches

    def first_norm(self, tokens: Tensor) -> Tensor:
        """Return tokens [..., image_width] behind the norm before the image tower's first block.

        Prompts that join the patches from the start pass it; those put into the place "input" of
        block 1 do not.
        """
        return clip_image.first_norm(self.model.visual)(tokens)

    @torch.no_grad()
    def patch_embeddings(self, images: Tensor) -> Tensor:
        """Return the patches [..., T, image_width] that enter the image tower's first norm.

        They are linear in the pixels of uint8 images [..., H, W, channels], plus their positions.
        """
        with arithmetic(self.precision, self.device):
            pixels = self.pixels(images.flatten(0, -4))
            patches = clip_image.patch_embeddings(self.model.visual, pixels)
        return patches.unflatten(0, images.shape[:-3])

    def compute_cache(self, images: Tensor, cache: str) -> dict[str, Tensor]:
        """Compute the tensors to cache of uint8 images [N, H, W, channels].

        They are `final` [N, d_joint], or `patches` [N, T, d_joint], in half precision for size.
        """
        final, patches = self.image_features(images)
        return {"final": final} if cache == "features" else {"patches": patches.half()}

    def text_features(
        self,
        context: Tensor,
        classes: Sequence[str],
        length: Tensor | None = None,
        eot_offset: Tensor | None = None,
        weights: Weights | None = None,
        inserts: Inserts | None = None,
    ) -> Tensor:
        """Return the features [..., C, d_joint] of learned contexts before every class's name.

        The gradient flows to the contexts; a context's padding gets none.

        With `eot_offset` o, a feature is read o positions behind its EOT. The prompt is then what
        becomes of a text that was tokenised for a context of o tokens more, and got a shorter one
        in its place (the authors' code of FedPHA): behind the EOT stand the embeddings of token 0,
        with which CLIP's tokenizer fills up a text, and in the last o positions of the tower zeros.

        Args:
            context: [..., L, d].
            classes: names; an underscore is a space.
            length: int64 [...], how many tokens of each context count, from 0 to L; None: all.
            eot_offset: int64 [...]; None: 0.
            weights: {name: [K, ...]}, the clients' own values of some of `init_weights()`; those of
                the image tower are left aside. The context is then [K, ..., L, d].
            inserts: {block: {place: function}} of the text tower's blocks, likewise. The functions
                are given tokens [K, n, S, d], of n contexts per client: first SOS, next the
                context, then the endings of several classes; S must stay. `deep_prompts` of
                L tokens at "input" thus replaces what the context has become.
        """
        flat = context[None].flatten(0, -3)  # [N, L, d], also of a single context
        length, eot_offset = (None if n is None else n.flatten() for n in (length, eot_offset))
        check_weights(weights, self.model)
        inside = None
        of_text = {k: v for k, v in (weights or {}).items() if not k.startswith("visual.")}
        if of_text or inserts:
            contexts, own = len(flat) // len(context), below(of_text, self._text_prefix)
            inside = Inside(own, inserts, contexts, self.gradient_checkpointing)
        endings = _endings(tuple(classes))
        features = F.normalize(self._text(flat, endings, length, eot_offset, inside), dim=-1)
        return features.view(*context.shape[:-2], *features.shape[1:])

    def max_context_length(self, classes: Sequence[str]) -> int:
        """Return how many tokens a context before these classes may have at most."""
        return self._text.max_context_length(_endings(tuple(classes)))

    def text_floats(self, classes: Sequence[str]) -> int:
        """Return the size of what a prompt before every class's name is, at all blocks' inputs."""
        return self._text.floats(_endings(tuple(classes)))

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> Tensor:
        """Return the features [N, d_joint] of N whole texts, computed once."""
        if (key := tuple(texts)) not in self._encoded:
            nothing = torch.zeros(1, 0, self.width, device=self.device)
            self._encoded[key] = F.normalize(self._text(nothing, key)[0], dim=-1)
        return self._encoded[key]

    def zero_shot(self, classes: Sequence[str], templates: Sequence[str]) -> Tensor:
        """Return the features [C, d_joint] of classes, averaged over hand-written templates.

        A class's name takes the place of {} in a template such as "a photo of a {}.".
        """
        names = _names(tuple(classes))
        texts = [[template.replace("{}", name) for name in names] for template in templates]
        return F.normalize(torch.stack([self.encode(group) for group in texts]).mean(0), dim=-1)

    def init_context(self, length: int, generator: torch.Generator) -> Tensor:
        """Draw a context [L, d] of `length` tokens from N(0, 0.02²), as CoOp does."""
        return (0.02 * torch.randn(length, self.width, generator=generator)).to(self.device)

    def embed_text(self, text: str) -> Tensor:
        """Return the token embeddings [L, d] of a text such as "a photo of a"."""
        return self._text.embed(self._text.ids(text))


def _unit(x: Tensor) -> Tensor:
    """Return vectors scaled to length 1, of half precision in float32."""
    return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)


@lru_cache(maxsize=64)
def _names(classes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the class names as a prompt has them, without underscores and double spaces."""
    names = tuple(" ".join(name.replace("_", " ").split()) for name in classes)
    for number, name in enumerate(names):
        if not name:
            raise FedLoomError(
                f"class {number} of {len(names)} has no name, which a prompt of a CLIP needs; "
                "name it in the data set"
            )
    return names


@lru_cache(maxsize=64)
def _endings(classes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the texts that follow a context, one per class."""
    return tuple(f"{name}." for name in _names(classes))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence all loggers: open_clip logs its errors to the root logger before it raises them."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _check_tag(name: str, tag: str) -> None:
    """Check that open_clip has weights of this tag, and for this model."""
    tags = open_clip.list_pretrained_tags_by_model(name)
    if not open_clip.is_pretrained_cfg(name, tag):
        known = f"known: {', '.join(tags)}" if tags else "it has none"
        raise FedLoomError(
            f"backbone {name}: weights '{tag}' are neither a .safetensors file nor a tag of "
            f"open_clip's for this model ({known})"
        )
    config: Any = open_clip.get_model_config(name)
    trained_so = open_clip.get_pretrained_cfg(name, tag).get("quick_gelu", False)
    if trained_so and not config.get("quick_gelu", False):
        raise FedLoomError(
            f"backbone {name}: weights '{tag}' were trained with QuickGELU, which this model would "
            f"run without; name the model {name}-quickgelu"
        )


def load(spec: dict, device: torch.device | str = "cpu") -> FrozenCLIP:
    """Build a backbone from an entry of the config's `backbones`, see `base.load`."""
    name, weights = spec["name"], spec["weights"]
    if name not in open_clip.list_models():
        hint = shortened(suggestion(name, open_clip.list_models()))
        version = open_clip.__version__
        raise FedLoomError(f"backbone {name}: open_clip {version} has no such model; {hint}")
    path = weights_file("open_clip", weights)
    if path is not None:
        check_file(name, path)
    elif weights != "none":
        _check_tag(name, weights)
    with loading(name, weights), _quiet():
        if name == micro_clip.NAME and weights == "none":
            model = micro_clip.fresh()
        elif name == micro_clip.NAME and path is not None:
            model = micro_clip.build(path)
        else:
            source = None if weights == "none" else str(path or weights)
            model = open_clip.create_model(name, pretrained=source, device=device)
        tokenizer = open_clip.get_tokenizer(name)
    precision, checkpointing = spec.get("precision", "float32"), spec.get("gradient_checkpointing")
    return FrozenCLIP(model, tokenizer, name, device, precision, bool(checkpointing))

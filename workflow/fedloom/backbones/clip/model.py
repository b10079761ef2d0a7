"""A CLIP of open_clip: image and text features in one joint space, prompts of any length."""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.backbones.backbone import Backbone, Device, Pixels, preprocessing
from fedloom.backbones.blocks import Inserts
from fedloom.backbones.client_layers import Weights, check_weights, select_weights
from fedloom.backbones.clip.image import image_tower
from fedloom.backbones.clip.text import TOKENS_AT_ONCE
from fedloom.backbones.clip.text_tower import Inside
from fedloom.backbones.clip.text_towers import text_tower
from fedloom.common.errors import FedLoomError
from fedloom.common.json_types import JsonDict
from fedloom.machine.device import arithmetic
from fedloom.machine.memory import training_bytes


class FrozenCLIP(Backbone):
    """A CLIP whose weights are frozen, unless a method gives each client weights.

    All features have unit length (an L2 norm of 1). Every loss and every logit of CLIP is computed
    from such features. In shapes, d_joint is the number of entries of a feature.

    Attributes:
        width: d, the width of a context's tokens.
        image_width: the width of the image tower's tokens.
        text_depth, image_depth: numbers of blocks of the towers. An image tower that methods cannot
            enter, such as a ResNet, has no blocks.
        has_patches: True if the image tower gives patches in the joint space.
        text_places: how many tokens each class takes, whatever its name, in a text tower without a
            mask; 0 if the tower computes only the tokens of names.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        name: str,
        device: Device = "cpu",
        precision: str = "float32",
        gradient_checkpointing: bool = False,
        compile_setting: bool | Literal["auto"] = False,
        spec: JsonDict | None = None,
        tokens_at_once: int = TOKENS_AT_ONCE,
    ):
        """Freeze `model`, a CLIP or CustomTextCLIP of open_clip, with arithmetic in `precision`.

        Args:
            spec: an entry of the config's `backbones`, which may say how images are normalised.
                Otherwise open_clip says it.
            tokens_at_once: the largest number of tokens of class names in one sequence of the text
                tower.
        """
        super().__init__(model, device, precision, gradient_checkpointing, compile_setting)

        # the towers, and the weights that clients may train
        visual: Any = self.model.visual
        self._name = name
        self._image = image_tower(visual, name)
        self._text = text_tower(model, tokenizer, name, precision, tokens_at_once)
        # only the tokenizers of a hub have a digest
        self.tokenizer_digest = getattr(tokenizer, "digest", "")
        self._text_prefix = ""
        if hasattr(model, "text"):
            self._text_prefix = "text."
        inside = ("transformer.resblocks.", "ln_final.", "text_projection")
        self._trainable = ("visual.", *(f"{self._text_prefix}{part}" for part in inside))
        self._encoded: dict[tuple[str, ...], Tensor] = {}

        # sizes
        self.width = self._text.width
        self.text_depth = self._text.depth
        self.image_width = self._image.width
        self.image_depth = len(self._image.blocks)
        self.image_floats = self._image.image_floats
        self.has_patches = self._image.has_patches
        self.text_places = self._text.places_per_class
        self.training_bytes = training_bytes(
            self.image_floats, self.image_depth, gradient_checkpointing, precision
        )

        # how images become pixels
        channels = next(p for p in visual.parameters() if p.dim() == 4).shape[1]
        settings = visual.preprocess_cfg
        normal = settings
        if spec:
            normal = preprocessing(spec, settings, channels)
        self.pixels = Pixels(settings["size"], channels, normal, device)

    @cached_property
    def logit_scale(self) -> float:
        """The factor by which a cosine is multiplied in a logit: 100 in OpenAI's models."""
        return float(self.model.logit_scale.exp())

    @cached_property
    def logit_bias(self) -> float:
        """The constant that is added to every logit: 0 in most models."""
        if self.model.logit_bias is None:
            return 0.0
        return float(self.model.logit_bias)

    def logits(self, images: Tensor, text: Tensor) -> Tensor:
        """Return logits [..., B, C], from the features of images and texts.

        Args:
            images: [..., B, d_joint].
            text: [..., C, d_joint].
        """
        return self.logit_scale * images @ text.transpose(-1, -2) + self.logit_bias

    def image_features(
        self, images: Tensor, weights: Weights | None = None, inserts: Inserts | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the features of images [..., d_joint] and of their patches [..., T, d_joint].

        Patches are the other tokens of the image tower, projected as the class token is. There are
        none (T = 0) unless `has_patches`.

        Args:
            images: uint8 [..., H, W, channels]; with weights or inserts [K, B, H, W, channels].
            weights: {name: [K, ...]}, the clients' values of some of `init_weights()`.
            inserts: {block: {place: function}} of the image tower.
        """
        check_weights(weights, self.model)
        own = select_weights(weights, "visual.")

        # weights and inserts need the client axis in front
        shape = images.shape[:-3]
        x = self.pixels(images.flatten(0, -4))
        if own or inserts:
            x = x.unflatten(0, shape)

        with arithmetic(self.precision, self.device):
            final, patches = self._image(x, own, inserts, self.gradient_checkpointing)
        return _unit(final).view(*shape, -1), _unit(patches).view(*shape, *patches.shape[-2:])

    def first_norm(self, tokens: Tensor) -> Tensor:
        """Return tokens [..., image_width] after the norm before the image tower's first block.

        An insert at the place "input" of block 1 puts in tokens that have not passed this norm.
        """
        return self._image.first_norm()(tokens)

    @torch.no_grad()
    def patch_embeddings(self, images: Tensor) -> Tensor:
        """Return the patch tokens [..., T, image_width] as they enter the image tower's first norm.

        They are a linear function of the pixels of uint8 images [..., H, W, channels], plus
        positions.
        """
        with arithmetic(self.precision, self.device):
            patches = self._image.patch_embeddings(self.pixels(images.flatten(0, -4)))
        return patches.unflatten(0, images.shape[:-3])

    def compute_cache(self, images: Tensor, cache: str) -> dict[str, Tensor]:
        """Return `final` [N, d_joint] or, in half precision, `patches` [N, T, d_joint].

        Raises:
            FedLoomError: the image tower gives no patches.
        """
        if cache == "patches" and not self.has_patches:
            raise FedLoomError(
                f"backbone {self._name}: its image tower gives no features of patches in the joint "
                "space; choose a CLIP whose ViT is read at its class token"
            )
        final, patches = self.image_features(images)
        if cache == "features":
            return {"final": final}
        return {"patches": patches.half()}

    def text_features(
        self,
        context: Tensor,
        classes: Sequence[str],
        length: Tensor | None = None,
        eot_offset: Tensor | None = None,
        weights: Weights | None = None,
        inserts: Inserts | None = None,
    ) -> Tensor:
        """Return the features [..., C, d_joint] of learned contexts in front of every class name.

        Args:
            context: [..., L, d]; with weights or inserts [K, ..., L, d].
            classes: names; an underscore counts as a space.
            length: int64 [...], how many tokens of each context count, from 0 to L; None: all. The
                other tokens get no gradient.
            eot_offset: int64 [...], how many positions behind its EOT a feature is read; None: 0.
            weights: {name: [K, ...]}, the clients' values of some of `init_weights()`. Those of the
                image tower are not used.
            inserts: {block: {place: function}} of the text tower. The functions get tokens [K, n,
                S, d], for n contexts per client. The S tokens are SOS, the context, and the endings
                of several classes; S must stay the same. In a tower without a mask, n counts each
                class of a context, and the S tokens are the one that is read, the context, and all
                others. At the place "input", `deep_prompts` of L tokens replaces the context.

        An `eot_offset` of o reproduces FedPHA's code. That code tokenises for a context that is o
        tokens longer, and then puts in the shorter one. So embeddings of token 0, with which CLIP's
        tokenizer fills up a text, follow the EOT, and the last o positions of the tower are zeros.
        """
        # make one axis of all contexts, also for a single one
        flat = context[None].flatten(0, -3)  # [N, L, d]
        if length is not None:
            length = length.flatten()
        if eot_offset is not None:
            eot_offset = eot_offset.flatten()

        # the clients' weights and inserts of the text tower
        check_weights(weights, self.model)
        inside = None
        text_weights = {k: v for k, v in (weights or {}).items() if not k.startswith("visual.")}
        if text_weights or inserts:
            contexts = len(flat) // len(context)
            own = select_weights(text_weights, self._text_prefix)
            inside = Inside(own, inserts, contexts, self.gradient_checkpointing)

        endings = _endings(tuple(classes))
        features = F.normalize(self._text(flat, endings, length, eot_offset, inside), dim=-1)
        return features.view(*context.shape[:-2], *features.shape[1:])

    def max_context_length(self, classes: Sequence[str]) -> int:
        """Return the largest number of tokens that a context in front of these classes may have."""
        return self._text.max_context_length(_endings(tuple(classes)))

    def text_floats(self, classes: Sequence[str]) -> int:
        """Return how many floats the prompts of all classes have at the inputs of all blocks."""
        return self._text.floats(_endings(tuple(classes)))

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> Tensor:
        """Return the features [N, d_joint] of N whole texts, which are computed once and kept."""
        if (key := tuple(texts)) not in self._encoded:
            nothing = torch.zeros(1, 0, self.width, device=self.device)
            self._encoded[key] = F.normalize(self._text(nothing, key)[0], dim=-1)
        return self._encoded[key]

    def zero_shot(self, classes: Sequence[str], templates: Sequence[str]) -> Tensor:
        """Return features [C, d_joint] of classes, averaged over templates ("a photo of a {}.")."""
        names = _names(tuple(classes))
        features: list[Tensor] = []
        for template in templates:
            features.append(self.encode([template.replace("{}", name) for name in names]))
        return F.normalize(torch.stack(features).mean(0), dim=-1)

    def init_context(self, length: int, generator: torch.Generator) -> Tensor:
        """Draw a context [L, d] of `length` tokens from N(0, 0.02²), as CoOp does."""
        return (0.02 * torch.randn(length, self.width, generator=generator)).to(self.device)

    def embed_text(self, text: str) -> Tensor:
        """Return the token embeddings [L, d] of a text, such as "a photo of a"."""
        return self._text.embed(self._text.ids(text))


def _unit(x: Tensor) -> Tensor:
    """Return vectors scaled to unit length. Vectors in half precision become float32."""
    return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)


@lru_cache(maxsize=64)
def _names(classes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the class names as prompts have them: without underscores."""
    names = [" ".join(name.replace("_", " ").split()) for name in classes]
    if "" in names:
        raise FedLoomError(
            f"every class must have a name for its prompt, class {names.index('')} of {len(names)} "
            "has none; set class_names of the dataset"
        )
    return tuple(names)


@lru_cache(maxsize=64)
def _endings(classes: tuple[str, ...]) -> tuple[str, ...]:
    """Return what follows a context: a space, the class name and a full stop."""
    return tuple(f" {name}." for name in _names(classes))

"""A CLIP of open_clip: image and text features in one space, prompts of any length."""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import open_clip
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.backbones.backbone import Backbone, Device, Pixels, check_model, loading, preprocessing
from fedloom.backbones.blocks import Inserts, Weights, below, check_weights
from fedloom.backbones.clip import micro_clip
from fedloom.backbones.clip.image import ImageTower
from fedloom.backbones.clip.text import TOKENS_AT_ONCE, Inside, TextTower
from fedloom.backbones.weights import check_finite, plain_clip_file, weights_file
from fedloom.common.errors import FedLoomError, check_known
from fedloom.config.settings import weights_file as named_file
from fedloom.machine.device import arithmetic
from fedloom.machine.memory import training_bytes


class FrozenCLIP(Backbone):
    """A CLIP whose weights are frozen unless a method brings clients' own.

    All features are of unit length: every loss and every logit of CLIP is computed from such.

    Attributes:
        width: d, the width of a context's tokens.
        image_width: the width of the image tower's tokens.
        text_depth, image_depth: numbers of blocks of the towers; a ResNet has none.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        name: str,
        device: Device = "cpu",
        precision: str = "float32",
        gradient_checkpointing: bool = False,
        spec: dict[str, Any] | None = None,
        tokens_at_once: int = TOKENS_AT_ONCE,
    ):
        """Freeze `model`, a CLIP or CustomTextCLIP, to compute in `precision`.

        Images are normalised as open_clip says, or an entry `spec`. Classes of at most
        `tokens_at_once` tokens share a sequence of the text tower.
        """
        super().__init__(model, device, precision, gradient_checkpointing)

        # the towers, and which weights clients may train
        visual: Any = self.model.visual
        self._image = ImageTower(visual, name)
        self._text = TextTower(model, tokenizer, name, precision, tokens_at_once)
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
        """The factor of a cosine in a logit: 100 in OpenAI's models."""
        return float(self.model.logit_scale.exp())

    @cached_property
    def logit_bias(self) -> float:
        """The constant that is added to every logit: 0 in most models."""
        if self.model.logit_bias is None:
            return 0.0
        return float(self.model.logit_bias)

    def logits(self, images: Tensor, text: Tensor) -> Tensor:
        """Return logits [..., B, C] of images [..., B, d_joint] and texts [..., C, d_joint]."""
        return self.logit_scale * images @ text.transpose(-1, -2) + self.logit_bias

    def image_features(
        self, images: Tensor, weights: Weights | None = None, inserts: Inserts | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the features [..., d_joint] of images and those [..., T, d_joint] of patches.

        Patches are the other tokens of the image tower, projected as the class token is. Images are
        uint8 [..., H, W, channels], [K, B, H, W, channels] with weights {name: [K, ...]}, some of
        `init_weights()`, or inserts {block: {place: function}} in the image tower.
        """
        check_weights(weights, self.model)
        own = below(weights, "visual.")

        # clients' weights and inserts need the client axis in front
        shape = images.shape[:-3]
        x = self.pixels(images.flatten(0, -4))
        if own or inserts:
            x = x.unflatten(0, shape)

        with arithmetic(self.precision, self.device):
            final, patches = self._image(x, own, inserts, self.gradient_checkpointing)
        return _unit(final).view(*shape, -1), _unit(patches).view(*shape, *patches.shape[-2:])

    def first_norm(self, tokens: Tensor) -> Tensor:
        """Return tokens [..., image_width] behind the norm before the image tower's first block.

        Inserts at the place "input" of block 1 have not passed it.
        """
        return self._image.first_norm()(tokens)

    @torch.no_grad()
    def patch_embeddings(self, images: Tensor) -> Tensor:
        """Return the patches [..., T, image_width] that enter the image tower's first norm.

        They are linear in the pixels of uint8 images [..., H, W, channels], plus their positions.
        """
        with arithmetic(self.precision, self.device):
            patches = self._image.patch_embeddings(self.pixels(images.flatten(0, -4)))
        return patches.unflatten(0, images.shape[:-3])

    def compute_cache(self, images: Tensor, cache: str) -> dict[str, Tensor]:
        """Compute `final` [N, d_joint], or `patches` [N, T, d_joint] in half precision for size."""
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
        """Return the features [..., C, d_joint] of learned contexts before every class's name.

        With `eot_offset` o, a feature is read o positions behind its EOT. This reproduces FedPHA's
        code: it tokenises for a context that is o tokens longer, and then puts in the shorter one.
        So the EOT is followed by embeddings of token 0, with which CLIP's tokenizer fills up a
        text, and the last o positions of the tower are zeros.

        Args:
            context: [..., L, d]; [K, ..., L, d] with weights or inserts.
            classes: names; an underscore is a space.
            length: int64 [...], how many tokens of each context count, from 0 to L; None: all. The
                others get no gradient.
            eot_offset: int64 [...]; None: 0.
            weights: {name: [K, ...]}, some of `init_weights()`; the image tower's are unused.
            inserts: {block: {place: function}} of the text tower. The functions are given tokens
                [K, n, S, d], of n contexts per client: SOS, the context, the endings of several
                classes; S must stay. `deep_prompts` of L tokens at "input" replaces the context.
        """
        # all contexts in a row, also a single one
        flat = context[None].flatten(0, -3)  # [N, L, d]
        if length is not None:
            length = length.flatten()
        if eot_offset is not None:
            eot_offset = eot_offset.flatten()

        # what clients bring of their own into the text tower
        check_weights(weights, self.model)
        inside = None
        of_text = {k: v for k, v in (weights or {}).items() if not k.startswith("visual.")}
        if of_text or inserts:
            contexts = len(flat) // len(context)
            own = below(of_text, self._text_prefix)
            inside = Inside(own, inserts, contexts, self.gradient_checkpointing)

        endings = _names(tuple(classes), ".")
        features = F.normalize(self._text(flat, endings, length, eot_offset, inside), dim=-1)
        return features.view(*context.shape[:-2], *features.shape[1:])

    def max_context_length(self, classes: Sequence[str]) -> int:
        """Return how many tokens a context before these classes may have at most."""
        return self._text.max_context_length(_names(tuple(classes), "."))

    def text_floats(self, classes: Sequence[str]) -> int:
        """Return the size of what a prompt before every class's name is, at all blocks' inputs."""
        return self._text.floats(_names(tuple(classes), "."))

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> Tensor:
        """Return the features [N, d_joint] of N whole texts, computed once."""
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
        """Return the token embeddings [L, d] of a text such as "a photo of a"."""
        return self._text.embed(self._text.ids(text))


def _unit(x: Tensor) -> Tensor:
    """Return vectors scaled to length 1, of half precision in float32."""
    return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)


@lru_cache(maxsize=64)
def _names(classes: tuple[str, ...], end: str = "") -> tuple[str, ...]:
    """Return the class names as a prompt has them, without underscores, and `end` behind each."""
    names = [" ".join(name.replace("_", " ").split()) for name in classes]
    if "" in names:
        raise FedLoomError(f"class {names.index('')} of {len(names)} has no name for a prompt")
    return tuple(f"{name}{end}" for name in names)


def _check_tag(name: str, tag: str, quick_gelu: bool | None) -> None:
    """Check that open_clip has weights of this tag, and for this model."""
    known = open_clip.list_pretrained_tags_by_model(name)
    check_known(tag, known, f"backbone {name}: neither a .safetensors file nor open_clip's weights")
    config: Any = open_clip.get_model_config(name)

    # the weights must have been trained with the activation that the model computes
    trained_so = open_clip.get_pretrained_cfg(name, tag).get("quick_gelu", False)
    if trained_so and quick_gelu is False:
        raise FedLoomError(
            f"backbone {name}: weights '{tag}' need QuickGELU; leave out quick_gelu, and name the "
            "model that has it, as ViT-B-16-quickgelu"
        )
    if trained_so and not quick_gelu and not config.get("quick_gelu", False):
        raise FedLoomError(
            f"backbone {name}: weights '{tag}' need QuickGELU; name the model {name}-quickgelu"
        )
    if quick_gelu and not trained_so:
        raise FedLoomError(
            f"backbone {name}: weights '{tag}' were trained without QuickGELU; leave out quick_gelu"
        )


def load(spec: dict, device: Device = "cpu") -> FrozenCLIP:
    """Build a backbone from an entry of the config's `backbones`, see `backbone.load_backbone`."""
    name = spec["name"]
    weights = spec["weights"]
    quick_gelu = spec.get("quick_gelu")
    check_model(name, open_clip.list_models(), f"open_clip {open_clip.__version__}")

    # a file, a tag of open_clip, or none
    path = None
    tag = None
    if named_file("open_clip", weights) is not None:
        path = weights_file(name, weights)
    elif weights != "none":
        tag = weights
        _check_tag(name, tag, quick_gelu)

    with loading(name, weights):
        if name == micro_clip.MICRO_CLIP and path:
            model = micro_clip.build(path)
        elif name == micro_clip.MICRO_CLIP:
            model = micro_clip.fresh()
        elif path:
            with plain_clip_file(path) as plain:
                model = _model(name, str(plain), quick_gelu, device)
        else:
            model = _model(name, tag, quick_gelu, device)
        tokenizer = open_clip.get_tokenizer(name)
    if weights != "none":
        check_finite(model, name, weights)

    precision = spec.get("precision", "float32")
    checkpointing = spec.get("gradient_checkpointing")
    return FrozenCLIP(model, tokenizer, name, device, precision, bool(checkpointing), spec)


def _model(name: str, weights: str | None, quick_gelu: bool | None, device: Device) -> Any:
    """Build a model of open_clip; `quick_gelu` replaces what its config says, unless it is None."""
    own: Any = {}
    if quick_gelu is not None:
        own["quick_gelu"] = quick_gelu
    return open_clip.create_model(name, pretrained=weights, device=device, **own)

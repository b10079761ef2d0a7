"""Choose how the text tower of an open_clip model is computed."""

from typing import Any

from torch import nn

from fedloom.backbones.clip.text import PackedTexts
from fedloom.backbones.clip.text_tower import TextTower
from fedloom.backbones.clip.whole_texts import WholeTexts
from fedloom.common.errors import FedLoomError


def text_tower(
    model: nn.Module, tokenizer: Any, name: str, precision: str, tokens_at_once: int
) -> TextTower:
    """Return the text tower of `model`, a CLIP or a CustomTextCLIP (which keeps it in `.text`).

    Raises:
        FedLoomError: the tower is not open_clip's own, or is not read where FedLoom reads one.
    """
    text: Any = getattr(model, "text", model)
    read_at = None
    if hasattr(getattr(text, "transformer", None), "resblocks"):
        read_at = _read_at(text, tokenizer)

    # with a causal mask, only the tokens up to the EOT count
    is_causal = getattr(text, "attn_mask", None) is not None
    if read_at == "EOT" and is_causal:
        return PackedTexts(model, tokenizer, name, precision, tokens_at_once)
    if read_at is not None and not is_causal:
        return WholeTexts(model, tokenizer, name, precision, reads_last=read_at == "last place")
    raise FedLoomError(
        f"backbone {name}: its text tower cannot be read; use a model with open_clip's own, "
        "causal and read at the EOT of CLIP's tokenizer, or without a mask and read there or at "
        "the last place"
    )


def _read_at(text: Any, tokenizer: Any) -> str | None:
    """Return where a text tower is read, "EOT" or "last place"; None if FedLoom cannot do so."""
    # towers with a class token behind the text, and tokenizers that do not say what ends a text
    if getattr(text, "cls_emb", None) is not None or not hasattr(tokenizer, "sot_token_id"):
        return None

    # the attributes differ between a CLIP and a CustomTextCLIP
    pool = getattr(text, "text_pool_type", None) or text.pool_type
    if pool == "last":
        return "last place"

    # the EOT is the largest token only of CLIP's tokenizer, which has an SOS
    if pool == "argmax" and tokenizer.sot_token_id is not None:
        return "EOT"
    if pool == "eos":
        end = text.text_eos_id if hasattr(text, "text_eos_id") else text.eos_id
        if end == tokenizer.eot_token_id:
            return "EOT"
    return None

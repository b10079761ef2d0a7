"""Text features of a CLIP as other people's code computes them: one text at a time, all places."""

from typing import Any

import open_clip
import torch
import torch.nn.functional as F
from torch import Tensor


def make_clip(kind: type, joint: int, vision: dict, text: dict, **more) -> Any:
    """Return a CLIP of open_clip in evaluation mode, with parameters off their first values."""
    torch.manual_seed(0)
    model = kind(joint, vision, text, **more)
    for parameter in model.parameters():  # biases and norms start at 0 and 1, hiding mistakes
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    numbers = (0.5,) if "timm_pool" in vision else (0.1, 0.5, 0.9)
    cfg = {"size": vision["image_size"], "mean": numbers, "std": numbers}
    open_clip.set_model_preprocess_cfg(model, cfg | {"interpolation": "bicubic"})
    return model.eval()


def features_behind(model: Any, context: Tensor, names, longest: int) -> Tensor:
    """Return features [C, d_joint] of a context [L, d] as FedPHA's released code has them.

    Texts are tokenised for a context of `longest` tokens. The learned context takes its place, zero
    vectors fill what is missing at the end, and the EOT is looked up in the tokens.
    """
    tokens = open_clip.tokenize(["x " * longest + name.replace("_", " ") + "." for name in names])
    features = []
    for row in tokens:
        embedded = model.token_embedding(row)  # [77, d]
        prompt = torch.cat([embedded[:1], context, embedded[1 + longest :]])
        prompt = torch.cat([prompt, torch.zeros(len(row) - len(prompt), prompt.shape[1])])
        x = (prompt + model.positional_embedding)[None]
        states = model.ln_final(model.transformer(x, attn_mask=model.attn_mask))[0]
        features.append(states[row.argmax()] @ model.text_projection)
    return F.normalize(torch.stack(features), dim=-1)


def features(model: open_clip.CLIP, context: Tensor, names) -> Tensor:
    """Return features [C, d_joint] read at the EOT right behind the context, as CoOp does."""
    return features_behind(model, context, names, len(context))


def logits(model: open_clip.CLIP, images: Tensor, text: Tensor) -> Tensor:
    """Return logits [B, C] of image features [B, d_joint] and text features [C, d_joint]."""
    return model.logit_scale.exp() * images @ text.T

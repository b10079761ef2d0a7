"""A small ViT of a class that FedLoom does not know, as a plugin with a library of backbones."""

from pathlib import Path

from data_plugin_cases import write_plugin
from fedloom.config import kind_plugins

TOML = """
name = "own"
description = "A tiny ViT with a layer each for queries, keys and values."
example = {name = "tiny", image_size = 16}

[options.pool]
type = "string"
enum = ["token", "mean", "weighted"]
default = "token"
description = "What heads classify."

[options.registers]
type = "integer"
minimum = 0
default = 0
description = "Number of registers."
"""

CODE = '''
"""A tiny ViT."""

import torch
from torch import nn

from fedloom.backbones.backbone_toolbox import FedLoomError, Transform, ViTParts

WIDTH = 16
HEADS = 2
DEPTH = 12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before = nn.LayerNorm(WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.between = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 24), nn.ReLU(), nn.Linear(24, WIDTH))
        self.heads = HEADS

    def forward(self, tokens):
        x = self.before(tokens)
        q, k, v = (
            layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        shares = (q @ k.mT / (WIDTH / HEADS) ** 0.5).softmax(-1)
        tokens = tokens + self.out((shares @ v).transpose(1, 2).flatten(2))
        return tokens + self.mlp(self.between(tokens))


class Embedding(nn.Module):
    def __init__(self, prefix, side):
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 8, 8)
        self.first = nn.Parameter(torch.randn(prefix, WIDTH))
        self.positions = nn.Parameter(torch.randn((side // 8) ** 2 + prefix, WIDTH))

    def forward(self, x):
        patches = self.stem(x).flatten(2).mT
        tokens = torch.cat([self.first.expand(len(x), -1, -1), patches], 1)
        return tokens + self.positions


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, tokens):
        return (self.score(tokens).softmax(-2) * tokens).sum(-2)


class Tiny(nn.Module):
    def __init__(self, pool, registers, side):
        super().__init__()
        self.pool = pool
        self.prefix = int(pool == "token") + registers
        self.embedding = Embedding(self.prefix, side)
        self.layers = nn.ModuleList(Block() for _ in range(DEPTH))
        self.last = nn.LayerNorm(WIDTH)
        self.weighted = Weighted()

    def forward(self, x):
        tokens = self.embedding(x)
        for layer in self.layers:
            tokens = layer(tokens)
        tokens = self.last(tokens)
        if self.pool == "token":
            return tokens[:, 0]
        if self.pool == "mean":
            return tokens[:, self.prefix :].mean(1)
        return self.weighted(tokens)


def build(settings):
    if settings["name"] != "tiny":
        raise FedLoomError(f"name must be tiny, got '{settings['name']}'")
    return Tiny(settings["pool"], settings["registers"], transform(settings).size)


def transform(settings):
    return Transform(settings.get("image_size", 16), [0.5], [0.25])


def blocks(model):
    return ViTParts(
        embedding=model.embedding,
        blocks=list(model.layers),
        norm=model.last,
        patch_size=8,
        prefix=model.prefix,
        has_class_token=model.pool == "token",
        pool=model.weighted if model.pool == "weighted" else model.pool,
        block_parts={
            "heads": "heads",
            "norm1": "before",
            "q": "query",
            "k": "key",
            "v": "value",
            "proj": "out",
            "norm2": "between",
            "fc1": "mlp.0",
            "activation": "mlp.1",
            "fc2": "mlp.2",
        },
    )
'''


def write_backbone(folder: Path, *changes: tuple[str, str], toml: str = TOML):
    """Write the plugin into `folder`, with texts of plugin.py replaced; return its manifest."""
    code = CODE
    for old, new in changes:
        assert code.count(old) >= 1, old
        code = code.replace(old, new)
    write_plugin(folder, "backbone", code, toml)
    kind_plugins.plugins_of_type.cache_clear()
    return kind_plugins.plugins_of_type("backbone")["own"]

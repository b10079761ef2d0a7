"""A third party's library of backbones: its example, its contract, and what it breaks."""

import json

import pytest
import safetensors.torch
import torch
import torchvision
from torchvision.models.vision_transformer import interpolate_embeddings

from backbone_plugin_cases import TOML, write_backbone
from backbone_study import backbone_study
from data_plugin_cases import dropping
from fedloom.backbones.backbone import load_backbone
from fedloom.cli.inspect import describe
from fedloom.config.kind_plugins import plugins_of_type
from fedloom.config.shrink.scale import REAL
from fedloom.config.shrink.study import shrink
from fedloom.contract.backbone_checks import check_backbone
from fedloom.planning import staleness
from fedloom.planning.load_plan import load_plan, read_plan
from fedloom.planning.provenance import digest_of_weights
from fedloom.planning.resources.backbone_sizes import size_key, sizes
from fedloom.planning.rules import RULES
from fedloom.planning.run_labels import Wildcards
from refusals import refused

# an entry of the example: torchvision's smallest ViT on small images
ENTRY = {"name": "vit_b_32", "weights": "none", "image_size": 64, "tag": "IMAGENET1K_V1"}


@pytest.fixture
def drop(tmp_path, monkeypatch):
    """Return drop(*names), which makes these examples the plugins of this process."""
    return dropping(tmp_path, monkeypatch)


def _study(tmp_path, method="head_tuning", **entry):
    """Write a study on a plugin's backbone, with one method, and return its file."""
    return backbone_study(tmp_path, method, entry)


# ---- the example ---------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [64, 96])
def test_the_example_computes_the_features_of_torchvision(side, drop):
    drop("torchvision_vit")
    vit = load_backbone("torchvision_vit", ENTRY | {"image_size": side})
    images = torch.randint(0, 256, (2, 3, 80, 80, 3), dtype=torch.uint8)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        own = torchvision.models.vit_b_32(image_size=side).eval()
    own.heads = torch.nn.Identity()
    with torch.no_grad():
        expected = own(vit.pixels(images.flatten(0, 1))).unflatten(0, (2, 3))
        found = vit.features(images)
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


def test_the_example_reads_a_file_of_torchvision_at_another_size(drop, tmp_path):
    """The file has a head, and positions for images of 64 pixels."""
    drop("torchvision_vit")
    theirs = torchvision.models.vit_b_32(image_size=64, num_classes=5).eval()
    file = tmp_path / "vit.safetensors"
    safetensors.torch.save_file(theirs.state_dict(), file)
    vit = load_backbone("torchvision_vit", ENTRY | {"weights": str(file), "image_size": 96})
    weights = vit.init_weights()
    assert torch.equal(weights["blocks.3.mlp.0.weight"], theirs.encoder.layers[3].mlp[0].weight)
    resized = interpolate_embeddings(96, 32, theirs.state_dict())["encoder.pos_embedding"]
    assert torch.equal(weights["embedding.positions"], resized)
    assert weights["embedding.positions"].shape == (1, 1 + 9, 768)


def test_weights_of_the_hub_are_downloaded_without_pickled_code(drop, monkeypatch):
    drop("torchvision_vit")
    theirs = torchvision.models.vit_b_32(image_size=224)
    asked = {}

    def download(url, **keys):
        asked.update(keys, url=url)
        return theirs.state_dict()

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", download)
    vit = load_backbone("torchvision_vit", ENTRY | {"weights": "hub"})
    assert asked["weights_only"] and asked["check_hash"] and "vit_b_32" in asked["url"]
    found = vit.init_weights("class_token")["embedding.class_token"]
    assert torch.equal(found, theirs.class_token)


def test_a_tag_that_torchvision_lacks_is_refused(drop):
    drop("torchvision_vit")
    with refused("vit_b_32", "tag", "IMAGENET1K_V1", "'SWAG'"):
        load_backbone("torchvision_vit", ENTRY | {"tag": "SWAG"})


# ---- the contract --------------------------------------------------------------------------------


def test_the_example_keeps_the_contract(drop):
    drop("torchvision_vit")
    done = check_backbone(plugins_of_type("backbone")["torchvision_vit"])
    assert "11 checks" in done and "can be trained inside" in done


@pytest.mark.parametrize("registers", [0, 3])
@pytest.mark.parametrize("pool", ["token", "mean", "weighted"])
def test_a_vit_of_its_own_classes_keeps_the_contract(pool, registers, drop):
    entry = f'image_size = 16, pool = "{pool}", registers = {registers}}}'
    toml = TOML.replace("image_size = 16}", entry)
    assert "11 checks" in check_backbone(write_backbone(drop(), toml=toml))


def test_block_parts_may_be_left_out(drop):
    plugin = write_backbone(drop(), ("block_parts={", "block_parts={} and {"))
    assert "cannot be trained inside" in check_backbone(plugin)


DRAWN = "nn.Parameter(torch.randn(prefix, WIDTH))"
DRAWN_BY_NUMPY = "nn.Parameter(torch.tensor(numpy.random.rand(1, WIDTH), dtype=torch.float32))"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        # the parts of a block
        ([('"norm1": "before"', '"norm1": "between"')], ["block_parts of blocks[0]", "output"]),
        ([('"q": "query"', '"q": "value"')], ["block_parts of blocks[0]"]),
        ([('"heads": "heads"', '"heads": "depth"')], ["blocks[0] has no 'depth'", "'heads'"]),
        ([('"proj": "out"', '"projection": "out"')], ["no role 'projection'", "known"]),
        ([('"fc2": "mlp.2",', "")], ["block_parts", "'fc2'", "got none"]),
        # the parts around the blocks
        ([("norm=model.last", "norm=nn.LayerNorm(WIDTH)")], ["weight 'last.weight'", "Parameter"]),
        ([("tokens = self.last(tokens)", "tokens = 2 * self.last(tokens)")],
         ["model(images)", "differ"]),
        ([("embedding=model.embedding", "embedding=model")], ["embedding", "those of a block"]),
        ([("self.positions = nn.Parameter(", "self.positions = ("), 
          ("self.last =", "self.place = nn.Parameter(self.embedding.positions); "
           "self.embedding.positions = self.place * 1; self.last =")],
         ["holds_all_weights", "'place'"]),
        ([("pool=model.weighted if", "pool=nn.Linear(WIDTH, 10) if 1 or")],
         ["pool must return features [1, 16]", "[1, 5, 10]"]),
        ([("return tokens + self.mlp", "return tokens, tokens + self.mlp")],
         ["a block must return tokens", "tuple"]),
        ([('"activation": "mlp.1"', '"activation": "heads"')], ["'activation'", "Module", "int"]),
        ([('"heads": "heads"', '"heads": "query"')], ["'heads'", "int", "Linear"]),
        ([("patch_size=8", "patch_size=4")], ["counts_its_patches", "prefix and patch_size"]),
        ([("prefix=model.prefix", "prefix=5")], ["prefix", "5 tokens", "got 5"]),
        ([("prefix=model.prefix", "prefix=2")], ["prefix and patch_size", "prefix of 2"]),
        # how images become the input
        ([("[0.5], [0.25])", "[0.5], [0.25], 'BICUBIC')")], ["interpolation", "'BICUBIC'"]),
        ([("[0.5], [0.25])", "[0.5, 0.5], [0.25])")], ["mean", "3 channels", "got 2"]),
        ([('settings.get("image_size", 16)', "24")], ["image_size, 16", "got 24"]),
        ([("pool=model.weighted if", "pool='first' if 1 or")], ["pool must be", "'first'"]),
        ([("norm=model.last", "norm=None")], ["norm must be a torch module", "NoneType"]),
        ([("prefix=model.prefix", "prefix=0")], ["prefix", "class token", "got 0"]),
        # what the model computes
        ([("return tokens + self.positions", "return tokens + self.positions * x.mean()")],
         ["in any batch"]),
        ([("import torch\n", "import torch, numpy\n"), (DRAWN, DRAWN_BY_NUMPY)],
         ["draw the same weights", "embedding.first"]),
        ([("block_parts={", "block_parts={} and {"),
          ("x = self.before(tokens)", "x = self.before(tokens) + tokens.new_zeros(5, 1)")],
         ["check takes_prompts", "plugin.py:"]),
        # the functions
        ([("def blocks(", "def parts(")], ["build(settings)", "no blocks"]),
        ([("transform(settings).size", "16"), ("return Transform(", "return (")],
         ["transform must return a Transform", "tuple"]),
        ([("return ViTParts(", "return dict(")], ["blocks must return a ViTParts", "dict"]),
        ([("return Tiny(", "return 1 / 0, (")], ["build", "plugin.py:", "ZeroDivisionError"]),
    ],
)  # fmt: skip
def test_a_breach_is_one_line_that_names_the_plugin(changes, words, drop):
    plugin = write_backbone(drop(), *changes)
    with refused("own", *words):
        check_backbone(plugin)


def test_an_operation_without_a_deterministic_form_is_refused(drop):
    toml = TOML.replace("image_size = 16}", 'image_size = 16, pool = "weighted"}')
    score = (
        "(self.score(tokens).softmax(-2) * tokens).sum(-2)",
        "nn.functional.adaptive_avg_pool2d(tokens[None], (2, WIDTH))[0, :, 0]",
    )
    with refused("own", "is_deterministic_on_a_gpu", "adaptive_avg_pool2d"):
        check_backbone(write_backbone(drop(), score, toml=toml))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('example = {name = "tiny", image_size = 16}', "", ["example"]),
        ("image_size = 16", "image_sise = 16", ["example.image_sise", "image_size"]),
        ("options.pool", "options.weights", ["options.weights", "rename"]),
        ("options.pool", "options.library", ["options.library", "rename"]),
        ("options.pool", "options.precision", ["options.precision", "rename"]),
        ('type = "integer"', 'type = "integer"\nformat = "path"', ["options.registers", "string"]),
    ],
)
def test_a_toml_file_that_is_wrong_is_one_line(old, new, words, drop):
    with refused("own/backbone.toml", *words):
        write_backbone(drop(), toml=TOML.replace(old, new))


# ---- what FedLoom computes with it ---------------------------------------------------------------


@pytest.mark.parametrize("pool", ["token", "mean", "weighted"])
@pytest.mark.parametrize(
    "keys", [{"precision": "bf16"}, {"gradient_checkpointing": True}], ids=lambda keys: str(keys)
)
def test_it_computes_in_bf16_and_with_checkpointing(keys, pool, drop):
    write_backbone(drop())
    spec = {"name": "tiny", "weights": "none", "pool": pool, "registers": 1}
    images = torch.randint(0, 256, (2, 3, 16, 16, 3), dtype=torch.uint8)
    plain, other = (load_backbone("own", spec | more) for more in ({}, keys))
    head = torch.randn(2, 5, 16)
    expected, found = (vit.forward(images, head) for vit in (plain, other))
    assert found.dtype == torch.float32
    tolerance = 0.05 if "precision" in keys else 0.0
    assert (found - expected).abs().max() <= tolerance * expected.abs().max()


def test_a_plugin_may_change_its_settings_and_print(drop, tmp_path, monkeypatch):
    """Neither reaches the job's settings, or the counted sizes."""
    change = "def build(settings):\n    print('building')\n    settings['name'] = 'tiny'\n"
    write_backbone(drop(), ("def build(settings):\n", change))
    spec = {"name": "any", "weights": "none", "pool": "token", "registers": 0}
    load_backbone("own", spec)
    assert spec["name"] == "any"
    monkeypatch.chdir(tmp_path)
    backbone = read_plan([_study(tmp_path, library="own", name="any")]).settings.backbones["b"]
    assert sizes(backbone).tokens == 5


def test_an_edit_counts_in_the_same_process(drop, tmp_path):
    folder = drop()
    write_backbone(folder)
    spec = {"name": "tiny", "weights": "none", "pool": "token", "registers": 0}
    white = torch.full((1, 16, 16, 3), 255, dtype=torch.uint8)
    assert load_backbone("own", spec).pixels(white).unique().tolist() == [2.0]
    file = folder / "own/plugin.py"
    file.write_text(file.read_text().replace("[0.5], [0.25]", "[0.5], [0.125]"))
    assert load_backbone("own", spec).pixels(white).unique().tolist() == [4.0]


# ---- files and weights ---------------------------------------------------------------------------

WITH_FILE = (
    TOML
    + """
[options.extra]
type = "string"
format = "path"
default = ""
description = "A file."
"""
)


def test_files_of_options_are_known_by_their_contents(drop, tmp_path, monkeypatch):
    write_backbone(drop(), toml=WITH_FILE)
    monkeypatch.chdir(tmp_path)

    def planned():
        file = _study(tmp_path, library="own", name="tiny", extra="extra.npy")
        return read_plan([file]).settings.backbones["b"]

    with refused("backbones.b", "extra", "no file", "extra.npy"):
        planned()
    (tmp_path / "extra.npy").write_bytes(b"aaaa")
    first = planned()
    load_backbone("own", first.settings)
    (tmp_path / "extra.npy").write_bytes(b"bbbb")
    second = planned()
    assert first.settings["files_sha256"] != second.settings["files_sha256"]
    assert size_key(first) != size_key(second)
    with refused("tiny", "extra", "put those back"):
        load_backbone("own", first.settings)


def test_other_options_are_other_weights_of_the_hub(drop, tmp_path, monkeypatch):
    """An edit of the plugin may change the weights, too; the same things must give the same."""
    folder = drop()
    toml = TOML.replace("example", "has_hub = true\nexample")
    write_backbone(folder, toml=toml)
    monkeypatch.chdir(tmp_path)

    def compare(digest, **entry):
        file = _study(tmp_path, library="own", name="tiny", weights="hub", **entry)
        backbone = read_plan([file]).settings.backbones["b"]
        assert digest_of_weights("r", backbone, lambda: digest) == digest

    compare("1")
    compare("2", pool="mean")
    with refused("hub's weights of backbones.b", "delete"):
        compare("3", pool="mean")
    with (folder / "own/plugin.py").open("a") as file:
        file.write("# more\n")
    compare("4", pool="mean")


# ---- planning ------------------------------------------------------------------------------------


def test_a_study_uses_it_and_its_keys_are_checked(drop, tmp_path, monkeypatch):
    write_backbone(drop())
    monkeypatch.chdir(tmp_path)
    backbone = read_plan([_study(tmp_path, library="own", name="tiny")]).settings.backbones["b"]
    assert backbone.family == "vit" and backbone.settings["pool"] == "token"
    for entry, words in [
        ({"pool": "max"}, ["backbones.b.pool", "max"]),
        ({"polo": "mean"}, ["backbones.b.polo", "pool"]),
        ({"weights": "away.safetensors"}, ["backbones.b.weights", "away.safetensors"]),
        ({"weights": "hub"}, ["backbones.b", "has no hub"]),
    ]:
        with refused("study.yaml", *words):
            read_plan([_study(tmp_path, library="own", name="tiny", **entry)])


def test_a_backbone_that_cannot_be_built_is_refused_in_planning(drop, tmp_path, monkeypatch):
    """The process that counts sizes finds plugins in the folder in which a person works."""
    write_backbone(drop())
    monkeypatch.chdir(tmp_path)
    with refused("backbones.b", "name must be tiny, got 'large'", "study.yaml"):
        load_plan([_study(tmp_path, library="own", name="large", image_size=16)])


def test_a_method_that_needs_a_class_token_is_refused_without_one(drop, tmp_path, monkeypatch):
    write_backbone(drop())
    monkeypatch.chdir(tmp_path)
    entry = {"library": "own", "name": "tiny", "pool": "mean"}
    with refused("backbones.b.name", "class token", "pep_fedpt", "study.yaml"):
        load_plan([_study(tmp_path, method="pep_fedpt", **entry)])


def test_a_command_prints_its_keys(drop):
    write_backbone(drop())
    text = describe.describe_kinds("own", backbones="library")
    assert text.startswith("library: own\n  A tiny ViT with a layer each")
    assert "  pool (token | mean | weighted, default 'token')\n      What heads classify." in text
    assert "library: timm" in describe.describe_kinds(backbones="library")


def test_sizes_depend_on_options_and_on_the_code(drop, tmp_path, monkeypatch):
    folder = drop()
    write_backbone(folder)
    monkeypatch.chdir(tmp_path)

    def backbone(**entry):
        file = _study(tmp_path, library="own", name="tiny", **entry)
        return read_plan([file]).settings.backbones["b"]

    counted = sizes(backbone())
    assert (counted.width, counted.depth, counted.tokens) == (16, 12, 5)
    assert counted.has_class_token and not sizes(backbone(pool="mean")).has_class_token
    assert sizes(backbone(image_size=24)).tokens == 10
    assert sizes(backbone(registers=2)).tokens == 7
    key = size_key(backbone())
    with (folder / "own/plugin.py").open("a") as file:
        file.write("# more\n")
    assert size_key(backbone()) != key
    assert json.loads(key.partition(" ")[2])["registers"] == 0


def test_an_edit_of_the_plugin_makes_its_caches_and_runs_again(drop, tmp_path, monkeypatch):
    folder = drop()
    write_backbone(folder)
    monkeypatch.chdir(tmp_path)
    plan = read_plan([_study(tmp_path, library="own", name="tiny")])
    of_cache = Wildcards(cache="features", dataset="glyphs", backbone="b")
    of_run = Wildcards(dataset="glyphs", partition="pathological", backbone="b",
                       method="head_tuning", seed="0", end="0001")  # fmt: skip
    for rule, wildcards in (("cache", of_cache), ("train", of_run)):
        files = staleness.source_files(*RULES[rule].code(plan.job(rule, wildcards)))
        names = {file.rpartition("/own/")[2] for file in files if "/own/" in file}
        assert names == {"plugin.py", "backbone.toml"}, rule
        assert any(file.endswith("backbones/vit_parts.py") for file in files)


def test_a_smoke_run_takes_a_micro_vit_in_its_place(drop, tmp_path, monkeypatch):
    write_backbone(drop())
    monkeypatch.chdir(tmp_path)
    plan = read_plan([_study(tmp_path, library="own", name="tiny")])
    small = shrink(plan.config, plan.settings)
    assert small["backbones"]["b"]["name"] == "micro_vit"
    real = shrink(plan.config, plan.settings, REAL)
    assert real["backbones"]["b"]["library"] == "own"

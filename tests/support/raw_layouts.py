"""The raw layout of every recipe's data set, made small; each maker returns the counts of its tree.

The counts have the keys of the recipe's own counts, so that each of them is compared.
"""

import json
from pathlib import Path

import numpy as np
from torchvision import datasets

import torchvision_files
from fedloom.config import recipes
from images_on_disk import image_folder, png, write_parquet

IMAGE = png(0, size=(4, 4))


def put(path: Path, content: bytes | str = IMAGE):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def lines(path, rows):
    put(path, "\n".join(rows) + "\n")


def halves(train, test, classes):
    """Return labels of two halves with these numbers of images of every class, and the counts."""
    labels = np.arange(classes)
    counts = {"train": train * classes, "test": test * classes, "classes": classes}
    return (np.repeat(labels, train), np.repeat(labels, test)), counts


def cifar10(root, monkeypatch):
    labels, counts = halves(3, 2, 10)
    torchvision_files.cifar(root, monkeypatch, datasets.CIFAR10, *labels, "abcdefghij")
    return counts | {"each_class": {"train": 3, "test": 2}}


def cifar100(root, monkeypatch):
    labels, counts = halves(2, 1, 100)
    names = [f"c{k}" for k in range(100)]
    torchvision_files.cifar(root, monkeypatch, datasets.CIFAR100, *labels, names)
    return counts | {"each_class": {"train": 2, "test": 1}}


def cifar100_lt(root, monkeypatch):
    """Write 101 images of the first class and one of the last: floor(101 * 100^(-i/99))."""
    labels, counts = halves(101, 1, 100)
    names = [f"c{k}" for k in range(100)]
    torchvision_files.cifar(root, monkeypatch, datasets.CIFAR100, *labels, names)
    sizes = [int(101 * 0.01 ** (i / 99)) for i in range(100)]
    return counts | {"train": sum(sizes), "each_class": {"test": 1}}


def mnist(root, monkeypatch):
    labels, counts = halves(3, 2, 10)
    torchvision_files.mnist(root, "MNIST", *labels)
    return counts


def fashion_mnist(root, monkeypatch):
    labels, counts = halves(3, 2, 10)
    torchvision_files.mnist(root, "FashionMNIST", *labels)
    return counts | {"each_class": {"train": 3, "test": 2}}


def svhn(root, monkeypatch):
    labels, counts = halves(3, 2, 10)
    torchvision_files.svhn(root, monkeypatch, *labels)
    return counts


def notmnist(root, monkeypatch):
    image_folder(root / "notMNIST_small", "ABCDEFGHIJ", count=10, mode="L")
    put(root / "notMNIST_small/A/broken.png", b"")
    return {"classes": 10, "at_least": {"images": 100}}


def mnist_m(root, monkeypatch):
    for half, count in (("train", 30), ("test", 20)):
        names = [f"{k:08}.png" for k in range(count)]
        rows = [f"{name} {k % 10}" for k, name in enumerate(names)]
        lines(root / f"mnist_m/mnist_m_{half}_labels.txt", rows)
        for name in names:
            put(root / f"mnist_m/mnist_m_{half}" / name)
    return {"classes": 10, "at_least": {"train": 30, "test": 20}}


def cinic10(root, monkeypatch):
    names = ["airplane", "automobile", "bird", "cat", "deer"]
    names += ["dog", "frog", "horse", "ship", "truck"]
    labels, counts = halves(2, 1, 10)
    (root / "data").mkdir(parents=True)
    for half, own in zip(("train", "test"), labels, strict=True):
        file = root / f"data/{half}-00000-of-00001.parquet"
        write_parquet(file, own.tolist(), names=names)
    return counts | {"each_class": {"train": 2, "test": 1}}


def mmafedb(root, monkeypatch):
    names = ["angry", "disgust", "fear", "happy", "neutral", "sad", "surprise"]
    image_folder(root / "MMAFEDB", ["train", "valid", "test"], names, count=2)
    return {"train": 14, "test": 14, "classes": 7}


def coop(base, name, classes, images):
    """Write a split as CoOp's: 3 training, 1 validation and 2 test images of every class."""
    split = {"train": [], "val": [], "test": []}
    for label in range(classes):
        for half, numbers in (("train", (0, 1, 2)), ("val", (3,)), ("test", (4, 5))):
            for k in numbers:
                path = f"class {label}/{k}.jpg"
                put(base / images / path)
                split[half].append([path, label, f"class {label}"])
    put(base / f"split_zhou_{name}.json", json.dumps(split))
    return {"train": 3 * classes, "test": 2 * classes, "classes": classes}


def food101(root, monkeypatch):
    return coop(root / "food-101", "Food101", 11, "images")


def dtd(root, monkeypatch):
    return coop(root / "dtd", "DescribableTextures", 5, "images")


def flowers102(root, monkeypatch):
    return coop(root, "OxfordFlowers", 12, "jpg")


def oxford_pets(root, monkeypatch):
    return coop(root, "OxfordPets", 4, "images")


def caltech101(root, monkeypatch):
    put(root / "caltech-101/101_ObjectCategories/Faces_easy/1.jpg")
    return coop(root / "caltech-101", "Caltech101", 10, "101_ObjectCategories")


def sun397(root, monkeypatch):
    put(root / "SUN397/ClassName.txt", "/a/abbey")
    return coop(root, "SUN397", 6, "SUN397")


def stanford_cars(root, monkeypatch):
    return coop(root, "StanfordCars", 4, ".")


def eurosat(root, monkeypatch):
    each = {f"class {label}": {"train": 3, "test": 2} for label in range(3)}
    return coop(root, "EuroSAT", 3, "2750") | {"by_class": each}


def ucf101(root, monkeypatch):
    return coop(root, "UCF101", 5, "UCF-101-midframes")


def fgvc_aircraft(root, monkeypatch):
    base = root / "fgvc-aircraft-2013b/data"
    names = ["707-320", "Hawk T1", "Tornado"]
    lines(base / "variants.txt", names)
    for half, count in (("train", 3), ("val", 2), ("test", 1)):
        rows = [
            (f"{half}{k}{label}", name) for label, name in enumerate(names) for k in range(count)
        ]
        lines(base / f"images_variant_{half}.txt", [f"{file} {name}" for file, name in rows])
        for file, _ in rows:
            put(base / f"images/{file}.jpg")
    return {"train": 9, "test": 3, "classes": 3}


def names_of_wordnet(root):
    """Write CoOp's classnames.txt, in which two names occur twice."""
    names = ["tench", "missile", "missile", "sunglasses", "sunglasses", "great white shark"]
    ids = ["n01440764", "n03773504", "n04008634", "n04355933", "n04356056", "n99999999"]
    lines(root / "classnames.txt", map(" ".join, zip(ids, names, strict=True)))
    return ids


def imagenet(root, monkeypatch):
    ids = names_of_wordnet(root)
    image_folder(root / "train", ids, count=3, suffix=".JPEG")
    image_folder(root / "val", ids, count=2, suffix=".JPEG")
    put(root / "ILSVRC2012_img_val.tar", "as it was downloaded")
    return {"train": 18, "test": 12, "classes": 6, "each_class": {"test": 2}}


def imagenet_v2(root, monkeypatch):
    folders = map(str, range(len(names_of_wordnet(root))))
    image_folder(root / "imagenetv2-matched-frequency-format-val", folders, suffix=".jpeg")
    return {"images": 24, "test": 24, "classes": 6, "each_class": {"images": 4}}


def imagenet_sketch(root, monkeypatch):
    image_folder(root / "sketch", names_of_wordnet(root), mode="L", suffix=".JPEG")
    return {"images": 24, "test": 24, "classes": 6}


def some_of_imagenet(root, name):
    image_folder(root / name, names_of_wordnet(root)[:2], suffix=".jpg")
    put(root / name / "README.txt", "about the classes")
    return {"images": 8, "test": 8, "classes": 2}


def imagenet_a(root, monkeypatch):
    return some_of_imagenet(root, "imagenet-a")


def imagenet_r(root, monkeypatch):
    return some_of_imagenet(root, "imagenet-r")


def tiny_imagenet(root, monkeypatch):
    base = root / "tiny-imagenet-200"
    image_folder(base / "train", ["n01", "n02"], ["images"], count=5)
    rows = [f"val_{k}.JPEG\tn0{1 + k % 2}\t0\t32\t44\t62" for k in range(4)]
    lines(base / "val/val_annotations.txt", rows)
    for k in range(4):
        put(base / f"val/images/val_{k}.JPEG")
    put(base / "test/images/test_0.JPEG")
    each = {"train": 5, "test": 2}
    return {"train": 10, "test": 4, "classes": 2, "each_class": each}


def office31(root, monkeypatch):
    for domain, count in (("amazon", 10), ("dslr", 5), ("webcam", 6)):
        image_folder(root / domain / "images", ["mug", "pen"], count=count)
    domains = {
        "amazon": {"images": 20, "test": 4},
        "dslr": {"images": 10, "test": 2},
        "webcam": {"images": 12, "test": 2},
    }
    counts = {"images": 42, "train": 34, "test": 8, "classes": 2, "domains": 3}
    return counts | {"by_domain": domains}


def officehome(root, monkeypatch):
    base = root / "OfficeHomeDataset_10072016"
    domains = ["Art", "Clipart", "Product", "Real World"]
    image_folder(base, domains, ["Alarm_Clock", "Bed", "Pen"], count=5)
    put(base / "ImageInfo.csv", "file beside the domains")
    return {"train": 4 * 13, "test": 4 * 2, "classes": 3, "domains": 4}


def pacs(root, monkeypatch):
    image_folder(root, ["art_painting", "cartoon", "photo", "sketch"], ["dog", "person"], count=10)
    each = {"images": 20}
    domains = dict.fromkeys(("art_painting", "cartoon", "photo", "sketch"), each)
    return {"images": 80, "classes": 2, "domains": 4, "by_domain": domains}


def vlcs(root, monkeypatch):
    domains = ["Caltech101", "LabelMe", "SUN09", "VOC2007"]
    classes = ["bird", "dog"]
    image_folder(root / "VLCS", domains, classes, count=5)
    return {
        "images": 40,
        "classes": 2,
        "domains": 4,
        "by_class": {name: {"images": 20} for name in classes},
        "by_domain": {name: {"images": 10} for name in domains},
    }


def terra_incognita(root, monkeypatch):
    domains = [f"location_{number}" for number in (38, 43, 46, 100)]
    image_folder(root / "terra_incognita", domains, ["bird", "empty"], count=5)
    return {"images": 40, "classes": 2, "domains": 4}


def by_lists(root, name, prefix, where, train, more):
    """Write lists of every domain and half, with `train` images of every class and some tests.

    Args:
        prefix: what paths in the lists begin with.
        where: folder of the lists.
        more: number of test images of the first domain's first class; the next domain has one more.
    """
    entry = recipes.find_recipe(name).entry
    classes = entry.get("keep_classes", ["The_Eiffel_Tower", "t-shirt"])
    domains = {}
    for extra, domain in enumerate(entry["train"]):
        rows = {"train": [], "test": []}
        for label in classes:
            for half, count in (("train", train), ("test", 1)):
                if half == "test" and label == classes[0]:
                    count = more + extra
                for k in range(count):
                    path = f"{prefix}{domain}/{label}/{half}_{k}.jpg"
                    put(root / path)
                    rows[half].append(path)
        for half in rows:
            lines(root / where / f"{domain}_{half}.txt", rows[half])
        domains[domain] = {"images": sum(map(len, rows.values())), "test": len(rows["test"])}
    return domains


def domainnet(root, monkeypatch):
    domains = by_lists(root, "domainnet", "", "fedbn", 2, 3)
    put(root / "clipart/zigzag/1.jpg")
    test = {name: {"test": cell["test"]} for name, cell in domains.items()}
    total = sum(cell["test"] for cell in domains.values())
    return {"test": total, "classes": 10, "domains": 6, "by_domain": test}


def domainnet_345(root, monkeypatch):
    domains = by_lists(root, "domainnet_345", "", ".", 2, 3)
    halves = {n: {"train": c["images"] - c["test"], "test": c["test"]} for n, c in domains.items()}
    counts = {half: sum(cell[half] for cell in halves.values()) for half in ("train", "test")}
    return counts | {"classes": 2, "domains": 6, "by_domain": halves}


def office_caltech10(root, monkeypatch):
    name = "office_caltech_10"
    domains = by_lists(root, "office_caltech10", f"{name}/", name, 2, 3)
    total = sum(cell["images"] for cell in domains.values())
    return {"images": total, "classes": 10, "domains": 4, "by_domain": domains}


def inaturalist_user(root, monkeypatch):
    """Write three users with 16 images or more and one with 15, and test images without users."""
    users = {"5": 16, "6": 20, "7": 17, "8": 15}
    rows = []
    k = 0
    for user, count in users.items():
        for number in range(count):
            put(root / f"train_val_images/Plantae/s{number % 4}/x{k}.jpg")
            rows.append(f"{user},x{k},{number % 4}")
            k += 1
    lines(
        root / "inaturalist-user-120k/federated_train_user_120k.csv",
        ["user_id,image_id,class", *rows],
    )
    for number in range(8):
        put(root / f"train_val_images/Plantae/s{number % 4}/t{number}.jpg")
    test = [f"t{number},{number % 4}" for number in range(8)]
    lines(root / "inaturalist-user-120k/test.csv", ["image_id,class", *test])
    return {"test": 8, "classes": 4, "domains": 3}


def dermoscopic_fl(root, monkeypatch):
    for site in "ABCD":
        k = 0
        for half, count in (("train", 6), ("valid", 3), ("test", 3)):
            rows = [f"ISIC_{site}{k + i},{i % 3},0" for i in range(count)]
            k += count
            csv = root / f"csv_folder/client{site}/{half}_client{site}.csv"
            lines(csv, ["image_id,label,label_binary", *rows])
        for i in range(k):
            for size in ("128", "256"):
                put(root / f"client{site}/img_resize{size}/ISIC_{site}{i}.png")
    return {"images": 48, "classes": 3, "domains": 4}


def imagenet_lt(root, monkeypatch):
    train = [
        (f"train/n0{label}/{k}.JPEG", label) for label, n in enumerate((6, 2)) for k in range(n)
    ]
    test = [(f"val/n0{label}/{k}.JPEG", label) for label in (0, 1) for k in range(3)]
    for half, rows in (("train", train), ("test", test)):
        lines(root / f"ImageNet_LT_{half}.txt", [f"{path} {label}" for path, label in rows])
        for path, _ in rows:
            put(root / path)
    return {"train": 8, "test": 6, "classes": 2, "each_class": {"test": 3}}


def several(makers, root, monkeypatch):
    """Make several data sets; return their counts, those of halves, and those of the whole."""
    made = {make.__name__: make(root / make.__name__, monkeypatch) for make in makers}
    halves = {
        name: {half: counts[half] for half in ("train", "test") if half in counts}
        for name, counts in made.items()
    }
    return made, halves, {"classes": sum(c["classes"] for c in made.values()), "domains": len(made)}


def five_dataset(root, monkeypatch):
    makers = (svhn, cifar10, notmnist, fashion_mnist, mnist)
    made, domains, counts = several(makers, root, monkeypatch)
    domains["notmnist"] = {"at_least": made["notmnist"]["at_least"]}
    return counts | {"by_domain": domains}


def four_dataset(root, monkeypatch):
    makers = (mnist_m, fashion_mnist, cinic10, mmafedb)
    _, domains, counts = several(makers, root, monkeypatch)
    del domains["mmafedb"]
    return counts | {"by_domain": domains | {"mnist_m": {"train": 30, "test": 20}}}

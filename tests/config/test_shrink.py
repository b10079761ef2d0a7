"""Shrunk studies: what `fedloom run STUDY --smoke` keeps of a study, and what it makes small."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from fedloom.cli.run.bundled_studies import all_studies, find_study_file, study_name
from fedloom.common.json_types import JsonDict
from fedloom.config.shrink.scale import MICRO, REAL
from fedloom.config.shrink.study import shrink
from fedloom.planning.load_plan import ONLY_KEY, read_plan
from fedloom.planning.plan import Plan
from hub_tokenizers import write_siglip
from refusals import refused
from shrunk_plans import shrunk_plans


@pytest.fixture
def shrunk(tmp_path):
    """Return shrunk(study, scale): the plan of a study, and the plan of its shrunk config."""

    def make(study: str | Path, scale=MICRO) -> tuple[Plan, Plan]:
        return shrunk_plans(study, tmp_path, scale)

    return make


@pytest.fixture
def shrunk_text(tmp_path):
    """Return shrunk_text(text): the shrunk config of a study that a file with this text states."""

    def make(text: str) -> JsonDict:
        file = tmp_path / "mine.yaml"
        file.write_text(text)
        plan = read_plan([file])
        return shrink(plan.config, plan.settings)

    return make


@pytest.mark.parametrize("scale", [MICRO, REAL], ids=["micro", "real"])
@pytest.mark.parametrize("file", all_studies(), ids=study_name)
def test_every_bundled_study_can_be_shrunk(shrunk, file, scale):
    """The shrunk study has the same scenarios, tables and figures, and all labels of methods."""
    whole, small = shrunk(study_name(file), scale)
    assert small.name == whole.name
    assert small.settings.select.tables == whole.settings.select.tables
    assert small.settings.select.figures == whole.settings.select.figures
    assert small.settings.select.backbones == whole.settings.select.backbones
    assert small.settings.select.datasets == whole.settings.select.datasets

    # a grid has fewer members, but no grid is lost
    def families(plan: Plan) -> set[str]:
        labels = set()
        for label in plan.settings.select.methods:
            member = plan.settings.methods[label].member
            labels.add(label if member is None else member.grid)
        return labels

    assert families(small) == families(whole)
    assert len(small.runs) <= max(len(whole.runs), 2 * len(whole.settings.select.methods))

    # nothing is compared with a paper, and every caption says what the numbers are
    assert all(table.published is None for table in small.settings.tables.values())
    claims = [table for table in small.settings.tables.values() if table.kind == "claims"]
    assert all(table.settings["verdicts"] is False for table in claims)
    remark = small.settings.study.remark
    assert remark.startswith("Smoke run: made-up images")
    assert remark.endswith("numbers mean nothing.")


def test_classes_and_domains_keep_their_names(shrunk):
    _, small = shrunk("pep_fedpt/table2")
    entry = small.settings.datasets["domainnet"].settings
    assert entry["classes"][:3] == ["bird", "feather", "headphones"]
    assert entry["domains"] == ["clipart", "infograph", "painting", "quickdraw", "real", "sketch"]


def test_users_are_few_and_have_few_classes_but_all_together_have_all(shrunk):
    _, small = shrunk("pep_fedpt/table2")
    entry = small.settings.datasets["inaturalist_user"].settings
    assert len(entry["classes"]) == 1203
    assert len(entry["domains"]) == 24
    assert entry["classes_per_domain"] * 24 >= 1203
    assert entry["test_domains"] is False


def test_superclasses_name_the_classes(shrunk):
    _, small = shrunk("sgpt/figure5")
    assert "apple" in small.settings.datasets["cifar100"].settings["classes"]

    # the file is found from any folder
    figure = small.settings.figures["figure5"]
    assert Path(figure.settings["superclasses"]).is_absolute()


def test_a_long_tail_keeps_an_image_of_the_last_class(shrunk):
    _, small = shrunk("pfpt/table5")
    for label in ("cifar100_lt_100", "cifar100_lt_10"):
        entry = small.settings.datasets[label].settings
        assert 1 < entry["long_tail"]["factor"] <= entry["train"]


def test_a_data_set_of_several_keeps_its_parts(shrunk):
    _, small = shrunk("pfpt/table4")
    parts = small.settings.datasets["four_dataset"].settings["parts"]
    assert {name: len(part["classes"]) for name, part in parts.items()} == {
        "mnist_m": 10,
        "fashion_mnist": 10,
        "cinic10": 10,
        "mmafedb": 7,
    }


def test_images_that_come_with_fedloom_are_fewer_but_enough_for_each_domain(shrunk):
    """8 training images of a class would leave one of six styles, or fonts, without any."""
    _, small = shrunk("micro/micro_vit")
    datasets = small.settings.datasets
    assert datasets["styles"].settings["max_train_per_class"] == 6 * 8

    # glyphs have four families of fonts, and other studies do not divide them by these
    _, small = shrunk("micro/pep_micro_domains")
    assert small.settings.datasets["glyphs"].settings["max_train_per_class"] == 4 * 8
    _, small = shrunk("micro/micro_sgpt")
    assert small.settings.datasets["glyphs"].settings["max_train_per_class"] == 2


def test_clients_are_a_tenth_but_enough_for_the_scheme(shrunk):
    """Of 100 clients with 10 of 100 classes, 10 stay; 2 of 100 classes would need 50."""
    _, small = shrunk("pep_fedpt/table1")
    assert small.settings.partitions["pep_path_100"].settings["clients"] == 10
    assert small.settings.partitions["pep_path_200"].settings["clients"] == 20

    _, small = shrunk("pep_fedpt/table3")
    partition = small.settings.partitions["pep_path_100_held_out"].settings
    assert round(partition["clients"] * partition["held_out"]) >= 1


def test_rounds_seeds_and_steps_are_few(shrunk):
    _, small = shrunk("pfpt/table5")
    assert small.settings.study.rounds == 2
    assert small.settings.methods["creff"].rounds == 2
    assert small.settings.methods["creff"].training["epochs"] == 1
    assert len(small.settings.study.seeds) == 2


@pytest.mark.parametrize(
    ("axes", "seeds", "rounds"),
    [
        # 14 runs of each seed: both seeds are few enough
        ("{prompts: [1, 2]}", 2, 2),
        # 28, which are few enough with one seed; and 56
        ("{prompts: [1, 2], training.lr: [0.1, 0.2]}", 1, 2),
        ("{prompts: [1, 2], training.lr: [0.1, 0.2], training.batch_size: [4, 8]}", 1, 1),
    ],
)
def test_a_study_of_many_runs_has_one_seed_and_then_one_round(shrunk_text, axes, seeds, rounds):
    """Studies of at most 30 runs keep both seeds and both rounds."""
    labels = [f"p{number}" for number in range(7)]
    partitions = ", ".join(f"{label}: {{scheme: iid, clients: 2}}" for label in labels)
    study = shrunk_text(f"""
        study: {{name: mine, clients_per_round: 2}}
        partitions: {{{partitions}}}
        methods: {{m: {{plugin: fedvpt, grid: {axes}}}}}
        select:
          datasets: [digits]
          partitions: [{", ".join(labels)}]
          methods: [m]
          tables: [main]
          figures: []
    """)["study"]
    assert len(study["seeds"]) == seeds
    assert study["rounds"] == rounds


@pytest.mark.parametrize(
    ("partitions", "seeds", "rounds"),
    [
        # 7 runs of each seed, and 14 trials; 8 and 16; 11 and 22
        (7, 2, 2),
        (8, 1, 2),
        (11, 1, 1),
    ],
)
def test_trials_count_among_the_runs_of_a_study(shrunk_text, partitions, seeds, rounds):
    """A method has two trials on each partition, whatever the number of seeds."""
    labels = [f"p{number}" for number in range(partitions)]
    entries = ", ".join(f"{label}: {{scheme: iid, clients: 2}}" for label in labels)
    study = shrunk_text(f"""
        study:
          name: mine
          clients_per_round: 2
          tune: {{trials: 3, values: {{training.lr: [0.1, 0.2, 0.3]}}}}
        partitions: {{{entries}}}
        select:
          datasets: [digits]
          partitions: [{", ".join(labels)}]
          methods: [fedvpt]
          tables: [main]
          figures: []
    """)["study"]
    assert len(study["seeds"]) == seeds
    assert study["rounds"] == rounds
    assert study["tune"]["trials"] == 2


def test_options_have_the_values_that_a_plugin_states_for_smoke_runs(shrunk_text):
    """A label without an entry has them, too; the axes of a grid keep their values."""
    methods = shrunk_text("""
        study: {name: mine}
        methods:
          mine: {plugin: creff, options: {features: 50, feature_lr: 0.3}}
          steps: {plugin: fedic, grid: {server_steps: [20, 40], server_lr: [0.1, 0.2]}}
        partitions: {held: {scheme: iid, clients: 10, held_out: 0.1}}
        select:
          partitions: [held]
          methods: [mine, steps, creff, fedic, fedvpt]
          tables: [main]
          figures: []
    """)["methods"]
    fewer = {"features": 2, "matching_steps": 2, "retraining_epochs": 1}
    assert methods["mine"]["options"] == fewer | {"feature_lr": 0.3}
    assert methods["creff"] == {"plugin": "creff", "options": fewer}
    assert methods["fedic"] == {"plugin": "fedic", "options": {"server_steps": 2}}
    assert "options" not in methods["steps"]
    assert "options" not in methods["fedvpt"]


def test_clients_train_for_one_epoch_before_a_test(shrunk_text):
    """The option that holds the number of epochs is the one that a plugin's cost names."""
    methods = shrunk_text("""
        study: {name: mine}
        methods:
          mine: {plugin: fedrep, options: {head_epochs: 10, prompts: 4}}
          epochs: {plugin: fedbabu, grid: {tuning_epochs: [2, 5]}}
        select:
          methods: [mine, epochs, fedbabu, per_fedavg, fedvpt]
          tables: [main]
          figures: []
    """)["methods"]
    assert methods["mine"]["options"] == {"head_epochs": 1, "prompts": 4}
    assert methods["fedbabu"]["options"] == {"tuning_epochs": 1}
    assert "options" not in methods["epochs"]
    assert "options" not in methods.get("fedvpt", {})


def test_a_stream_arrives_in_the_rounds_that_are_left(shrunk):
    _, small = shrunk("micro/micro_streams")
    arrivals = small.settings.partitions["letters"].settings["arrivals"]
    assert arrivals["at"] == [2, 3, 4]
    assert small.settings.protocols["letters"].rounds == 4

    # captions do not say how many rounds the other partitions have
    assert "few rounds" in small.settings.study.remark


def test_grids_have_the_ends_of_their_axes(shrunk):
    _, small = shrunk("fedpha/figure4")
    assert dict(small.settings.grids["fedpha_lengths_3"].axes)["lengths.0"] == [4, 32]
    assert len(small.settings.select.methods) == 8


def test_real_backbones_keep_their_size_and_have_random_weights(shrunk):
    _, small = shrunk("real/cifar10", REAL)
    backbone = small.settings.backbones["dinov2_s14"].settings
    assert backbone == {
        "name": "vit_small_patch14_dinov2",
        "weights": "none",
        "image_size": 224,
    }
    assert small.settings.study.precision == "bf16"
    assert small.settings.study.training.local_steps == 1
    assert small.settings.datasets["cifar10_224"].settings["side"] == 224


def test_a_real_backbone_keeps_its_tokenizer_and_a_micro_one_has_none(
    shrunk, tmp_path, monkeypatch
):
    """A smoke run has a folder of its own, so the path of the tokenizer must be absolute."""
    monkeypatch.chdir(tmp_path)
    write_siglip(tmp_path / "tokens")
    entry = {"library": "open_clip", "name": "ViT-B-16-SigLIP", "weights": "webli"}
    keys = {
        "backbones": {"b": entry | {"tokenizer": "tokens"}},
        "tables": {"t": {"kind": "accuracy"}},
        "select": {"backbones": ["b"], "methods": ["promptfl"], "tables": ["t"], "figures": []},
    }
    file = tmp_path / "study.yaml"
    YAML().dump(keys, file)
    _, small = shrunk(file, REAL)
    assert small.config["backbones"]["b"] == entry | {
        "weights": "none",
        "tokenizer": str(tmp_path / "tokens"),
    }
    _, micro = shrunk(file)
    assert micro.config["backbones"]["b"]["name"] == "micro_clip"
    assert "tokenizer" not in micro.config["backbones"]["b"]


def test_unknown_classes_are_an_error_that_names_the_data_set(shrunk_text, tmp_path):
    """A folder of images without a recipe does not say which classes it has."""
    (tmp_path / "photos").mkdir()
    with refused("datasets.mine", "keep_classes"):
        shrunk_text(f"""
            study: {{name: mine}}
            datasets: {{mine: {{source: folder, root: {tmp_path}/photos}}}}
            select: {{datasets: [mine]}}
        """)


def test_domains_that_only_files_would_name_are_made_up(shrunk_text, tmp_path):
    """The domain that is held out keeps its name."""
    (tmp_path / "photos").mkdir()
    entry = shrunk_text(f"""
        study: {{name: mine, clients_per_round: 2}}
        datasets:
          mine: {{source: folder, root: {tmp_path}/photos, domains: true, keep_classes: [cat, dog]}}
        partitions:
          by_domain: {{scheme: domain, clients_per_domain: 2, held_out_domains: [ink]}}
        select: {{datasets: [mine], partitions: [by_domain], tables: [main], figures: []}}
    """)["datasets"]["mine"]
    assert entry["classes"] == ["cat", "dog"]
    assert entry["domains"][0] == "ink"
    assert len(entry["domains"]) == 4


def test_single_members_of_a_grid_stay(shrunk_text):
    """A study that selects a member in the middle of a grid keeps that member."""
    select = shrunk_text("""
        study: {name: mine, clients_per_round: 2}
        partitions:
          g: {scheme: dirichlet, kind: client, clients: 20, grid: {alpha: [0.1, 0.5, 1.0]}}
        methods: {m: {plugin: fedvpt, grid: {prompts: [1, 2, 3]}}}
        select:
          datasets: [digits]
          partitions: [g.0.5]
          methods: [m.2, head_tuning]
          tables: [main]
          figures: []
    """)["select"]
    assert select["partitions"] == ["g.0.5"]
    assert select["methods"] == ["m.2", "head_tuning"]


def test_members_of_a_grid_of_partitions_have_fewer_clients(shrunk_text, tmp_path):
    """Each keeps its label, and the label of the grid stands for all members."""
    small = tmp_path / "shrunk.yaml"
    config = shrunk_text("""
        study: {name: mine, clients_per_round: 30}
        partitions:
          g: {scheme: dirichlet, kind: client, grid: {clients: [30, 50, 400], alpha: [0.5]}}
          d: {scheme: dirichlet, kind: class, alpha: 0.5, clients: 30, grid: {min_images: [9]}}
        tables: {mine: {kind: accuracy, scenarios: [digits/g]}}
        select:
          datasets: [digits]
          partitions: [g, d]
          methods: [head_tuning]
          tables: [main, mine]
          figures: []
    """)
    YAML().dump(config, small)
    settings = read_plan([small]).settings

    assert settings.partitions["g.30-0.5"].settings["clients"] == 10
    assert settings.partitions["g.400-0.5"].settings["clients"] == 40
    assert settings.partitions["d.9"].settings["min_images"] == 3
    assert {*settings.select.partitions} == {"g.30-0.5", "g.400-0.5", "d.9"}
    shown = [scenario.partition for scenario in settings.tables["mine"].scenarios]
    assert shown == ["g.30-0.5", "g.400-0.5"]

    # no more clients train in a round than there are
    assert settings.protocols["g.30-0.5"].clients_per_round == 10
    assert settings.protocols["g.400-0.5"].clients_per_round == 30


def test_each_member_of_a_grid_has_clients_enough_for_its_scheme(shrunk_text):
    """10 of 100 classes a client need 10 clients, and 2 need 50."""
    partitions = shrunk_text("""
        study: {name: mine, clients_per_round: 2}
        datasets: {cifar100: {recipe: cifar100}}
        partitions:
          p: {scheme: pathological, clients: 100, grid: {classes_per_client: [10, 2]}}
        select:
          datasets: [cifar100]
          partitions: [p]
          methods: [head_tuning]
          tables: [main]
          figures: []
    """)["partitions"]
    assert partitions["p.10"]["clients"] == 10
    assert partitions["p.2"]["clients"] == 50


def test_a_table_of_lost_members_alone_shows_what_is_left(shrunk_text):
    tables = shrunk_text("""
        study: {name: mine}
        methods: {m: {plugin: fedvpt, grid: {prompts: [1, 2, 3]}}}
        tables: {mine: {kind: accuracy, methods: [m.2]}, both: {kind: accuracy, methods: [m]}}
        select: {methods: [m], tables: [mine, both], figures: []}
    """)["tables"]
    assert "methods" not in tables["mine"]
    assert tables["both"]["methods"] == ["m"]


def test_outputs_of_a_narrowed_study_name_only_what_is_left():
    """`--only` leaves labels in the config that the study does not run any more."""
    plan = read_plan([find_study_file("pep_fedpt/table1")], {ONLY_KEY: ["methods=pep_5"]})
    config = shrink(plan.config, plan.settings)
    assert config["select"]["methods"] == ["pep_5"]
    named = [table["methods"] for table in config["tables"].values() if "methods" in table]
    assert named
    assert all(methods == ["pep_5"] for methods in named)


MARKED = '''
from fedloom.report.output_toolbox import FilePath, RunsFigure


class Marked(RunsFigure):
    """Marks of a file."""

    marks: FilePath
    """File of marks."""
    names: FilePath | None = None
    """File of names."""
    extra: FilePath | None = None
    """File of more."""
    unit: str = "m"
    """Unit of the marks."""

    def draw(self, series): ...
'''


def test_paths_in_the_keys_of_a_plugins_figure_become_absolute(shrunk_text, tmp_path, monkeypatch):
    """A shrunk study runs in another folder; the type FilePath says which keys are paths."""
    plugin = tmp_path / "plugins" / "marked"
    plugin.mkdir(parents=True)
    (plugin / "figure.toml").write_text('name = "marked"\n')
    (plugin / "plugin.py").write_text(MARKED)
    monkeypatch.chdir(tmp_path)
    figures = shrunk_text("""
        study: {name: mine}
        figures: {mine: {kind: marked, marks: marks.csv, names: n.csv, unit: km}}
        select: {tables: [], figures: [mine]}
    """)["figures"]
    assert figures["mine"] == {
        "kind": "marked",
        "marks": str(tmp_path / "marks.csv"),
        "names": str(tmp_path / "n.csv"),
        "unit": "km",
    }


@pytest.mark.parametrize(
    ("words", "seeds"),
    [((), [0, 1]), (("seeds=0",), [0]), (("seeds=2",), [2]), (("seeds=0,1,2",), [0, 1])],
)
def test_only_named_seeds_stay(words, seeds):
    """A study of one seed gets a second one, but `--only seeds=2` asks for this seed alone."""
    plan = read_plan([find_study_file("micro/micro_pfpt")], {ONLY_KEY: ["methods=pfpt", *words]})
    assert shrink(plan.config, plan.settings)["study"]["seeds"] == seeds


def test_an_added_seed_is_not_that_of_the_trials(shrunk_text):
    study = shrunk_text("""
        study: {name: mine, seeds: [999], tune: {trials: 2, values: {training.lr: [0.1, 0.3]}}}
        select: {tables: [main], figures: []}
    """)["study"]
    assert study["seeds"] == [999, 1001]

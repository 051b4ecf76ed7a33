"""Settings: recipes, options over recipes, what is refused, and the names of runs."""

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from aag.config import AUXILIARIES, METHODS, OPERATIONAL, TrainConfig, recipe_config
from aag.recipes import RECIPES
from hypothesis import given
from hypothesis import strategies as st

from aag import AAGError
from aag.cli import train_config

# --- recipes ----------------------------------------------------------------------------------------------------------

PAPER = {  # decisions.md, "Optimiser and schedule", and the loss, views and network it stands beside
    "epochs": 200, "batch_size": 128, "lr": 0.03, "momentum": 0.9, "weight_decay": 5e-4, "schedule": "cosine",
    "warmup_epochs": None, "forward": "joint", "loss": "gnt-xent", "temperature": 0.1, "method": "aag",
    "network": "resnet18", "width": 64, "head": "auto", "embedding": 128, "basic": "paper",
    "auxiliary": "autoaugment", "auxiliary_crop": "resized", "flip": True, "rand_n": 2, "rand_magnitude": 10,
}  # fmt: skip


def test_the_paper_recipe_is_the_decisions():
    config = train_config(["--data", "cifar10", "--recipe", "paper"])
    assert {name: getattr(config, name) for name in PAPER} == PAPER
    assert (config.data, config.recipe, config.seed) == ("cifar10", "paper", 0)


def test_the_larger_network_has_a_batch_of_64_for_1000_epochs():
    config = train_config(["--data", "cifar10", "--recipe", "paper-resnet50"])
    changed = {"network": "resnet50", "batch_size": 64, "epochs": 1000}
    assert {name: getattr(config, name) for name in PAPER} == PAPER | changed


@pytest.mark.parametrize(
    ("words", "recipe"),
    [
        ([], "demo"),
        (["--data", "sample"], "demo"),
        (["--data", "sample", "--recipe", "auto"], "demo"),
        (["--data", "cifar10"], "paper"),
        (["--data=svhn"], "paper"),
        (["--data", "photos", "--recipe", "auto"], "paper"),
        (["--data", "./sample"], "paper"),  # a folder of that name
        (["--recipe", "paper"], "paper"),
        (["--data", "cifar10", "--recipe=demo"], "demo"),
    ],
)
def test_auto_is_demo_for_the_sample_and_paper_for_all_else(words, recipe):
    config = train_config(words)
    assert config.recipe == recipe
    assert config == recipe_config(recipe, config.data)


@pytest.mark.parametrize(
    "words",
    [
        ["--recipe", "demo", "--data", "photos", "--epochs", "7", "--batch-size", "16", "--no-flip"],
        ["--epochs", "7", "--batch-size", "16", "--no-flip", "--data", "photos", "--recipe", "demo"],
        ["--epochs=7", "--recipe=demo", "--no-flip", "--batch-size=16", "--data=photos"],
        ["--epochs", "7", "--data", "photos", "--batch_size", "16", "--recipe", "demo", "--no-flip"],
    ],
)
def test_options_change_the_recipe_wherever_they_stand(words):
    config = train_config(words)
    changed = {"epochs": 7, "batch_size": 16, "flip": False}
    assert config == replace(recipe_config("demo", "photos"), **changed)
    assert config.width == RECIPES["demo"].settings["width"]  # what was not named stays the recipe's


def test_the_last_of_two_recipes_counts():
    words = ["--data", "cifar10", "--recipe", "demo", "--recipe", "paper"]
    assert train_config(words) == recipe_config("paper", "cifar10")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_what_its_own_command_gives(name):
    recipe = RECIPES[name]
    program, command, *words = recipe.command.split()
    assert (program, command) == ("aag", "train")
    config = train_config(words)
    assert config.recipe == name
    assert {field: getattr(config, field) for field in recipe.settings} == recipe.settings
    assert recipe.about
    assert recipe.expect


@pytest.mark.parametrize("recipe", ["auto", "paper", "paper-resnet50", "demo"])
def test_on_svhn_the_third_view_of_aag_is_the_policy_alone(recipe):
    assert recipe_config(recipe, "svhn").auxiliary_crop == "none"
    assert recipe_config(recipe, "svhn").run_name().endswith("seed0")  # it is the recipe's, no change of it
    assert recipe_config(recipe, "cifar10").auxiliary_crop == "resized"
    assert train_config(["--data", "svhn", "--auxiliary-crop", "padded"]).auxiliary_crop == "padded"


def test_the_policy_of_autoaugment_is_the_sets_own_unless_one_is_named():
    policies = {data: train_config(["--data", data]).autoaugment_policy() for data in ("svhn", "cifar100", "photos")}
    assert policies == {"svhn": "svhn", "cifar100": "cifar10", "photos": "cifar10"}
    assert train_config(["--data", "svhn", "--policy", "imagenet"]).autoaugment_policy() == "imagenet"


@pytest.mark.parametrize("recipe", ["auto", "paper", "demo"])
@pytest.mark.parametrize("method", [method for method in METHODS if method != "aag"])
def test_a_rival_has_no_third_view_on_svhn_either(recipe, method):
    assert recipe_config(recipe, "svhn", method).auxiliary_crop == TrainConfig.auxiliary_crop


# --- what is refused --------------------------------------------------------------------------------------------------


def refused(**changes) -> str:
    with pytest.raises(AAGError) as caught:
        replace(TrainConfig(), **changes).validate()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "near"),
    [
        ("recipe", "papper", "paper"),
        ("method", "agg", "aag"),
        ("loss", "gntxent", "gnt-xent"),
        ("loss", "NT-Xent", "nt-xent"),
        ("schedule", "cosin", "cosine"),
        ("basic", "smclr", "simclr"),
        ("auxiliary", "auto-augment", "autoaugment"),
        ("auxiliary_crop", "padding", "padded"),
        ("policy", "cifar", "cifar10"),
        ("forward", "perview", "per-view"),
        ("head", "lineal", "linear"),
        ("precision", "bf-16", "bf16"),
    ],
)
def test_an_unknown_name_is_told_with_its_near_match(field, value, near):
    line = refused(**{field: value})
    assert line.startswith(f"unknown {field.replace('_', ' ')} {value!r}; did you mean ")
    assert near in line


def test_a_name_near_to_none_lists_them_all():
    assert all(name in refused(auxiliary="zzz") for name in AUXILIARIES)


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "CPU", ""])
def test_an_unknown_device_lists_what_there_is(device):
    assert refused(device=device) == f"unknown device {device!r}; use auto, cpu, cuda or cuda:N"


@pytest.mark.parametrize(
    ("field", "values"),
    {
        "epochs": (0, -1),
        "batch_size": (1, 0, -8),
        "width": (0,),
        "embedding": (0,),
        "image_size": (7, 0, -32),
        "warmup_epochs": (-1,),
        "lr": (-0.1, float("nan"), float("inf")),
        "momentum": (-0.1, 1.0, float("nan")),
        "weight_decay": (-1e-4, float("inf")),
        "temperature": (0.0, -0.1, float("nan"), float("inf")),
        "rand_n": (0,),
        "rand_magnitude": (-1, 31),
        "knn_every": (-1,),
        "checkpoint_minutes": (-1.0, float("nan")),
        "seed": (-1, 2**63, 10**30),
    }.items(),
)
def test_a_number_out_of_range_names_its_option(field, values):
    for value in values:
        line = refused(**{field: value})
        assert line.startswith(f"--{field.replace('_', '-')} must ")
        assert line.endswith(f"not {value}")


def test_the_ends_of_the_ranges_are_allowed():
    replace(
        TrainConfig(), epochs=1, batch_size=2, width=1, embedding=1, image_size=8, warmup_epochs=0, lr=0.0,
        momentum=0.0, weight_decay=0.0, rand_n=1, rand_magnitude=30, knn_every=0, checkpoint_minutes=0.0,
        seed=2**63 - 1, device="cuda:1",
    ).validate()  # fmt: skip


# --- the names of runs ------------------------------------------------------------------------------------------------

OTHER = {  # a second value for every setting that makes another run
    "data": "cifar100", "recipe": "paper-resnet50", "method": "simclr", "network": "alexnet", "width": 32,
    "head": "mlp", "embedding": 64, "epochs": 100, "batch_size": 64, "lr": 0.06, "schedule": "step",
    "warmup_epochs": 10, "momentum": 0.8, "weight_decay": 1e-4, "loss": "nt-xent", "temperature": 0.2, "basic": "isif",
    "auxiliary": "none", "auxiliary_crop": "padded", "policy": "svhn", "rand_n": 3, "rand_magnitude": 5, "flip": False,
    "forward": "per-view", "seed": 1, "precision": "fp32", "image_size": 64, "decay_at": (0.5,), "decay_by": 0.2,
    "rounds": 2, "optimizer": "lars", "nesterov": True, "bank_momentum": 0.6, "negatives": 64, "queue": 256,
    "key_momentum": 0.9, "symmetric": True, "norm_images": 32, "clusters": 10,
}  # fmt: skip
BASE = recipe_config("paper", "cifar10")
SETTINGS = [field.name for field in fields(TrainConfig) if field.name not in OPERATIONAL]


def test_the_plain_name_is_data_network_recipe_and_seed():
    assert BASE.run_name() == "cifar10-resnet18-paper-seed0"
    assert replace(BASE, seed=3, temperature=0.2, flip=False).run_name() == (
        "cifar10-resnet18-paper-seed3-temperature=0.2-flip=False"
    )


def test_each_setting_gives_another_name():
    assert set(OTHER) == set(SETTINGS)  # a new setting must be added to OTHER
    names = [replace(BASE, **{field: value}).run_name() for field, value in OTHER.items()]
    assert len({BASE.run_name(), *names}) == len(names) + 1


@given(st.sets(st.sampled_from(SETTINGS)), st.sets(st.sampled_from(SETTINGS)))
def test_names_are_the_same_just_when_the_settings_are(one, other):
    a, b = (replace(BASE, **{field: OTHER[field] for field in chosen}) for chosen in (one, other))
    assert (a.run_name() == b.run_name()) == (a.identity() == b.identity()) == (one == other)


def test_each_method_by_each_recipe_has_a_name_of_its_own():
    """Recipes carry a method, and another may be put in its place."""
    configs = [
        replace(recipe_config(recipe, "cifar10", method), method=method) for recipe in RECIPES for method in METHODS
    ]
    assert len({config.run_name() for config in configs}) == len(configs)


def test_where_a_run_computes_and_how_it_is_watched_does_not_name_it():
    elsewhere = {"out": Path("x"), "device": "cpu", "compile": "off", "data_root": Path("y"), "knn_every": 1}
    changed = replace(BASE, **elsewhere, checkpoint_minutes=9.0)
    assert set(elsewhere) | {"checkpoint_minutes"} == OPERATIONAL
    assert changed.run_name() == BASE.run_name()
    assert changed.identity() == BASE.identity()


def test_the_same_command_gives_the_same_name():
    words = ["--data", "cifar10", "--epochs", "100", "--lr", "0.030"]
    assert train_config(words).run_name() == train_config(words[2:] + words[:2]).run_name()
    assert train_config(["--data", "cifar10"]).run_name() == BASE.run_name()  # auto and what it stands for


@pytest.mark.parametrize(
    ("data", "start"),
    [
        ("/home/me/my photos/", "my_photos-"),
        ("photos/holiday.npz", "holiday-"),
        ("a;b$(c)|d&e*?'\"`<>!#", "a_b__c__d_e_"),
        ("photos [old]", "photos__old_-"),
        (".", "images-"),
        ("/", "images-"),
        ("..", "..-"),
        ("фото", "фото-"),
        ("new\nline\ttab", "new_line_tab-"),
        ("bad\udcffbytes", "bad_bytes-"),
    ],
)
def test_an_odd_path_gives_a_name_that_is_safe_in_a_shell(data, start):
    name = replace(BASE, data=data).run_name()
    assert name.startswith(start)
    assert re.fullmatch(r"[\w.=+-]+", name)
    assert name.encode()
    assert name not in (".", "..")


def test_a_slash_in_a_network_stays_in_one_folder():
    assert replace(BASE, network="timm/resnet18").run_name() == "cifar10-timm-resnet18-paper-seed0"


@pytest.mark.parametrize("data", ["x" * 250, "ж" * 120])
def test_a_long_name_fits_a_file_system_and_stays_distinct(data):
    one, other = (replace(BASE, data=data, **OTHER_NUMBERS, seed=seed).run_name() for seed in (0, 1))
    assert one != other
    assert len(one.encode()) <= 200
    assert one == replace(BASE, data=data, **OTHER_NUMBERS).run_name()


OTHER_NUMBERS = {name: OTHER[name] for name in ("epochs", "batch_size", "lr", "momentum", "weight_decay", "rand_n")}


# --- as JSON ----------------------------------------------------------------------------------------------------------


def test_settings_come_back_from_json():
    config = replace(BASE, **OTHER, out=Path("runs/x"), data_root=Path("/data"))
    assert TrainConfig.from_json(config.to_json()) == config
    assert TrainConfig.from_json(BASE.to_json()) == BASE


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", None), ("epochs", "200"), ("epochs", True), ("flip", 1), ("lr", None), ("data", 5),
        ("seed", 0.5), ("decay_at", 0.5), ("decay_at", ["0.5"]), ("image_size", "32"), ("data_root", 5),
    ],
)  # fmt: skip
def test_a_setting_of_another_kind_is_refused(name, value):
    with pytest.raises(AAGError, match=f"its setting {name} is "):
        TrainConfig.from_json(BASE.to_json() | {name: value})


def test_settings_of_another_version_are_read_with_defaults():
    assert TrainConfig.from_json({"data": "svhn", "from_the_future": 1}) == TrainConfig(data="svhn")


def test_the_names_in_the_settings_are_the_real_ones():
    """config.py repeats them so that the command line's help needs no torch."""
    from aag import augment, config, losses, methods, nets
    from aag.augment import auxiliary, basic

    assert set(config.METHODS) == set(methods.METHODS)
    assert set(config.LOSSES) == set(methods.METHODS["isif"].losses)  # type: ignore[attr-defined]
    assert set(config.LOSSES_OF["aag"]) == set(losses.LOSSES)
    assert set(config.BASICS) == set(basic.PRESETS)
    assert set(config.CROPS) == set(auxiliary.CROPS)
    assert set(config.POLICY_NAMES) == {"auto", *augment.POLICIES}
    assert set(config.HEADS) == set(nets.spec.HEADS)


# --- the rivals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_method_has_its_own_recipe_and_a_small_one(method):
    own = train_config(["--data", "cifar10", "--method", method])
    assert own.recipe == ("paper" if method == "aag" else method)
    assert own.method == method
    small = train_config(["--method", method])
    assert small.recipe == "demo"
    assert small.width < own.width
    assert small.run_name() not in {train_config(["--method", name]).run_name() for name in METHODS if name != method}
    assert TrainConfig.from_json(own.to_json()) == own
    assert TrainConfig.from_json(own.identity()).identity() == own.identity()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "instance", "loss": "nt-xent"}, "--method instance has no --loss nt-xent; use own"),
        ({"method": "moco", "loss": "dcl"}, "--method moco has no --loss dcl; use gnt-xent or nt-xent"),
        ({"epochs": 10, "rounds": 3}, "cannot be divided into 3 --rounds; use --rounds 1, or --epochs 9"),
        ({"norm_images": 48}, "--batch-size 128 is no multiple of --norm-images 48"),
        ({"norm_images": 1}, "leaves batch norm nothing to compare"),
        ({"decay_at": (0.5, 1.5)}, "--decay-at takes shares of the epochs"),
        ({"method": "moco", "loss": "nt-xent", "key_momentum": 1.0}, "--key-momentum must be below 1"),
        ({"clusters": 50}, "--clusters means nothing to aag; leave it out"),
        ({"method": "simclr", "auxiliary": "none"}, "--auxiliary means nothing to simclr; leave it out"),
        ({"method": "moco", "forward": "per-view"}, "--forward means nothing to moco; leave it out"),
        ({"optimizer": "lars", "nesterov": True}, "--nesterov means nothing to --optimizer lars; leave it out"),
        ({"decay_by": 0.5}, "--decay-at and --decay-by mean nothing to --schedule cosine; leave them out"),
    ],
)
def test_what_does_not_go_together_is_told(changes, words):
    assert words in refused(**changes)

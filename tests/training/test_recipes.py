"""Recipes, options over recipes, and the names of runs."""

import re
from pathlib import Path

import pytest

from aag.cli.train import parse_train
from aag.methods import methods
from aag.training import RunSettings, find_recipe, recipe_settings, recipes, run_name
from aag.training.recipes import DEMO

PAPER = {  # decisions.md, "Optimiser and schedule", and the loss, views and network it stands beside
    "epochs": 200, "batch_size": 128, "lr": 0.03, "momentum": 0.9, "weight_decay": 5e-4, "schedule": "cosine",
    "warmup_epochs": None, "forward": "joint", "loss": "gnt-xent", "temperature": 0.1, "method": "aag",
    "network": "resnet18", "width": 64, "head": "auto", "embedding": 128, "basic": "paper", "seed": 0,
    "auxiliary": "autoaugment", "auxiliary_crop": "auto", "flip": True, "rand_n": 2, "rand_magnitude": 10,
}  # fmt: skip


def parsed(*words: str) -> RunSettings:
    return parse_train(list(words)).settings


# --- recipes ----------------------------------------------------------------------------------------------------------


def test_the_paper_recipe_is_the_decisions():
    options = parsed("--data", "cifar10", "--recipe", "paper").options()
    assert {name: options[name] for name in PAPER} == PAPER
    larger = parsed("--data", "cifar10", "--recipe", "paper-resnet50").options()
    changed = {"network": "resnet50", "batch_size": 64, "epochs": 1000}
    assert {name: larger[name] for name in PAPER} == PAPER | changed


def test_the_best_recipe_changes_what_the_pilots_changed():
    best, paper = (recipe_settings(recipe, "cifar10").options() for recipe in ("best", "paper"))
    assert {name: value for name, value in best.items() if value != paper[name]} == {
        "auxiliary_views": 2, "head": "mlp", "blur": 0.0, "grayscale": 0.1, "lr": 0.06, "weight_decay": 1e-3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "recipe"),
    [
        ([], "demo"),
        (["--data", "sample", "--recipe", "auto"], "demo"),
        (["--data=svhn"], "paper"),
        (["--data", "photos", "--recipe", "auto"], "paper"),
        (["--data", "./sample"], "paper"),  # a folder of that name
        (["--recipe", "paper"], "paper"),
        (["--data", "cifar10", "--recipe=demo"], "demo"),
        (["--data", "cifar10", "--recipe", "demo", "--recipe", "paper"], "paper"),  # the last counts
        (["--data", "cifar10", "--method", "simclr"], "simclr"),
        (["--recipe", "moco"], "moco"),
    ],
)
def test_auto_is_demo_for_the_sample_and_the_method_s_own_for_all_else(words, recipe):
    request = parse_train(words)
    settings = request.settings
    assert request.recipe == recipe
    assert settings == recipe_settings(recipe, settings.data.source, settings.method)
    assert request.execution.knn_every == find_recipe(recipe, settings.method).knn_every


@pytest.mark.parametrize(
    "words",
    [
        ["--recipe", "demo", "--data", "photos", "--epochs", "7", "--batch-size", "16", "--no-flip"],
        ["--epochs=7", "--recipe=demo", "--no-flip", "--batch-size=16", "--data=photos"],
        ["--epochs", "7", "--data", "photos", "--batch_size", "16", "--recipe", "demo", "--no-flip"],
    ],
)
def test_options_change_the_recipe_wherever_they_stand(words):
    settings = parsed(*words)
    assert settings == recipe_settings("demo", "photos").replace(epochs=7, batch_size=16, flip=False)
    assert settings.encoder.width == DEMO.options["width"]  # what was not named stays the recipe's


@pytest.mark.parametrize("method", methods())
def test_a_method_has_its_own_recipe_and_a_small_one(method):
    own, small = parsed("--data", "cifar10", "--method", method), parsed("--method", method)
    assert own == recipe_settings("auto", "cifar10", method)
    assert small.method == method
    assert small.encoder.width == 8
    assert small.train.batch_size == 32


def test_every_recipe_belongs_to_a_method_and_says_what_to_expect():
    assert list(recipes())[:2] == ["paper", "paper-resnet50"]
    for name, (method, recipe) in recipes().items():
        assert recipe.about
        assert recipe.expect
        options = recipe_settings(name, "cifar10").options()
        assert {option: options[option] for option in recipe.options} == dict(recipe.options)
        assert options["method"] == method


@pytest.mark.parametrize("recipe", ["auto", "paper", "paper-resnet50", "best", "demo"])
def test_on_svhn_the_third_view_of_aag_is_its_own_policy_alone(recipe):
    views = {data: recipe_settings(recipe, data).resolve().method_settings for data in ("svhn", "cifar100", "photos")}
    assert {data: (view.auxiliary_crop, view.policy) for data, view in views.items()} == {
        "svhn": ("none", "svhn"), "cifar100": ("resized", "cifar10"), "photos": ("resized", "cifar10"),
    }  # fmt: skip
    chosen = recipe_settings(recipe, "svhn").replace(auxiliary_crop="padded", policy="imagenet").resolve()
    assert (chosen.method_settings.auxiliary_crop, chosen.method_settings.policy) == ("padded", "imagenet")


def test_a_file_is_the_same_method_however_its_path_is_written():
    folder = Path(__file__).parents[2] / "examples"
    written = recipe_settings("auto", "cifar10", f"{folder}/../examples/./vicreg.py:VICReg")
    assert written == recipe_settings("auto", "cifar10", f"{folder}/vicreg.py:VICReg")


# --- the names of runs ------------------------------------------------------------------------------------------------

BASE = recipe_settings("paper", "cifar10")
OTHER = {  # a second value for every option that makes another run
    "data": "cifar100", "network": "alexnet", "width": 32, "depth": 5, "head": "mlp", "embedding": 64, "epochs": 100,
    "batch_size": 64, "lr": 0.06, "schedule": "step", "warmup_epochs": 10, "momentum": 0.8, "weight_decay": 1e-4,
    "loss": "nt-xent", "temperature": 0.2, "basic": "isif", "auxiliary": "none", "auxiliary_crop": "padded",
    "policy": "svhn", "rand_n": 3, "rand_magnitude": 5, "flip": False, "forward": "per-view", "seed": 1,
    "precision": "fp32", "image_size": 64, "decay_at": (0.5,), "decay_by": 0.2, "rounds": 2, "optimizer": "lars",
    "nesterov": True, "bn_group_size": 32, "clip_grad": 1.0, "accumulate": 2, "freeze": ("backbone.stem",),
    "start_from": "runs/x", "pretrained": "timm", "resize_size": 40, "labels": "none", "holdout": 0.2,
    "min_crop": 0.08, "jitter_strength": 1.0, "blur_kernel": 5, "start_early": True, "grayscale": 0.1,
    "blur": 0.0, "auxiliary_views": 2, "auxiliary_weight": 0.5, "auxiliary_min_crop": 0.05, "auxiliary_max_crop": 0.3,
    "one_way": True, "head_width": 40, "zero_init_residual": True, "low_res_size": 24, "low_res_until": 0.3,
    "hard_negatives": 1.0,
}  # fmt: skip
OPTIONS = [name for name in BASE.options() if name != "method"]


def test_the_plain_name_is_data_network_recipe_and_seed():
    assert run_name(BASE) == run_name(BASE, "paper") == "cifar10-resnet18-paper-seed0"
    changed = BASE.replace(seed=3, temperature=0.2, flip=False)
    assert run_name(changed) == "cifar10-resnet18-paper-seed3-flip=False-temperature=0.2"
    assert run_name(recipe_settings("demo", "sample", "simclr"), "demo") == "sample-resnet18-demo-simclr-seed0"
    assert run_name(BASE.replace(network="timm/resnet18")) == "cifar10-timm-resnet18-paper-seed0"


def test_each_option_gives_another_name():
    assert set(OTHER) == set(OPTIONS)  # a new option must be added to OTHER
    needed = {"resize_size": {"image_size": 36}, "depth": {"network": "amdim"}, "start_early": {"labels": "none"}}
    needed |= {"head_width": {"head": "mlp"}, "low_res_until": {"low_res_size": 24}}
    needed |= {name: {"auxiliary": "randaugment"} for name in ("rand_n", "rand_magnitude")}
    names = [run_name(BASE.replace(**{name: value}, **needed.get(name, {}))) for name, value in OTHER.items()]
    assert len({run_name(BASE), *names}) == len(names) + 1


@pytest.mark.parametrize("size", ["width", "depth"])
def test_a_size_that_means_nothing_is_not_in_the_name(size):
    settings = BASE.replace(network="alexnet")
    assert run_name(settings.replace(**{size: 8})) == run_name(settings)
    assert settings.replace(**{size: 8}).resolve() == settings.resolve()


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
    name = run_name(BASE.replace(data=data))
    assert name.startswith(start)
    assert re.fullmatch(r"[\w.=+-]+", name)
    assert name.encode()
    assert name not in (".", "..")


@pytest.mark.parametrize("data", ["x" * 250, "ж" * 120])
def test_a_long_name_fits_a_file_system_and_stays_distinct(data):
    long = BASE.replace(data=data, **{name: OTHER[name] for name in ("epochs", "batch_size", "lr", "momentum")})
    assert run_name(long) != run_name(long.replace(seed=1))
    assert len(run_name(long).encode()) <= 200

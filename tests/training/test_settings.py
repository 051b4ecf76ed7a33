"""Settings: what is refused, how they resolve, and their JSON."""

import math
import re
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pytest

from aag import AAGError
from aag.methods import MethodSettings
from aag.runs import differences, flatten
from aag.settings import Range, Settings, from_json, to_json
from aag.training import Execution, RunSettings, recipe_settings

PAPER = recipe_settings("paper", "cifar10")


def refused(settings: RunSettings = PAPER, **changes: Any) -> str:
    with pytest.raises(AAGError) as caught:
        settings.replace(**changes).resolve()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_option_is_found_by_its_initials():
    assert refused(learning_rate=0.1) == "unknown option of --method aag 'learning_rate'; did you mean lr?"


@pytest.mark.parametrize(
    ("field", "value", "near"),
    [
        ("loss", "gntxent", "gnt-xent"),
        ("schedule", "cosin", "cosine"),
        ("auxiliary", "auto-augment", "autoaugment"),
        ("head", "lineal", "linear"),
        ("precision", "bf-16", "bf16"),
    ],
)
def test_an_unknown_name_is_told_with_its_near_match(field, value, near):
    line = refused(**{field: value})
    assert line.startswith(f"unknown {field.replace('_', ' ')} {value!r}; did you mean ")
    assert near in line


def test_a_name_near_to_none_lists_them_all():
    assert all(name in refused(auxiliary="zzz") for name in ("autoaugment", "randaugment", "basic", "none"))


@pytest.mark.parametrize(
    ("field", "values"),
    {
        "epochs": (0, -1),
        "batch_size": (1, 0, -8),
        "image_size": (7, 0, -32, 5000),
        "warmup_epochs": (-1,),
        "lr": (-0.1, math.nan, math.inf),
        "momentum": (-0.1, 1.0, math.nan),
        "weight_decay": (-1e-4, math.inf),
        "temperature": (0.0, -0.1, 1e-30, math.nan, math.inf),
        "clip_grad": (-1.0, math.inf),
        "accumulate": (0,),
        "rand_n": (0, 17),
        "rand_magnitude": (-1, 31),
        "seed": (-1, 2**63, 10**30),
        "width": (0,),
        "depth": (0,),
        "embedding": (0,),
    }.items(),
)
def test_a_number_out_of_range_names_its_option(field, values):
    for value in values:
        assert re.match(
            rf"(--)?{field.replace('_', '.')} must be .* {re.escape(f'{value:g}')}$", refused(**{field: value})
        )


def test_the_ends_of_the_ranges_are_allowed():
    PAPER.replace(
        epochs=1, batch_size=2, width=1, embedding=1, image_size=8, warmup_epochs=0, lr=0.0, momentum=0.0,
        weight_decay=0.0, auxiliary="randaugment", rand_n=1, rand_magnitude=30, seed=2**63 - 1, temperature=0.001,
        clip_grad=0.0,
    ).resolve()  # fmt: skip
    Execution(knn_every=0, checkpoint_minutes=0.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 10, "rounds": 3}, "10 epochs cannot be divided into 3 rounds; use --epochs 9"),
        ({"bn_group_size": 48}, "batch size 128 is not a multiple of --bn-group-size 48"),
        ({"bn_group_size": 1}, "makes groups of one image"),
        ({"decay_at": (0.5, 1.5)}, "--decay-at takes fractions of the epochs"),
        ({"decay_by": (0.1, 0.5, 0.5)}, "--decay-by has 3 factors for 2 drops (--decay-at 0.6 0.8); give one"),
        ({"decay_by": (0.1, -0.5)}, "--decay-by takes factors of at least 0, not 0.1 -0.5"),
        ({"epochs": 4, "warmup_epochs": 4}, "leaves none of 4 epochs to train; use --warmup-epochs 2"),
        ({"clusters": 50}, "unknown option of --method aag 'clusters'"),
        ({"source": "x"}, "unknown option of --method aag 'source'"),
    ],
)
def test_what_does_not_go_together_is_told(changes, message):
    assert message in refused(**changes)


def test_automatic_values_resolve_once():
    written = PAPER.replace(batch_size=512, epochs=4)
    assert (written.train.warmup_epochs, written.encoder.head, written.train.precision) == (None, "auto", "auto")
    settings = written.resolve("fp32")
    assert (settings.train.warmup_epochs, settings.encoder.head, settings.train.precision) == (2, "linear", "fp32")
    assert settings.data.image_size == 32
    assert settings.resolve("bf16") == settings
    assert PAPER.replace(network="resnet50").resolve().encoder.head == "mlp"
    assert PAPER.resolve().train.precision == "auto"  # the device decides


# --- JSON -------------------------------------------------------------------------------------------------------------


def test_settings_come_back_from_json_by_section():
    settings = PAPER.replace(
        decay_at=(0.5, 0.9), decay_by=(0.1, 0.5), freeze=("backbone",), image_size=64, seed=3, temperature=0.3
    )
    found = settings.to_json()
    assert list(found) == ["data", "encoder", "method", "train"]
    assert (found["train"]["decay_at"], found["train"]["decay_by"]) == ([0.5, 0.9], [0.1, 0.5])
    assert RunSettings.from_json(found) == settings
    assert flatten(found)["data"] == "cifar10"
    assert flatten(found)["method"] == "aag"


def test_differences_name_options_with_both_values():
    other = recipe_settings("simclr", "cifar10").replace(seed=1)
    found = differences(PAPER.to_json(), other.to_json())
    assert found["seed"] == (0, 1)
    assert found["method"] == ("aag", "simclr")
    assert found["auxiliary"] == ("autoaugment", None)
    assert "epochs" not in found


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("train", "batch_size", None), ("train", "epochs", "200"), ("train", "epochs", True), ("method", "flip", 1),
        ("train", "lr", None), ("data", "source", 5), ("train", "seed", 0.5), ("train", "decay_at", 0.5),
        ("train", "decay_at", ["0.5"]), ("data", "image_size", "32"), ("method", "temperature", "hot"),
        ("train", "from_the_future", 1), ("method", "name", "nosuch"), ("encoder", "width", "wide"),
    ],
)  # fmt: skip
def test_a_setting_of_another_kind_is_refused(section, name, value):
    found = PAPER.to_json()
    found[section] = found[section] | {name: value}
    with pytest.raises(AAGError, match=f"{name.replace('_', '.')}|unknown method|data"):
        RunSettings.from_json(found)


@pytest.mark.parametrize("content", [[], {}, None, {"train": 3}, 7])
def test_what_is_not_settings_is_refused(content):
    with pytest.raises(AAGError, match="not the settings of a run"):
        RunSettings.from_json(content)


# --- a dataclass of one's own -----------------------------------------------------------------------------------------


def test_annotations_are_the_whole_declaration():
    @dataclass(frozen=True)
    class Own(Settings):
        share: Annotated[float, Range(above=0, below=1)] = 0.5
        names: tuple[str, ...] = ()
        limit: Annotated[int, Range(at_least=1)] | None = None

    assert to_json(Own(limit=None)) == {"share": 0.5, "names": [], "limit": None}
    assert from_json(Own, {"names": ["a"]}) == Own(names=("a",)) == Own(names=["a"])
    for wrong, message in (
        ({"share": 1.0}, "--share must be above 0 and below 1, not 1"),
        ({"share": "a"}, "--share must be a number, not 'a'"),
        ({"names": (1,)}, "--names must be a list, each text"),
        ({"limit": 0}, "--limit must be at least 1, not 0"),
        ({"limit": 1.5}, "--limit must be a whole number, not 1.5"),
    ):
        with pytest.raises(AAGError, match=message):
            Own(**wrong)


def test_a_method_may_not_have_a_setting_with_the_name_of_another_option():
    @dataclass(frozen=True)
    class MySettings(MethodSettings):
        momentum: float = 0.99

    with pytest.raises(AAGError, match="aag has settings with the names of other options: momentum; rename them"):
        replace(PAPER, method_settings=MySettings())

import pytest

from aag.errors import unknown_name

OPTIONS = (
    "--batch-size",
    "--data",
    "--epochs",
    "--image-size",
    "--k",
    "--lr",
    "--seed",
    "--temperature",
    "--weight-decay",
)


@pytest.mark.parametrize("name", ["--GPU", "--keep", "--", ""])
def test_names_like_no_other(name):
    assert str(unknown_name("option", name, OPTIONS)) == f"unknown option {name!r}; known: {', '.join(OPTIONS)}"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("--wd", "--weight-decay"),
        ("--learning_rate", "--lr"),
        ("--size", "--batch-size or --image-size"),
        ("--temp", "--temperature"),
        ("--Epoch", "--epochs"),
        ("--weightdecay", "--weight-decay"),
        ("--tempreature", "--temperature"),
    ],
)
def test_proposed_names(name, near):
    assert str(unknown_name("option", name, OPTIONS)) == f"unknown option {name!r}; did you mean {near}?"


def test_a_long_list_of_known_names_is_cut():
    known = [f"name{number:02d}" for number in range(30)]
    assert str(unknown_name("thing", "xyz", known)).endswith("name18, name19, …")

"""The paper's tables and figures as data, and short versions of their runs."""

import pytest

from aag import AAGError
from aag.paper import PAPER, Table, make_experiment

MAIN = make_experiment("cifar10")


def test_no_two_cells_of_a_table_are_the_same_measure_of_the_same_run():
    for part in PAPER.values():
        if isinstance(part, Table):
            cells = [(cell.experiment.name, cell.measure) for cell in part.cells if cell.experiment]
            assert len(cells) == len(set(cells))


def test_the_main_cell_is_the_recipe():
    table = PAPER["table1"]
    assert isinstance(table, Table)
    (cell,) = [cell for cell in table.cells if (cell.row, cell.column) == ("AAG", "CIFAR-10, ResNet-18")]
    assert (cell.paper, cell.measure, cell.quoted) == (88.3, "knn", False)
    assert cell.experiment == MAIN


def test_which_cells_have_runs_and_can_be_compared():
    cells = [cell for part in PAPER.values() if isinstance(part, Table) for cell in part.cells]
    for cell in cells:
        assert (cell.experiment is None) == (cell.paper is None or bool(cell.elsewhere))
        assert bool(cell.incomparable) == cell.column.endswith("AlexNet")


def test_texts_are_short_sentences():
    for part in PAPER.values():
        for text in (part.shows, *part.notes, getattr(part, "behaviour", "")):
            assert all(len(sentence.split()) <= 35 for sentence in text.split(". ")), text


# --- short versions ---------------------------------------------------------------------------------------------------


def test_a_short_version_has_its_own_name():
    short = MAIN.shorten(0.1)
    assert short == MAIN.replace(epochs=20)
    assert short.name == "cifar10-resnet18-paper-seed0-epochs=20"
    assert MAIN.shorten(1) is MAIN


def test_a_short_version_keeps_its_rounds():
    rounds = make_experiment("cifar10", method="and")
    assert rounds.shorten(0.0001).settings.train.epochs == rounds.settings.train.rounds == 5
    assert rounds.shorten(0.011).settings.train.epochs == 10


@pytest.mark.parametrize("scale", [0.001, 0.1, 0.5])
def test_every_short_version_is_valid_even_with_a_warm_up(scale):
    for part in PAPER.values():
        for experiment in part.experiments:
            experiment.shorten(scale).settings.resolve()
            experiment.replace(warmup_epochs=10).shorten(scale).settings.resolve()


@pytest.mark.parametrize("scale", [0, -1, 1.5, float("nan"), float("inf")])
def test_invalid_scales_are_refused(scale):
    with pytest.raises(AAGError, match="--epochs-scale must be above 0 and at most 1"):
        MAIN.shorten(scale)

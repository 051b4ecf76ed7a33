"""The paper's tables and figures as data."""

from dataclasses import replace

import pytest
from aag.config import recipe_config

from aag import AAGError
from aag.paper import PAPER, Figure, Table, with_epochs
from aag.paper.plan import named


def test_there_are_seven_tables_and_six_figures():
    assert list(PAPER) == [*(f"table{n}" for n in range(1, 8)), *(f"figure{n}" for n in range(1, 7))]
    assert all(isinstance(part, Table) == name.startswith("table") for name, part in PAPER.items())


def test_no_two_cells_of_a_table_are_the_same_measure_of_the_same_run():
    for part in PAPER.values():
        if isinstance(part, Table):
            cells = [(cell.config.run_name(), cell.measure) for cell in part.cells if cell.config]
            assert len(cells) == len(set(cells))


def test_the_main_cell_is_the_recipe():
    table = PAPER["table1"]
    assert isinstance(table, Table)
    (cell,) = [cell for cell in table.cells if (cell.row, cell.column) == ("AAG", "CIFAR-10, ResNet-18")]
    assert (cell.paper, cell.measure, cell.quoted) == (88.3, "knn", False)
    assert cell.config == recipe_config("paper", "cifar10")


def test_an_empty_cell_and_a_number_of_others_have_no_run():
    cells = [cell for part in PAPER.values() if isinstance(part, Table) for cell in part.cells]
    assert all(cell.config is None for cell in cells if cell.paper is None or cell.elsewhere)
    assert all(cell.config is not None for cell in cells if cell.paper is not None and not cell.elsewhere)


def test_the_runs_of_a_sweep_have_their_place():
    figure = PAPER["figure3"]
    assert isinstance(figure, Figure)
    assert [(series.x, series.config.batch_size) for series in figure.series] == [
        (size, size) for size in (32, 64, 128, 256, 512, 1024)
    ]


def test_an_unknown_table_is_told_with_its_near_match():
    with pytest.raises(AAGError, match=r"unknown table or figure 'tabel4'; did you mean .*table4"):
        named(["tabel4"])


# --- short versions ---------------------------------------------------------------------------------------------------


def test_a_short_version_has_a_name_of_its_own():
    config = recipe_config("paper", "cifar10")
    short = with_epochs(config, 0.1)
    assert short == replace(config, epochs=20)
    assert short.run_name() == "cifar10-resnet18-paper-seed0-epochs=20"
    assert with_epochs(config, 1) is config


def test_a_short_version_keeps_whole_rounds():
    config = recipe_config("and", "cifar10", "and")
    assert with_epochs(config, 0.0001).epochs == config.rounds == 5
    assert with_epochs(config, 0.011).epochs == 10


@pytest.mark.parametrize("scale", [0.001, 0.01, 0.05, 0.1, 0.5])
def test_every_short_version_is_valid_even_with_a_warm_up(scale):
    for part in PAPER.values():
        for config in part.configs:
            with_epochs(config, scale).validate()
            with_epochs(replace(config, warmup_epochs=10), scale).validate()


@pytest.mark.parametrize("scale", [0, -1, 1.5, float("nan"), float("inf")])
def test_a_scale_that_is_none_is_refused(scale):
    with pytest.raises(AAGError, match="--epochs-scale must lie above 0 and be at most 1"):
        with_epochs(recipe_config("paper", "cifar10"), scale)

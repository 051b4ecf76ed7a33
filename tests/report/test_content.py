"""What a page says of a cell: ours only where it is the number that the cell asks for."""

from dataclasses import replace
from pathlib import Path

import pytest
from aag.config import recipe_config
from aag.report.cells import Shown, ShownTable, label, show, show_tables
from aag.report.content import Content
from aag.report.protocol import origin, protocols, training

from aag.paper import PAPER as PARTS
from aag.paper import Cell, Figure, Results, Table
from synthetic import PAPER, record, write


def whole(folder: Path, table: str) -> ShownTable:
    return next(each for each in show_tables(Results(folder)) if each.table.id == table)


def shown(folder: Path, table: str, row: str, column: int = 0):
    return next(cells for cells in whole(folder, table).rows if cells[0].cell.row == row)[column]


def test_the_paper_has_seven_tables_and_six_figures():
    names = [*(f"Table {n}" for n in range(1, 8)), *(f"Figure {n}" for n in range(1, 7))]
    assert [label(part) for part in PARTS.values()] == names


def test_several_seeds_are_their_mean_and_spread(folder):
    cell = shown(folder, "table7", "full model")
    assert cell.state == "done"
    assert cell.values == (88.9, 88.7, 89.0)
    assert cell.mean == pytest.approx(88.8667, abs=1e-4)
    assert cell.spread == pytest.approx(0.1528, abs=1e-4)
    assert cell.difference == 0.57
    assert cell.close


def test_a_single_seed_has_no_spread(folder):
    cell = shown(folder, "table7", "NT-Xent")
    assert cell.spread is None
    assert cell.difference == -0.3
    assert cell.close
    assert not shown(folder, "table7", "two basic views").close


@pytest.mark.parametrize(("knn", "close"), [(87.8, True), (87.79, False), (88.3, True), (99.0, True)])
def test_half_a_point_below_the_paper_is_the_limit(tmp_path, knn, close):
    write(tmp_path, record(PAPER, knn))
    assert shown(tmp_path, "table7", "full model").close == close


def test_a_row_that_we_add_is_shown_and_counts_in_no_sum(tmp_path):
    before = Content(tmp_path).summary
    write(tmp_path, record(replace(recipe_config("auto", "svhn", "aag"), flip=False), 95.2))
    content = Content(tmp_path)
    assert content.summary == before
    first = content.tables[0]
    (shown,) = [each for each in first.cells if each.values]
    assert (shown.name, shown.ours, shown.difference) == ("AAG without flip, SVHN, ResNet-18", "95.20", -0.1)
    assert (first.close, first.below, first.order) == ([], [], "")
    assert first.tally.startswith("0 of 34 cells run; 1 seed")


def test_what_is_far_above_the_paper_is_named(tmp_path):
    write(tmp_path, record(PAPER, 91.3))
    write(tmp_path, record(replace(PAPER, network="alexnet"), 78.0))
    points = Content(tmp_path).state()["Of these more than 3 above the paper: more than the method may differ"]
    assert [(label(*point.of), point.name) for point in points] == [("Table 1", "AAG, CIFAR-10, AlexNet")]


def test_a_short_version_is_never_the_number(folder):
    cell = shown(folder, "table7", "StepLR")
    assert (cell.state, cell.note) == ("short", "20 of 200 epochs")
    assert cell.difference is None
    assert not cell.close


def test_an_epoch_of_a_short_run_stands_for_the_same_share(tmp_path):
    write(tmp_path, record(replace(PAPER, epochs=100), 80.0))
    cell = shown(tmp_path, "table3", "AAG", 1)
    assert (cell.state, cell.note) == ("short", "epoch 40 of 100, not 400 of 1000")
    curve = dict(cell.results[0].record["knn_by_epoch"])
    assert cell.values == (curve[40],)


def test_the_longest_of_short_versions_is_taken(tmp_path):
    for epochs in (20, 100, 50):
        write(tmp_path, record(replace(PAPER, epochs=epochs), 70 + epochs / 10))
    cell = shown(tmp_path, "table7", "full model")
    assert cell.note == "100 of 200 epochs"
    assert cell.values == (80.0,)


def test_a_stale_record_shows_no_number(folder):
    cell = shown(folder, "table7", "RandAugment")
    assert cell.state == "missing"
    assert len(cell.stale) == 1
    assert cell.values == ()


def test_what_a_record_lacks_is_said(folder):
    cell = shown(folder, "table5", "SimCLR, τ 0.5 (linear)")
    assert (cell.state, cell.note) == ("unmeasured", "recorded without linear")


def test_quoted_and_other_numbers_are_marked(folder):
    assert shown(folder, "table1", "SimCLR").paper == "82.3†"
    assert shown(folder, "table1", "AAG").paper == "88.3"
    other = shown(folder, "table2", "SimCLR, tuned (kNN)")
    assert (other.state, other.paper) == ("elsewhere", "91.4‡")
    empty = shown(folder, "table1", "DeepCluster", 2)
    assert (empty.state, empty.paper) == ("empty", "–")


def test_damaged_files_are_told_of_and_passed_over(folder):
    results = Results(folder)
    assert {path.name for path in results.damaged} == {"damaged.json", "no-<number>.json", "not-a-number.json"}


@pytest.mark.parametrize(
    "broken",
    [
        {"knn_by_epoch": [[1, "x"]]},
        {"knn_by_epoch": [[1]]},
        {"knn": {"last": 101.0}},
        {"knn": {"last": True}},
        {"evaluation": [{"accuracy": 50.0}]},
        {"evaluation": [{"accuracy": None, "protocol": {"evaluation": "knn"}}]},
        {"loss_by_epoch": 3},
        {"sessions": ["here"]},
        {"curves": {"step": [1, 2], "positive_gradient": [1]}},
        {"curves": {"step": 3}},
        {"name": 5},
        {"settings": PAPER.identity() | {"recipe": "of-tomorrow"}},
        {"settings": PAPER.identity() | {"epochs": "200"}},
    ],
)
def test_a_record_that_is_none_after_all_breaks_no_page(tmp_path, broken):
    write(tmp_path, record(PAPER) | broken, "broken")
    results = Results(tmp_path)
    assert not results.all
    assert len(results.damaged) == 1
    assert shown(tmp_path, "table7", "full model").state == "missing"


def test_the_order_of_the_rows_is_compared(tmp_path):
    def order() -> str:
        return whole(tmp_path, "table7").order

    assert order() == ""
    write(tmp_path, record(PAPER, 88.0))
    write(tmp_path, record(replace(PAPER, auxiliary="none"), 85.0))
    assert order() == "The rows that were run stand in the paper's order."
    write(tmp_path, record(replace(PAPER, auxiliary="basic"), 84.0))
    assert order().startswith("Pairs of rows with both cells run: 2 of 3 stand in the paper's order. Not so: ")
    assert "two basic views 85.00 ≥ three basic views 84.00" in order()


def test_only_what_is_measured_alike_is_compared(tmp_path):
    write(tmp_path, record(replace(PAPER, epochs=1000), 91.0, 90.0))  # the paper's linear is above its kNN; not so ours
    assert whole(tmp_path, "table2").order == ""
    write(tmp_path, record(replace(recipe_config("auto", "cifar10", "super-and"), network="resnet18+sobel"), 92.0))
    assert whole(tmp_path, "table2").order == (
        "Pairs of rows of one measure with both cells run: 0 of 1 stand in the paper's order. "
        "Not so: Super-AND (kNN) 92.00 ≥ AAG (kNN) 91.00 (CIFAR-10, ResNet-18)."
    )
    assert "of one measure" not in whole(tmp_path, "table3").order


def test_a_difference_is_of_the_numbers_as_shown():
    for hundredths in range(8780, 8880):  # seeds whose mean lies between two hundredths
        cell = Shown(Cell("", "", 88.3, "knn", PAPER), "done", values=(hundredths / 100, hundredths / 100 + 0.01))
        assert cell.difference == round(float(f"{cell.mean:.2f}") - 88.3, 2)


def test_a_table_names_the_seeds_that_all_its_cells_have(tmp_path):
    write(tmp_path, record(PAPER))
    write(tmp_path, record(replace(PAPER, auxiliary="none")))
    assert whole(tmp_path, "table7").even == "1 seed each"
    assert whole(tmp_path, "table7").tally.endswith("; 1 seed each")
    write(tmp_path, record(replace(PAPER, seed=1)))
    assert whole(tmp_path, "table7").even == ""  # they differ: the cells say so
    write(tmp_path, record(replace(PAPER, seed=1, auxiliary="none")))
    assert whole(tmp_path, "table7").even == "2 seeds each"
    assert whole(tmp_path, "table6").even == ""


def test_the_sums_are_of_all_cells(tmp_path):
    assert Content(tmp_path).summary.startswith("Cells: 0 of 79 run, 0 within 0.5")
    write(tmp_path, record(PAPER, 88.0))  # a cell of Tables 1, 4 and 7
    write(tmp_path, record(recipe_config("auto", "cifar10", "instance"), 50.0))
    found = show_tables(Results(tmp_path))
    assert Content(tmp_path).summary == (
        "Cells: 4 of 79 run, 3 within 0.5 of the paper or above, from 2 runs. "
        "Of AAG's own: 3 of 34 run, 3 within 0.5 of the paper or above."
    )
    assert found[0].close_words == "1 of 34 cells (AAG, CIFAR-10, ResNet-18)"
    assert found[0].open_words == "32 of 34 cells"
    assert found[6].tally == "1 of 6 cells run, 1 of them within 0.5 of the paper or above; 1 seed"


def test_a_tables_own_comparison_stands_beside_the_papers(folder):
    tables = {one.table.id: one.gains for one in show_tables(Results(folder))}
    assert tables["table7"] == (
        "Against “full model”, ours (the paper's): two basic views −4.87 (−2.5); three basic views −2.17 (−1.4); "
        "NT-Xent −2.37 (−1.5)."
    )
    assert tables["table4"] == "Against “NT-Xent”, ours (the paper's): GNT-Xent, lr 0.03 +2.37 (+1.5)."
    assert tables["table1"] == tables["table5"] == ""


def test_a_comparison_along_a_row(tmp_path):
    isif = recipe_config("auto", "cifar10", "isif")
    write(tmp_path, record(isif, 82.0))
    write(tmp_path, record(replace(isif, loss="gnt-xent"), 84.5))
    told = show_tables(Results(tmp_path))[4].gains
    assert told == "Against “NT-Xent”, ours (the paper's): ISIF (kNN), GNT-Xent +2.50 (+2.2)."


def test_fewer_rounds_of_a_run_are_a_short_version(tmp_path):
    write(tmp_path, record(replace(recipe_config("auto", "cifar10", "and"), epochs=400, rounds=2), 84.4))
    (shown,) = show_tables(Results(tmp_path))[0].where("short")
    assert (shown.name, shown.note, shown.ours) == ("AND, CIFAR-10, ResNet-18", "400 of 1000 epochs", "84.40")
    write(tmp_path, record(replace(recipe_config("auto", "cifar10", "and"), epochs=400), 70.0))  # five rounds of 80
    (shown,) = show_tables(Results(tmp_path))[0].where("short")
    assert shown.values == (70.0,)  # one of them, and never the mean of both


def test_what_is_not_run_here_is_named(folder):
    points = Content(folder).state()["Not run here, and why"]
    what = [(label(part), point.name) for point in points for part in point.of]
    assert ("Table 6", "AMDIM, ResNet-50 (25 ×)") in what
    assert [part for part, _ in what if part.startswith("Figure")] == ["Figure 1"]


def test_a_figure_that_is_drawn_is_not_therefore_reproduced(folder):
    def figures(head: str) -> list[str]:
        return [part.id for each in Content(folder).state()[head] for part in each.of if isinstance(part, Figure)]

    assert figures("Run, within 0.5 of the paper or above") == []
    assert figures("Drawn from our runs") == ["figure2", "figure4", "figure5", "figure6"]
    assert figures("Not run yet") == ["figure3"]


def test_what_is_wrong_with_the_records_is_told(folder, tmp_path):
    told = Content(folder).warnings
    assert len(told) == 3
    assert told[0].startswith(f"{folder / 'damaged.json'} is passed over: ")
    assert Content(tmp_path).warnings == [f"there is no record in {tmp_path}: the page shows nothing of ours"]
    write(tmp_path, record(PAPER))
    assert Content(tmp_path).warnings == []
    none = tmp_path / "none"
    assert Content(none).warnings == [f"there is no folder {none}: the page shows nothing of ours"]


def test_what_the_paper_does_not_say_is_not_put_in_its_mouth():
    said = {name: part.behaviour for name, part in PARTS.items() if isinstance(part, Figure)}
    assert "zero" not in said["figure5"]
    assert "demonstrate the advantages of GNT-Xent over NT-Xent" in said["figure5"]
    assert "We add" not in "".join(said.values())
    table = PARTS["table5"]
    assert isinstance(table, Table)
    assert table.columns == ("NT-Xent", "GNT-Xent")  # as the paper heads them
    assert "We add: SimCLR's own loss is NT-Xent; ISIF's has a second term" in table.shows


def test_a_protocol_is_that_of_the_records(tmp_path):
    made = record(PAPER)
    made["evaluation"][0]["protocol"]["k"] = 7
    write(tmp_path, made)
    (said,) = protocols(["knn", "knn@200"], Results(tmp_path).all)
    assert "k = 7, τ = 0.1" in said
    assert "128-d embedding" in said
    write(tmp_path, record(replace(PAPER, seed=1)))
    write(tmp_path, record(replace(PAPER, seed=2)))
    usual, other = protocols(["knn"], Results(tmp_path).all)  # two ways to measure are two numbers
    assert "k = 200" in usual
    assert "k = 7, τ = 0.1, cosine similarity on the 128-d embedding" in other
    assert other.endswith(f"So for {PAPER.run_name()}.")
    assert "Adam at 0.01" in protocols(["linear"], [])[0]  # nothing measured yet: as it is going to be


def test_how_runs_are_trained_is_told_by_method():
    configs = [replace(PAPER, batch_size=size) for size in (64, 128, 256)]
    configs += [recipe_config("auto", "cifar10", method) for method in ("deepcluster", "and")]
    ours, clusters, rounds = training(configs)
    assert ours == (
        "Training (method aag): 200 epochs, batch 64, 128 or 256, SGD at 0.03 for 128 images, cosine schedule, "
        "gnt-xent, τ 0.1, basic family paper."
    )
    assert "constant schedule, its own loss, basic family crop." in clusters  # without a temperature
    assert "Training (method and): 1000 epochs in 5 rounds, " in rounds
    assert training([]) == []


def test_sizes_that_differ_are_told_by_what_decides_them(tmp_path):
    alexnet, clusters = replace(PAPER, network="alexnet"), recipe_config("auto", "cifar10", "deepcluster")
    for config, embedding, features in ((PAPER, 128, 512), (alexnet, 128, 1024), (clusters, 512, 512)):
        made = record(config, linear=80.0)
        for row, size in zip(made["evaluation"], (embedding, features), strict=True):
            row["protocol"]["dimensions"] = size
        write(tmp_path, made)
    knn, linear = protocols(["knn", "linear"], Results(tmp_path).all)
    assert "128-d embedding (512-d of deepcluster)" in knn
    assert "512-d features (1024-d of alexnet)" in linear


def test_where_a_record_comes_from(tmp_path):
    made = record(PAPER)
    made["sessions"] += [{"gpu": None, "cpu": "x86_64", "commit": "0123456789abcdef0123456789abcdef01234567"}]
    write(tmp_path, made)
    told = origin(Results(tmp_path).all[0])
    assert told["made on"] == "NVIDIA H200, x86_64"
    assert told["commit"] == "abc123, 0123456789ab"
    assert told["training"] == "5 min 00 s"


def test_a_cell_of_a_measure_that_was_not_logged(tmp_path):
    write(tmp_path, record(PAPER))
    assert show(Cell("a", "b", 80.0, "knn@3", PAPER), Results(tmp_path)).state == "unmeasured"

"""Our number of each cell, and what a table and the summary say of it."""

from pathlib import Path

import pytest

from aag.paper import Cell, Experiment, Results, make_experiment
from aag.paper.cells import CellResult, CellState, TableResult, find_tables
from aag.paper.page import make_lists
from aag.paper.protocol import describe_origin, describe_protocols, describe_training
from aag.paper.summary import Summary
from synthetic import PAPER, record, write


def method(name: str, **options: object) -> Experiment:
    return make_experiment("cifar10", method=name, **options)


def whole(folder: Path, table: str) -> TableResult:
    return next(each for each in find_tables(Results(folder)) if each.table.id == table)


def shown(folder: Path, table: str, row: str, column: int = 0) -> CellResult:
    return next(cells for cells in whole(folder, table).rows if cells[0].cell.row == row)[column]


def test_several_seeds_are_their_mean_with_range_and_number(folder):
    cell = shown(folder, "table7", "full model")
    assert cell.state is CellState.DONE
    assert cell.values == (88.9, 88.7, 89.0)
    assert cell.mean == pytest.approx(88.8667, abs=1e-4)
    assert (cell.range, cell.ours) == ("88.70–89.00, n = 3", "88.87 (88.70–89.00, n = 3)")
    assert cell.difference == 0.57
    assert cell.is_close


@pytest.mark.parametrize(("knn", "close"), [(87.8, True), (87.79, False), (88.3, True), (99.0, True)])
def test_half_a_point_below_the_paper_is_the_limit(tmp_path, knn, close):
    write(tmp_path, record(PAPER, knn))
    assert shown(tmp_path, "table7", "full model").is_close == close


def test_a_row_that_we_add_is_shown_and_counts_in_no_sum(tmp_path):
    before = Summary(tmp_path).headline
    write(tmp_path, record(make_experiment("svhn", flip=False), 95.2))
    content = Summary(tmp_path)
    assert content.headline == before
    first = content.tables[0]
    (shown,) = [each for each in first.cells if each.values]
    assert (shown.name, shown.ours, shown.difference) == ("AAG without flip, SVHN, ResNet-18", "95.20", -0.1)
    assert (first.close_cells, first.cells_below, first.order) == ([], [], "")
    assert first.tally == "0 of 34 cells run"
    assert first.describe_open() == "34 of 34 cells; 4 of 5 cells of the rows added by us"
    (line,) = make_lists(content)["Rows added by us, not counted above"]
    assert line[1] == ", AAG without flip, SVHN, ResNet-18: 95.20, paper 95.3 "


def test_cells_far_above_the_paper_are_listed(tmp_path):
    write(tmp_path, record(PAPER, 91.3))
    write(tmp_path, record(method("isif"), 87.0))
    lines = make_lists(Summary(tmp_path))["More than 3 points above the paper: the setups probably differ"]
    assert [(line[0].text, line[1]) for line in lines] == [
        ("Table 1", ", ISIF, CIFAR-10, ResNet-18: 87.00, paper 83.6† "),
        ("Table 5", ", ISIF (kNN), NT-Xent: 87.00, paper 83.3 "),
    ]


def test_incomparable_cells_are_shown_and_not_counted(tmp_path):
    before = Summary(tmp_path).headline
    write(tmp_path, record(PAPER.replace(network="alexnet"), 85.0))
    summary = Summary(tmp_path)
    assert summary.headline == before
    assert "not counted (our AlexNet is not the paper's)" in before
    (cell,) = summary.tables[0].incomparable_cells
    assert (cell.name, cell.difference, cell.is_close) == ("AAG, CIFAR-10, AlexNet", 10.1, False)
    assert summary.tables[0].tally == "1 of 34 cells run; 1 not comparable"
    ((anchor, text, *_),) = make_lists(summary)["Run, but not comparable with the paper"]
    assert (anchor.text, text) == ("Table 1", ", AAG, CIFAR-10, AlexNet: 85.00, paper 74.9 ")


def test_short_runs_show_the_epoch_at_the_same_fraction(tmp_path):
    write(tmp_path, record(PAPER.replace(epochs=100), 80.0))
    cell = shown(tmp_path, "table3", "AAG", 1)
    assert (cell.state, cell.note) == (CellState.SHORT, "epoch 40 of 100, not 400 of 1000")
    curve = dict(cell.results[0].record["knn_by_epoch"])
    assert cell.values == (curve[40],)


def test_the_order_of_the_rows_is_compared(tmp_path):
    def order() -> str:
        return whole(tmp_path, "table7").order

    assert order() == ""
    write(tmp_path, record(PAPER, 88.0))
    write(tmp_path, record(PAPER.replace(auxiliary="none"), 85.0))
    assert order() == "All rows that were run are in the paper's order."
    write(tmp_path, record(PAPER.replace(auxiliary="basic"), 84.0))
    assert order().startswith("2 of 3 pairs of rows are in the paper's order. Reversed: ")
    assert "two basic views 85.00 ≥ three basic views 84.00" in order()


def test_only_equal_measures_are_compared(tmp_path):
    write(tmp_path, record(PAPER.replace(epochs=1000), 91.0, 90.0))  # the paper's linear is above its kNN; not so ours
    assert whole(tmp_path, "table2").order == ""
    write(tmp_path, record(method("super-and", network="resnet18+sobel"), 92.0))
    assert whole(tmp_path, "table2").order == (
        "0 of 1 pairs of rows with the same measure are in the paper's order. "
        "Reversed: Super-AND (kNN) 92.00 ≥ AAG (kNN) 91.00 (CIFAR-10, ResNet-18)."
    )
    assert "same measure" not in whole(tmp_path, "table3").order


def test_a_difference_is_of_the_numbers_as_shown():
    for hundredths in range(8780, 8880):  # seeds whose mean lies between two hundredths
        cell = CellResult(
            Cell("", "", 88.3, "knn", PAPER), CellState.DONE, values=(hundredths / 100, hundredths / 100 + 0.01)
        )
        assert cell.difference == round(float(f"{cell.mean:.2f}") - 88.3, 2)


def test_the_headline_counts_each_run_once(tmp_path):
    assert Summary(tmp_path).headline.startswith("Runs: 0 of 38 done, 0 of these within 0.5")
    write(tmp_path, record(PAPER, 88.0))  # a cell of Tables 1, 4 and 7
    write(tmp_path, record(method("instance"), 50.0))
    assert Summary(tmp_path).headline.startswith(
        "Runs: 2 of 38 done, 1 of these within 0.5 points of the paper or above it, in every table that shows them. "
        "AAG's own: 1 of 14 done, 1 of these within 0.5 points of the paper or above it."
    )
    found = find_tables(Results(tmp_path))
    assert found[0].describe_close() == "1 of 16 cells (AAG, CIFAR-10, ResNet-18)"
    assert found[0].describe_open() == "32 of 34 cells; 5 of 5 cells of the rows added by us"
    assert found[6].tally == "1 of 6 cells run; 1 of 1 within 0.5 of the paper, or above"
    write(tmp_path, record(method("isif"), 83.0))  # within 0.5 of Table 5's 83.3, not of Table 1's 83.6
    assert "Runs: 3 of 38 done, 1 of these" in Summary(tmp_path).headline


def test_gains_are_shown_next_to_the_papers(folder):
    tables = {one.table.id: one.gains for one in find_tables(Results(folder))}
    assert tables["table7"] == (
        "Against “full model”, ours (the paper's): two basic views −4.87 (−2.5); three basic views −2.17 (−1.4); "
        "NT-Xent −2.37 (−1.5)."
    )
    assert tables["table4"] == "Against “NT-Xent”, ours (the paper's): GNT-Xent, lr 0.03 +2.37 (+1.5)."
    assert tables["table1"] == tables["table5"] == ""


def test_fewer_rounds_of_a_run_are_a_short_version(tmp_path):
    write(tmp_path, record(method("and", epochs=400, rounds=2), 84.4))
    (shown,) = find_tables(Results(tmp_path))[0].with_state(CellState.SHORT)
    assert (shown.name, shown.note, shown.ours) == ("AND, CIFAR-10, ResNet-18", "400 of 1000 epochs", "84.40")
    write(tmp_path, record(method("and", epochs=400), 70.0))  # five rounds of 80
    (shown,) = find_tables(Results(tmp_path))[0].with_state(CellState.SHORT)
    assert shown.values == (70.0,)  # one of them, and never the mean of both


def test_problems_with_records_are_reported(folder, tmp_path):
    warnings = Summary(folder).warnings
    assert len(warnings) == 3
    assert warnings[0].startswith(f"skipped {folder / 'damaged.json'}: ")
    assert Summary(tmp_path).warnings == [f"there is no record in {tmp_path}: the page shows only the paper's numbers"]
    write(tmp_path, record(PAPER))
    assert Summary(tmp_path).warnings == []
    none = tmp_path / "none"
    assert Summary(none).warnings == [f"there is no folder {none}: the page shows only the paper's numbers"]


def test_a_protocol_is_that_of_the_records(tmp_path):
    made = record(PAPER)
    made["evaluation"][0]["protocol"]["k"] = 7
    write(tmp_path, made)
    (said,) = describe_protocols(["knn", "knn@200"], Results(tmp_path).all)
    assert "k = 7, τ = 0.1" in said
    assert "128-d embedding" in said
    write(tmp_path, record(PAPER.replace(seed=1)))
    write(tmp_path, record(PAPER.replace(seed=2)))
    usual, other = describe_protocols(["knn"], Results(tmp_path).all)  # two ways to measure are two numbers
    assert "k = 200" in usual
    assert "k = 7, τ = 0.1, cosine similarity of the 128-d embedding" in other
    assert other.endswith(f"Only for {PAPER.name}.")
    assert "Adam at 0.01" in describe_protocols(["linear"], [])[0]  # nothing measured yet: as it is going to be


def test_training_is_described_by_method():
    configs = [PAPER.replace(batch_size=size) for size in (64, 128, 256)]
    configs += [method(name) for name in ("deepcluster", "and")]
    ours, clusters, rounds = describe_training(configs)
    assert ours == (
        "Training (aag): 200 epochs, batch 64, 128 or 256, SGD at 0.03 per 128 images, cosine schedule, "
        "gnt-xent, τ 0.1, basic augmentation “paper”."
    )
    assert "constant schedule, its own loss, basic augmentation “isif”." in clusters  # without a temperature
    assert "Training (and): 1000 epochs in 5 rounds, " in rounds
    (groups,) = describe_training([method("isif"), method("isif", bn_group_size=0)])
    assert groups.endswith(", batch norm over groups of 64 or all views of the batch.")
    assert describe_training([]) == []


def test_other_dimensions_are_named_by_method_or_network(tmp_path):
    alexnet, clusters = PAPER.replace(network="alexnet"), method("deepcluster")
    for config, embedding, features in ((PAPER, 128, 512), (alexnet, 128, 1024), (clusters, 512, 512)):
        made = record(config, linear=80.0)
        for row, size in zip(made["evaluation"], (embedding, features), strict=True):
            row["protocol"]["dimensions"] = size
        write(tmp_path, made)
    knn, linear = describe_protocols(["knn", "linear"], Results(tmp_path).all)
    assert "128-d embedding (512-d of deepcluster)" in knn
    assert "512-d features (1024-d of alexnet)" in linear


def test_where_a_record_comes_from(tmp_path):
    made = record(PAPER)
    made["sessions"] += [{"gpu": None, "cpu": "x86_64", "commit": "0123456789abcdef0123456789abcdef01234567"}]
    write(tmp_path, made)
    origin = describe_origin(Results(tmp_path).all[0])
    assert origin["machine"] == "NVIDIA H200, x86_64"
    assert origin["commit"] == "abc123, 0123456789ab"
    assert origin["training"] == "5 min 00 s"

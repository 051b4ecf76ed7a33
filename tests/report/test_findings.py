"""Figures: the points of our runs, and in words what one sees in them."""

import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from aag.paper import PAPER as PARTS
from aag.paper import Figure, Results
from aag.report import charts
from aag.report.findings import Cloud, Drawn, Found, find_in
from synthetic import PAPER, curves, record, write, write_projection

NT = replace(PAPER, loss="nt-xent")


def found(folder, name: str) -> Found:
    figure = PARTS[name]
    assert isinstance(figure, Figure)
    return find_in(figure, Results(folder))


def test_the_sweep_by_batch_size(folder):
    one = found(folder, "figure3")
    assert one.words[0] == (
        "kNN: 85.00 at 32 (1 seed), 87.90 at 64 (1 seed), 88.87 ± 0.15 at 128 (3 seeds), 88.00 at 256 (1 seed), "
        "86.10 at 512 (1 seed)."
    )
    assert one.words[1] == (
        "The best batch size by kNN is 128 (88.87), of 5 run; 512, the largest, is lower by 2.77. "
        "It falls from 128 to 256, from 256 to 512. All lie within 3.87."
    )
    assert one.words[2] == "kNN, 20 of 200 epochs: 61.00 at 1024; 1 seed."
    assert [line.hollow for line in one.panels[""]] == [False, True]  # a short version is no point of the line
    assert one.missing == ("batch size 1024: run only in a short version",)


def test_the_sweep_by_epochs(folder):
    one = found(folder, "figure2")
    assert (
        "The best number of epochs by kNN is 1000 (91.30), of 5 run, the largest. It never falls. All lie within 2.43."
        in one.words
    )
    assert "Linear evaluation is above kNN at 5 of 5 points." in one.words
    assert "kNN, other lengths: 86.80 at 100; 1 seed." in one.words
    assert not one.missing
    assert len(one.results) == 8


def test_gradients_that_are_constant_or_fall(folder):
    positive, negative, similarity, _ = found(folder, "figure4").words
    assert positive == (
        "|∇s⁺|: NT-Xent falls from 10 to 0.193; GNT-Xent is constant at 10 (it varies by 0.0 %); "
        "GNT-Xent is above NT-Xent at 79 of 80 points of training."
    )
    assert "GNT-Xent is constant" in negative
    assert "GNT-Xent is above NT-Xent at 80 of 80 points" in similarity


def test_a_curve_that_turns_is_told_with_its_peak(tmp_path):
    made = curves(falling=True)
    made["positive_gradient"] = [1.0, 9.0] + [0.5] * 78
    write(tmp_path, record(NT, curves=made))
    assert "falls from 1 to 0.5, with a high of 9 between" in found(tmp_path, "figure4").words[0]


@pytest.mark.parametrize("broken", [None, [], {"step": [1, 2]}, {"positive_gradient": [1]}])
def test_records_without_curves_say_so(tmp_path, broken):
    write(tmp_path, record(PAPER, curves=broken))
    write(tmp_path, record(NT))
    one = found(tmp_path, "figure4")
    assert not any(one.panels.values())
    assert one.missing == ("|∇s⁺|, |∇s⁻|, s⁺, s⁻: not in the record of NT-Xent and GNT-Xent",)
    assert one.run
    assert not one.results


def test_accuracy_and_loss_of_both_losses(folder):
    knn, loss = found(folder, "figure5").words
    assert knn.startswith("kNN: NT-Xent ends at 86.50; GNT-Xent ends at 88.90; ")
    assert knn.endswith("GNT-Xent is above NT-Xent at 20 of 20 points of training.")
    assert "NT-Xent falls from 14.4 to 3 and never goes below zero" in loss
    assert "GNT-Xent falls from 6.4 to −5 and is below zero from epoch 120 on" in loss


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([3, -1, 2, -1, -2], "and is below zero from epoch 4 on."),
        ([-1, -2], "and is below zero from epoch 1 on."),
        ([3, -1, 2], "and is below zero at 1 of 3 points, not at the last."),
        ([3, 0], "and never goes below zero."),
    ],
)
def test_a_loss_that_rises_above_zero_again_is_not_below_it(tmp_path, losses, said):
    write(tmp_path, record(PAPER, loss_by_epoch=[[epoch, loss] for epoch, loss in enumerate(losses, 1)]))
    assert found(tmp_path, "figure5").words[1].endswith(said)


def test_a_short_run_is_named_as_such_in_a_figure(tmp_path):
    write(tmp_path, record(replace(PAPER, epochs=20), curves=curves(falling=False)))
    one = found(tmp_path, "figure4")
    assert one.panels["positive_gradient"][0].name == "GNT-Xent (20 of 200 epochs)"
    assert one.missing == ("NT-Xent: not run yet", "GNT-Xent: run only in a short version, 20 of 200 epochs")


def test_runs_of_different_length_are_not_compared(tmp_path):
    write(tmp_path, record(PAPER, curves=curves(falling=False)))
    write(tmp_path, record(replace(PAPER, loss="nt-xent", epochs=20), 60.0, curves=curves(falling=True, points=20)))
    for figure in ("figure4", "figure5"):
        one = found(tmp_path, figure)
        assert len(one.words) == len(one.panels)
        assert not any("above" in words for words in one.words)
        assert all([line.hollow for line in lines] == [True, False] for lines in one.panels.values())


def test_what_a_sweep_has_not_is_told_with_its_reason(tmp_path):
    for size, changes in {32: {"momentum": 0.5}, 64: {}, 128: {}}.items():
        made = record(replace(PAPER, batch_size=size, epochs=20 if size == 64 else 200))
        write(tmp_path, made | {"settings": made["settings"] | changes})
    assert found(tmp_path, "figure3").missing == (
        "batch size 32: not run yet (there is a stale record, of settings that its recipe no longer has)",
        "batch size 64: run only in a short version",
        "batch size 256, 512, 1024: not run yet",
    )
    write(tmp_path, record(replace(PAPER, epochs=400), linear=None))
    assert found(tmp_path, "figure2").missing == (
        "epochs 600, 800, 1000: not run yet",
        "epochs 400: recorded without linear",
    )


@pytest.mark.parametrize(
    ("values", "told"),
    [([0.5, -0.5] * 40, "falls from 0.5 to −0.5"), ([-0.5] * 80, "is constant at −0.5"), ([0.0] * 80, "at 0 (it")],
)
def test_constant_is_what_hardly_varies(tmp_path, values, told):
    write(tmp_path, record(PAPER, curves=curves(falling=False) | {"negative_similarity": values}))
    assert told in found(tmp_path, "figure4").words[3]


def test_a_trial_of_a_few_epochs_is_no_point_of_the_figure(tmp_path):
    for epochs, knn in ((1, 30.0), (99, 86.0), (100, 86.8), (200, 88.9)):
        write(tmp_path, record(replace(PAPER, epochs=epochs), knn))
    assert found(tmp_path, "figure2").words[:2] == (
        "kNN: 88.90 at 200; 1 seed.",
        "kNN, other lengths: 86.80 at 100; 1 seed.",
    )


def test_of_equal_points_the_largest_is_the_best(tmp_path):
    for size in (128, 256):
        write(tmp_path, record(replace(PAPER, batch_size=size), 88.0))
    assert (
        "The best batch size by kNN is 256 (88.00), of 2 run, the largest. It never falls. All lie within 0.00."
        in found(tmp_path, "figure3").words
    )


def test_a_stale_run_is_not_drawn(tmp_path):
    made = record(PAPER)
    write(tmp_path, made | {"settings": made["settings"] | {"momentum": 0.1}})
    assert "a stale record" in found(tmp_path, "figure5").missing[1]
    assert not found(tmp_path, "figure5").run


def test_pictures_of_the_embeddings(folder):
    one = found(folder, "figure6")
    assert [cloud.name for cloud in one.clouds.values()] == ["NT-Xent", "GNT-Xent"]
    assert one.words[1] == "GNT-Xent: for 100.0 % of 600 images, the nearest in the picture is of the same class."


def test_a_large_picture_is_thinned(tmp_path):
    write(tmp_path, record(PAPER))
    write_projection(tmp_path, PAPER, points=4500)
    one = found(tmp_path, "figure6")
    (cloud,) = one.clouds.values()
    assert (len(cloud.points), cloud.left_out) == (1500, 3000)
    assert one.words[0].endswith("3,000 more are not drawn.")


def test_a_picture_is_that_of_its_run_whatever_its_name(folder):
    figure = PARTS["figure6"]
    assert isinstance(figure, Figure)
    named = [replace(series, name=name) for series, name in zip(figure.series, ("loss", "loss two"), strict=True)]
    one = find_in(replace(figure, series=tuple(named)), Results(folder))
    assert one.clouds[NT.run_name()].name == "loss"
    assert one.clouds[PAPER.run_name()].name == "loss two"
    assert one.clouds[NT.run_name()].points != one.clouds[PAPER.run_name()].points


@pytest.mark.parametrize(("apart", "shown"), [(0.0, 7), (3.0, 6), (40.0, 10)])
def test_names_of_classes_that_lie_on_each_other_do_not_hide_each_other(apart, shown):
    classes = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    points = [(apart * (i % 4) + j, apart * (i % 3) - j) for i in range(10) for j in (-50.0, 0.0, 50.0)]
    labels = [i for i in range(10) for _ in range(3)]
    drawn = charts.scatter(Cloud("a", points, labels, classes, "", Path("a.json")), title="t")
    at = re.findall(r'<text class="name" x="([\d.]+)" y="([\d.]+)"[^>]*>(\w+)<', drawn)
    assert len(at) >= shown  # those without a free place are in the legend
    for (x, y, name), (x2, y2, other) in combinations(at, 2):
        wide = 3.5 * (len(name) + len(other))
        assert abs(float(x) - float(x2)) >= wide or abs(float(y) - float(y2)) >= 12, (name, other)


def test_a_damaged_picture_is_none(tmp_path):
    path = write(tmp_path, record(PAPER))
    write_projection(tmp_path, PAPER)
    file = tmp_path / "tsne" / path.name
    for text in ("{", "{}", file.read_text().replace('"labels": [0', '"labels": [77')):
        file.write_text(text)
        assert "no t-SNE" in found(tmp_path, "figure6").missing[1]


@pytest.mark.parametrize(("low", "high"), [(0, 1), (85.1, 91.9), (-13.4, 20.4), (5, 5), (0, 0), (1e-5, 3e-5)])
def test_ticks_are_round_and_hold_all_values(low, high):
    found = charts.ticks(low, high, 5)
    assert found[0] <= low
    assert found[-1] >= high
    assert 2 <= len(found) <= 9


def test_a_chart_of_one_point_and_a_chart_of_none():
    one = charts.line_chart([Drawn("a<b", [(128, 88.0)], 0)], title="t", x_label="x", y_label="y", log=True, marks=True)
    assert "a&lt;b, x 128: 88.00" in one
    assert "nan" not in one
    assert 'class="nothing"' in charts.line_chart([], title="t", x_label="x", y_label="y")


def test_small_differences_of_accuracy_look_small():
    near, far = ([(64, 88.5), (128, 88.5 + gap)] for gap in (0.5, 8.0))
    heights = []
    for points in (near, far):
        drawn = charts.line_chart([Drawn("a", points, 0)], title="t", x_label="x", y_label="y", marks=True)
        low, high = (float(y) for y in re.findall(r'cy="([\d.]+)" r="3.5"', drawn)[:2])
        heights.append(low - high)
    assert 0 < heights[0] < heights[1] / 3


def test_a_beginning_that_would_take_the_picture_is_left_out_and_told() -> None:
    steep = [(float(x), 0.5 if x == 1 else 0.01 * x / 200) for x in range(1, 201)]
    drawn = charts.line_chart([Drawn("a<b", steep, 0)], title="t", x_label="x", y_label="y")
    assert "At the beginning 0.5 (a&lt;b), outside the picture." in drawn
    assert ">0.01</text>" in drawn
    assert ">0.5</text>" not in drawn
    assert drawn.count("<svg x=") == 1  # what cuts the line off


def test_only_lines_that_begin_outside_are_said_to() -> None:
    falls = [(float(x), 10.0 if x == 2 else 0.2 + x / 1000) for x in range(1, 201)]
    lines = [Drawn("falls", falls, 0), Drawn("stays", [(float(x), 0.3) for x in range(1, 201)], 1)]
    drawn = charts.line_chart(lines, title="t", x_label="x", y_label="y")
    assert "At the beginning 10 (falls), outside the picture." in drawn


def test_a_line_that_falls_all_the_way_is_drawn_whole() -> None:
    falling = [(float(x), 1 / x) for x in range(1, 21)]
    drawn = charts.line_chart([Drawn("a", falling, 0)], title="t", x_label="x", y_label="y")
    assert "outside" not in drawn
    assert "<svg x=" not in drawn

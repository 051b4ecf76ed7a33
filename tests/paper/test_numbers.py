"""The numbers of paper.toml against a second transcript of the paper's tables, made from its pages."""

import re

import pytest

from aag.paper import PAPER, Table

# As printed: * marks what the paper says it borrowed.
PRINTED = {
    "table1": """
        DeepCluster* 67.6 62.3 - 22.7 - 84.9
        Instance* 80.8 60.3 50.7 32.7 93.6 79.8
        ISIF* 83.6 74.4 54.4 44.1 91.3 89.8
        SimCLR* 82.3 73.0 55.8 43.2 90.8 88.6
        AND* 86.3 74.8 57.2 41.5 94.4 90.9
        AAG 88.3 74.9 60.6 39.7 95.3 92.6
    """,
    "table2": """
        Super-AND 89.2 75.6 61.5 42.7 94.9 91.9
        AAG 91.2 81.2 64.9 50.0 95.6 93.0
        AAG 91.6 81.2 66.4 51.2 96.3 94.3
    """,
    "table3": """
        Super-AND 84.8 87.4 88.2 89.1 89.2
        AAG 84.8 86.9 89.4 90.3 91.2
    """,
    "table4": """
        NT-Xent 86.8 84.2
        GNT-Xent 88.3 86.1
    """,
    "table5": """
        ISIF 83.3 85.5
        SimCLR 82.9 85.8
        SimCLR 82.9 85.8
        SimCLR 82.9 85.8
    """,  # one row of SimCLR in the paper, which does not say its setting: we run three
    "table6": """
        AMDIM 91.2
        SimCLR 94.0
        AAG 94.5
    """,
    "table7": """
        full 88.3
        two 85.8
        three 86.9
        StepLR 87.1
        NT-Xent 86.8
        RandAugment 88.1
    """,
}


@pytest.mark.parametrize("name", PRINTED)
def test_the_numbers_are_the_papers(name: str) -> None:
    table = PAPER[name]
    assert isinstance(table, Table)
    ours = [row for row in table.rows if not row[0].elsewhere.startswith("not in the paper") and not row[0].added]
    printed = [line.split() for line in PRINTED[name].strip().splitlines()]
    assert len(ours) == len(printed)
    for row, (first, *numbers) in zip(ours, printed, strict=True):
        assert re.match(re.escape(first.rstrip("*")) + r"\b", row[0].row)
        assert [cell.paper for cell in row] == [None if number == "-" else float(number) for number in numbers]
        if name == "table1":
            assert {cell.quoted for cell in row} == {first.endswith("*")}


@pytest.mark.parametrize(("name", "runs"), [("table1", [1, 2, 1, 1]), ("table5", [2, 2, 2])])
def test_rows_that_we_add_are_beside_the_papers_numbers(name: str, runs: list[int]) -> None:
    rows = PAPER[name].rows
    added = [row for row in rows if row[0].added]
    for row in added:
        method = row[0].row.split()[0].rstrip(",")
        beside = next(each for each in rows if re.match(rf"{method}\b", each[0].row))
        for cell, its in zip(row, beside, strict=True):
            assert (cell.paper, cell.experiment is None) in ((None, True), (its.paper, False))
    assert [sum(cell.experiment is not None for cell in row) for row in added] == runs


def test_the_papers_column_of_memory_banks_is_there():
    table = PAPER["table1"]
    words = dict(zip((row[0].row for row in table.rows), table.texts, strict=True))
    assert (table.text_column, words["Instance"], words["AND"]) == ("memory bank", "yes", "yes")
    assert [words[name] for name in ("DeepCluster", "ISIF", "SimCLR", "AAG")] == ["–", "no", "no", "no"]

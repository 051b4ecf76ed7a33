"""The reproduction page: every table and figure, our numbers next to the paper's. Also single figures as files."""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from aag.errors import AAGError
from aag.files import atomic_write_path, explain_write_errors
from aag.pages import document as doc
from aag.pages.document import Block, Link, Paragraph, Span, Text, heading, join
from aag.pages.html import render_html
from aag.pages.markdown import render_markdown
from aag.pages.plots import save_charts
from aag.paper.cells import (
    CLOSE_POINTS,
    ELSEWHERE_MARK,
    FAR_POINTS,
    QUOTED_MARK,
    CellResult,
    CellState,
    TableResult,
    format_signed,
    label,
)
from aag.paper.drawing import draw_framework
from aag.paper.experiments import Figure, Part
from aag.paper.findings import FigureResult, find_figure
from aag.paper.plan import find_parts
from aag.paper.protocol import describe_origin
from aag.paper.results import Result, Results
from aag.paper.summary import Summary
from aag.paper.views import make_view_table

TITLE = "AAG: the paper's tables and figures, reproduced"


def write_pages(results: Path, out: Path, markdown: Path | None = None) -> list[str]:
    """Write the page as HTML and, if asked, as Markdown: both, or neither where one cannot be written.

    Return what is wrong with the records, one line each.
    """
    summary = Summary(results)
    document = make_document(summary)
    if markdown and markdown.resolve() == out.resolve():
        raise AAGError(f"cannot write two pages to {out}; give two names")
    texts = {out: render_html(document, out)} | ({markdown: render_markdown(document, markdown)} if markdown else {})
    with ExitStack() as stack:  # files are renamed when all of them are written
        for path, text in texts.items():
            if path.is_dir():
                raise AAGError(f"cannot write {path}: it is a folder; give the name of a file")
            stack.enter_context(explain_write_errors(path))
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(atomic_write_path(path)).write_text(text, encoding="utf-8", newline="\n")
    return summary.warnings


def save_figure(names: Iterable[str], path: Path, results: Results) -> str:
    """Draw one figure from the records into a file, and say so."""
    parts = find_parts(names)
    if len(parts) != 1 or not isinstance(parts[0], Figure):
        raise AAGError(f"--save draws one figure, such as figure4, not {' '.join(names)}")
    found = find_figure(parts[0], results)
    if found.figure.kind == "views":
        raise AAGError(f"{parts[0].id} is not drawn from records; aag reproduce page shows it")
    if all(chart.is_empty for chart in found.charts):
        raise AAGError(f"{results.folder} has no record for {parts[0].id}; run aag reproduce {parts[0].id} first")
    save_charts(found.charts, path)
    missing = f" (missing: {'; '.join(found.missing)})" if found.missing else ""
    return f"{label(parts[0])} written to {path}{missing}"


def make_document(summary: Summary) -> doc.Document:
    return doc.Document(
        TITLE,
        [
            Paragraph(
                "Every table and figure of “AAG: Self-Supervised Representation Learning by Auxiliary Augmentation "
                "with GNT-Xent Loss” (Tu, Feng, Yang; 2021), with our number next to the paper's. Accuracy in percent.",
                "lead",
            ),
            Paragraph([Span(summary.headline, "strong")], "sum"),
        ],
        [
            _summary_section(summary),
            *map(_table_section, summary.tables),
            *map(_figure_section, summary.figures),
            _records_section(summary),
        ],
        [
            "Written by ", Span("aag reproduce page", "code"),
            " from the records that it links to. No number of ours is typed by hand.",
        ],
    )  # fmt: skip


# --- the summary ------------------------------------------------------------------------------------------------------


def _summary_section(summary: Summary) -> doc.Section:
    lists: list[list[Block]] = [
        [heading(head), doc.Bullets(items)] for head, items in make_lists(summary).items() if items
    ]
    marks: Text = [
        "First our number, and its difference from the paper's: ",
        Span("▲ above or equal", "diff up"), ", ", Span(f"▽ below by at most {CLOSE_POINTS}", "diff near"), ", ",
        Span("▼ below by more", "diff down"),
        ". Then the paper's number. One seed, unless the cell gives a range over n seeds; then our number is their "
        f"mean. {QUOTED_MARK}: the paper took the number from earlier work. {ELSEWHERE_MARK}: shown for comparison "
        "only.",
    ]  # fmt: skip
    states = (
        "Short versions have fewer epochs than the cell asks for; they are not compared. Stale records have other "
        "settings than the cell; their numbers are not shown."
    )
    reading = [heading("How to read a cell"), Paragraph(marks), Paragraph(states)]
    return doc.Section("state", "What is reproduced, and what is not", [doc.Columns(lists), *reading])


def make_lists(summary: Summary) -> dict[str, list[Text]]:
    """Return what is reproduced and what is not, by heading."""
    tables, figures = summary.tables, summary.figures

    def cells(name: str) -> list[Text]:
        return [
            [
                _anchor(one.table), f", {cell.name}: {cell.ours}, paper {cell.paper} ", _difference(cell), " ",
                *_record_links(cell),
            ]
            for one in tables for cell in getattr(one, name)
        ]  # fmt: skip

    drawn = [_anchor(each.figure) for each in figures if each.results and not each.missing]
    rows = [(one, row[0].cell) for one in tables for row in one.rows if row[0].state is CellState.ELSEWHERE]
    return {
        f"Within {CLOSE_POINTS} points of the paper, or above": [
            join(_anchor(one.table), f": {one.describe_close()}") for one in tables if one.close_cells
        ],
        f"More than {FAR_POINTS:g} points above the paper: the setups probably differ": cells("cells_far_above"),
        f"More than {CLOSE_POINTS} points below the paper": cells("cells_below"),
        "Run, but not comparable with the paper": cells("incomparable_cells"),
        "Rows added by us, not counted above": cells("added_cells"),
        "Drawn from our runs; compare them with the paper's words": [join(link) for link in drawn],
        "Not run yet": [
            *(join(_anchor(one.table), f": {text}") for one in tables if (text := one.describe_open())),
            *(join(_anchor(one.figure), f": {'; '.join(one.missing)}") for one in figures if one.missing),
        ],
        "Not run here, and why": [join(_anchor(one.table), f", {cell.row}: {cell.elsewhere}") for one, cell in rows],
    }


# --- a table ----------------------------------------------------------------------------------------------------------


def _table_section(found: TableResult) -> doc.Section:
    table = found.table
    rows = []
    for number, row in enumerate(found.rows):
        first = row[0].cell
        tags = {"quoted": first.quoted, f"not ours {ELSEWHERE_MARK}": bool(first.elsewhere), "added by us": first.added}
        head: list[Text] = [first.row, *(join(Span(tag, "tag")) for tag, shown in tags.items() if shown)]
        words = [doc.Cell([text]) for text in table.texts[number : number + 1]]
        rows.append([doc.Cell(head), *map(_cell, row), *words])
    columns = ["", *table.columns, *filter(None, [table.text_column])]
    missing = bool(found.describe_open())
    return doc.Section(
        table.id,
        table.title,
        [
            Paragraph(table.shows),
            doc.Table(label(table), columns, rows, f"{label(table)}: {found.tally}."),
            *(Paragraph(text) for text in (found.gains, found.order) if text),
            *_notes(table.notes),
            *_protocol_paragraphs([*found.sources, *found.protocols]),
            *_missing_command(table, missing),
        ],
        label(table),
    )


def _cell(one: CellResult) -> doc.Cell:
    """Return a cell with our number, the paper's, and links to the records, one line each."""
    if one.state is CellState.EMPTY:
        return doc.Cell(["–"], one.state)
    lines: list[Text] = []
    if one.values:
        lines.append([Span(f"{one.mean:.2f}", "strong"), " ", _difference(one)])
        lines += [one.range] if one.range else []
    state = {
        CellState.SHORT: f"short: {one.note}",
        CellState.UNMEASURED: one.note,
        CellState.MISSING: "not run yet",
    }.get(one.state)
    if state:
        lines.append([Span(state, "state")])
    lines.append(one.paper if one.state is CellState.ELSEWHERE else f"paper {one.paper}")
    if one.results:
        lines.append(_record_links(one))
    for stale in one.stale:
        lines.append([Span("stale ", "stale"), _record_link(stale.result, "record", one.name), f": {stale}"])
    return doc.Cell(lines, one.state)


def _difference(one: CellResult) -> Span:
    if one.difference is None:
        return Span("", "")
    if one.cell.incomparable:
        return Span(f"({format_signed(one.difference)}, not comparable)", "soft")
    below = ("near", "▽") if one.difference >= -CLOSE_POINTS else ("down", "▼")
    kind, mark = ("up", "▲") if one.difference >= 0 else below
    return Span(f"{mark} {format_signed(one.difference)}", f"diff {kind}")


def _record_links(one: CellResult) -> list[doc.Inline]:
    if len(one.results) == 1:
        return [_record_link(one.results[0], "record", one.name)]
    links: list[doc.Inline] = ["records of seed"]
    for result in one.results:
        links += [" ", _record_link(result, str(result.seed), f"{one.name}, seed {result.seed}")]
    return links


def _record_link(result: Result, text: str, about: str = "") -> Link:
    return Link(text, result.path, f"record of {about}" if about else "")


# --- a figure ---------------------------------------------------------------------------------------------------------


def _figure_section(found: FigureResult) -> doc.Section:
    figure = found.figure
    ours: list[Block] = []
    if figure.kind != "views":
        findings = doc.Bullets(found.findings) if found.findings else Paragraph("Nothing to compare yet.")
        ours = [heading("Ours"), findings]
        ours += [heading("Missing"), doc.Bullets(found.missing)] if found.missing else []
    links: list[doc.Inline] = []
    for name, path in found.files.items():
        links += [", " if links else "Drawn from ", Link(name, path)]
    seeds = "" if figure.kind == "sweep" else " (the lowest seed of each run)"
    paper: list[Block] = [heading("The paper"), Paragraph(figure.behaviour)]
    drawn: Block = doc.Drawing(draw_framework()) if figure.kind == "views" else doc.Charts(found.charts)
    # A drawing or a single chart leaves room next to it.
    body: list[Block] = [drawn, doc.Columns([paper, ours])]
    if figure.kind == "views":
        body = [doc.Columns([[drawn], paper]), make_view_table()]
    elif len(found.charts) == 1:
        body = [doc.Columns([[drawn], [*paper, *ours]])]
    return doc.Section(
        figure.id,
        figure.title,
        [
            Paragraph(figure.shows),
            *body,
            *_notes(figure.notes),
            *_protocol_paragraphs(found.protocols),
            *([Paragraph([*links, f"{seeds}."], "protocol")] if links else []),
            *_missing_command(figure, bool(found.missing)),
        ],
        label(figure),
    )


# --- records and shared parts -----------------------------------------------------------------------------------------


def _records_section(summary: Summary) -> doc.Section:
    blocks: list[Block] = [Paragraph("None yet.")]
    if summary.used:
        rows = [
            [doc.Cell([[_record_link(one, one.name)]]), *(doc.Cell([text]) for text in describe_origin(one).values())]
            for one in summary.used
        ]
        columns = ["record", *describe_origin(summary.used[0])]
        caption = f"The {len(rows)} records that this page shows."
        blocks = [doc.Table("Records", columns, rows, caption, "list")]
    if summary.damaged:
        blocks += [heading("Skipped files"), doc.Bullets([f"{path.name}: {why}" for path, why in summary.damaged])]
    return doc.Section("records", "Where the numbers come from", blocks, "Records")


def _anchor(part: Part) -> Link:
    return Link(label(part), part.id)


def _notes(notes: Iterable[str]) -> list[Block]:
    return [heading("Our notes"), doc.Bullets(list(notes))] if notes else []


def _protocol_paragraphs(texts: Iterable[str]) -> list[Block]:
    return [Paragraph(text, "protocol") for text in texts]


def _missing_command(part: Part, is_missing: bool) -> list[Block]:
    command: Text = ["To run what is missing: ", Span(f"aag reproduce {part.id}", "code")]
    return [Paragraph(command, "protocol")] if is_missing else []

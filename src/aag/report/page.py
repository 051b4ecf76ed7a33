"""The page: one HTML file with everything in it, which asks nothing of the network and runs no script."""

from collections.abc import Iterable
from html import escape
from itertools import groupby
from pathlib import Path

from aag.paper import PAPER, Figure, Result, Table
from aag.report import charts
from aag.report.cells import CLOSE, ELSEWHERE, QUOTED, Shown, ShownTable, label, signed
from aag.report.content import WORDS, Content, Point
from aag.report.files import link
from aag.report.findings import NAMES, Found
from aag.report.protocol import origin
from aag.report.views import scrolling, view_table
from aag.text import pluralize

TITLE = "AAG: the paper's tables and figures, ours beside theirs"
# Whatever a record holds, the browser loads nothing from elsewhere and runs nothing.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


class Page:
    def __init__(self, content: Content, out: Path) -> None:
        self.content, self.out = content, out

    def html(self) -> str:
        style = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
        sections = [*map(self._table, self.content.tables), *map(self._figure, self.content.figures), self._records()]
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><link rel="icon" href="data:,">'
            f"<title>{escape(TITLE)}</title><style>\n{style}</style></head>\n<body>\n"
            f"{self._head()}\n<main>\n{self._state()}\n" + "\n".join(sections) + "\n</main>\n"
            "<footer><p>Written by <code>aag reproduce page</code> from the records named above; no number of ours "
            "is typed.</p></footer>\n</body></html>\n"
        )

    # --- the top ----------------------------------------------------------------------------------------------------

    def _head(self) -> str:
        links = (
            "".join(f"<li>{_anchor(part)}</li>" for part in PAPER.values()) + '<li><a href="#records">Records</a></li>'
        )
        return (
            f"<header><h1>{escape(TITLE)}</h1>"
            '<p class="lead">Every table and figure of <cite>AAG: Self-Supervised Representation Learning by Auxiliary '
            "Augmentation with GNT-Xent Loss</cite> (Tu, Feng, Yang; 2021); beside the paper's number ours, "
            "where it was measured, in percent.</p>"
            f'<p class="sum">{escape(self.content.summary)}</p>'
            f'<nav aria-label="Tables and figures"><ul>{links}</ul></nav></header>'
        )

    def _state(self) -> str:
        lists = {head: [self._point(each) for each in points] for head, points in self.content.state().items()}
        told = "".join(f"<div><h3>{escape(head)}</h3>{_list(items)}</div>" for head, items in lists.items())
        return (
            f'<section id="state"><h2>What is reproduced, and what is not</h2><div class="lists">{told}</div>'
            "<h3>How to read a cell</h3>"
            "<p>Large, our number: the mean over seeds, with ± their standard deviation where there are several. "
            'Behind it, ours less the paper\'s: <span class="diff up">▲ above or equal</span>, '
            f'<span class="diff near">▽ below by at most {CLOSE}</span>, '
            f'<span class="diff down">▼ below by more</span>. Under it the paper\'s number: {QUOTED} is one that the '
            f"paper took from earlier work, {ELSEWHERE} one that is shown for comparison and not run here. {WORDS}</p>"
            "</section>"
        )

    def _point(self, point: Point) -> str:
        name = ", ".join([*map(_anchor, point.of), *([escape(point.name)] if point.name else [])])
        if cell := point.cell:
            return f"{name}: {cell.ours} against {cell.paper} {_difference(cell)} {self._links(cell, with_seeds=True)}"
        return f"{name}: {escape(point.text)}"

    # --- a table ----------------------------------------------------------------------------------------------------

    def _table(self, shown: ShownTable) -> str:
        table = shown.table
        rows = []
        for row in shown.rows:
            first = row[0].cell
            tag = ' <span class="tag">quoted</span>' * first.quoted
            tag += f' <span class="tag">not ours {ELSEWHERE}</span>' * bool(first.elsewhere)
            tag += ' <span class="tag">we add</span>' * first.added
            cells = "".join(self._cell(each, with_seeds=not shown.even) for each in row)
            rows.append(f'<tr><th scope="row">{escape(first.row)}{tag}</th>{cells}</tr>')
        told = "".join(f"<p>{escape(text)}</p>" for text in (shown.gains, shown.order) if text)
        notes = "".join(f'<p class="protocol">{escape(note)}</p>' for note in shown.notes)
        caption = f"{label(table)}: {escape(shown.tally)}."
        return (
            f'<section id="{table.id}"><h2><small>{label(table)}</small>{escape(table.title)}</h2>'
            f"<p>{escape(table.shows)}</p>"
            f"{scrolling(label(table), caption, _heads(table.columns), rows, wide=len(table.columns) > 2)}"
            f"{told}{notes}{_protocol(shown.protocols)}{_missing_command(table, bool(shown.open))}"
            "</section>"
        )

    def _cell(self, shown: Shown, with_seeds: bool) -> str:
        cell, parts = shown.cell, []
        if shown.state == "empty":
            return '<td class="empty"><span class="soft">–</span></td>'
        if shown.values:
            spread = f' <span class="diff">± {shown.spread:.2f}</span>' if shown.spread is not None else ""
            parts.append(f'<b class="ours">{shown.mean:.2f}</b>{spread} {_difference(shown)}')
        state = {"short": f"short: {shown.note}", "unmeasured": shown.note, "missing": "not run yet"}.get(shown.state)
        if state:
            parts.append(f'<span class="row state">{escape(state)}</span>')
        who = "" if shown.state == "elsewhere" else "paper "
        parts.append(f'<span class="row">{who}{shown.paper}</span>')
        if shown.results:
            parts.append(f'<span class="row">{self._links(shown, with_seeds)}</span>')
        for result in shown.stale:
            parts.append(f'<span class="row stale">stale: {self._link(result, "record", cell.row)}</span>')
        return f'<td class="{shown.state}">{"".join(parts)}</td>'

    def _links(self, shown: Shown, with_seeds: bool) -> str:
        """To the records; `with_seeds`: with the number of seeds, which a table names once where it is that of all."""
        if len(shown.results) == 1:
            told = f"{shown.seeds}: " * (with_seeds and bool(shown.values))
            return told + self._link(shown.results[0], "record", shown.name)
        each = [self._link(result, str(result.config.seed), f"seed {result.config.seed}") for result in shown.results]
        return f"{pluralize(len(each), 'seed')}: {' '.join(each)}"

    def _link(self, result: Result, text: str, of: str = "") -> str:
        return self._file(result.path, text, f' aria-label="{escape(f"record of {of}")}"' if of else "")

    def _file(self, path: Path, text: str, told: str = "") -> str:
        return f'<a href="{escape(link(path, self.out))}"{told}>{escape(text)}</a>'

    # --- a figure ---------------------------------------------------------------------------------------------------

    def _figure(self, found: Found) -> str:
        figure = found.figure
        gaps = f"<h3>Missing</h3>{_list(map(escape, found.missing))}" if found.missing else ""
        ours = _list(map(escape, found.words)) if found.words else "<p>Nothing to compare yet.</p>"
        beside = f"<div><h3>Ours</h3>{ours}{gaps}</div>" if figure.kind != "views" else ""
        links = ", ".join(self._file(path, name) for name, path in found.files.items())
        which = f" ({found.seeds})" * bool(found.seeds)
        from_records = f'<p class="protocol">Drawn from {links}{which}.</p>' if links else ""
        alone = ' class="duo"' * (figure.kind == "sweep")  # a single chart leaves room beside it
        return (
            f'<section id="{figure.id}"><h2><small>{label(figure)}</small>{escape(figure.title)}</h2>'
            f"<p>{escape(figure.shows)}</p><div{alone}><figure>{self._panels(found)}</figure>"
            f'<div class="beside"><div><h3>The paper</h3><p>{escape(figure.behaviour)}</p></div>{beside}</div></div>'
            f"{_protocol(found.protocols)}{from_records}{_missing_command(figure, bool(found.missing))}"
            "</section>"
        )

    def _panels(self, found: Found) -> str:
        figure = found.figure
        if figure.kind == "views":
            return view_table()
        if figure.kind == "sweep":
            title = f"{label(figure)}: {figure.title}"
            chart = charts.line_chart(
                found.panels[""], title=title, x_label=figure.x, y_label="accuracy, %", log=figure.log, marks=True
            )
            return f'<div class="panels one"><div class="panel">{chart}</div></div>'
        panels = []
        if figure.kind == "tsne":
            for series in figure.series:
                cloud = found.clouds.get(series.config.run_name())
                title = f"t-SNE of {series.name}"
                chart = charts.scatter(cloud, title=title) if cloud else charts.nothing(title, "no t-SNE recorded")
                panels.append(
                    f'<div class="panel"><h3>{escape(cloud.name if cloud else series.name)}</h3>{chart}</div>'
                )
            legend = charts.class_legend(next(iter(found.clouds.values())).classes) if found.clouds else ""
            return f'<div class="panels">{"".join(panels)}</div>{legend}'
        by = "epoch" if figure.kind == "epochs" else "step"
        for curve, lines in found.panels.items():
            title = f"{NAMES[curve]} by {by}"
            y_label = "kNN accuracy, %" if curve == "knn" else NAMES[curve]
            why = "no curve of it in the records" if found.run else "not run yet"
            drawn = (
                charts.line_chart(lines, title=title, x_label=by, y_label=y_label)
                if lines
                else charts.nothing(title, why)
            )
            panels.append(f'<div class="panel"><h3>{escape(title)}</h3>{drawn}</div>')
        return f'<div class="panels">{"".join(panels)}</div>'

    # --- where it comes from ----------------------------------------------------------------------------------------

    def _records(self) -> str:
        results = self.content.used
        heads = ["record", *origin(results[0])] if results else []
        rows = []
        for result in results:
            cells = "".join(f"<td>{escape(text)}</td>" for text in origin(result).values())
            rows.append(f'<tr><th scope="row" class="wide">{self._link(result, result.name)}</th>{cells}</tr>')
        head = "".join(f'<th scope="col">{escape(one)}</th>' for one in heads)
        caption = f"The {len(results)} records that this page shows."
        table = scrolling("Records used", caption, f"<tr>{head}</tr>", rows, kind="list")
        broken = [f"{path.name}: {why}" for path, why in self.content.damaged]
        damaged = f"<h3>Files that are passed over</h3>{_list(map(escape, broken))}" if broken else ""
        shown = table if results else "<p>None yet.</p>"
        return f'<section id="records"><h2>Records: where the numbers come from</h2>{shown}{damaged}</section>'


def _heads(columns: tuple[str, ...]) -> str:
    """Columns by set and network stand under their set, as in the paper."""
    split = [column.split(", ") for column in columns]
    if len(columns) < 2 or any(len(parts) != 2 for parts in split):
        return "<tr><td></td>" + "".join(f'<th scope="col">{escape(name)}</th>' for name in columns) + "</tr>"
    groups = [(name, len(list(under))) for name, under in groupby(split, key=lambda parts: parts[0])]
    above = "".join(f'<th scope="colgroup" colspan="{n}" class="group">{escape(name)}</th>' for name, n in groups)
    under = "".join(f'<th scope="col">{escape(parts[1])}</th>' for parts in split)
    return f'<tr><td rowspan="2"></td>{above}</tr><tr>{under}</tr>'


def _difference(shown: Shown) -> str:
    difference = shown.difference
    if difference is None:
        return ""
    kind, mark = ("up", "▲") if difference >= 0 else (("near", "▽") if shown.close else ("down", "▼"))
    return f'<span class="diff {kind}">{mark} {signed(difference)}</span>'


def _protocol(sentences: Iterable[str]) -> str:
    return "".join(f'<p class="protocol">{escape(said)}</p>' for said in sentences)


def _missing_command(part: Table | Figure, missing: bool) -> str:
    return f'<p class="protocol">To run what is missing: <code>aag reproduce {part.id}</code></p>' * missing


def _anchor(part: Table | Figure) -> str:
    return f'<a href="#{part.id}">{label(part)}</a>'


def _list(items: Iterable[str]) -> str:
    """Of HTML."""
    told = "".join(f"<li>{item}</li>" for item in items)
    return f'<ul class="plain">{told}</ul>' if told else "<p>Nothing.</p>"

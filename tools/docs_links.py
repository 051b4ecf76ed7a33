"""MkDocs hook: pages link to files outside docs/, such as ../results/NAME.json; make the links work on the site.

The Markdown stays as a reader of the repository needs it. The site gets copies
of the records, the examples, the log and the security model.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\(\.\./([^)\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the records, the examples, the log and the security model to the site's files."""
    examples = [path for path in sorted((ROOT / "examples").iterdir()) if path.suffix in (".py", ".ipynb")]
    for path in (ROOT / "LOG.md", ROOT / "SECURITY.md", *examples, *sorted((ROOT / "results").rglob("*.json"))):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Point links out of docs/ to the copies; the README's counterpart on the site is the first page."""
    if "/" in page.file.src_uri or page.file.src_uri in ("LOG.md", "SECURITY.md"):
        return markdown
    return LINK.sub(lambda found: "](" + re.sub(r"^README\.md.*", "index.md", found[1]), markdown)

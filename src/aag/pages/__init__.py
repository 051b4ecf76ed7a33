"""What every page shares: the page as data, its renderers to HTML and Markdown, plots, and how files are written."""

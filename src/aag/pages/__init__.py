"""What every page shares: the page as data, its renderers to HTML and Markdown, and plots."""

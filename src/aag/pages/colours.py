"""The colours of pages and plots, for light and dark. The contrast of text is at least 4.5 : 1."""

COLOURS = {  # name: light, dark
    "paper": ("#fdfdfb", "#15171a"),
    "ink": ("#1c1e21", "#e7e8ea"),
    "soft": ("#585d66", "#a6abb3"),
    "line": ("#d5d7da", "#3a3e44"),
    "wash": ("#f2f3f1", "#1e2125"),
    "tag": ("#e6e8e4", "#2c3036"),
    "link": ("#14509e", "#8dbcf5"),
    "up": ("#11662f", "#74d294"),
    "down": ("#a8221a", "#ff9a8f"),
    "near": ("#5b5200", "#d9c96a"),
    "series0": ("#a34a00", "#f2a765"),
    "series1": ("#15519f", "#8ebdf6"),
    "class0": ("#1a5bb3", "#71a7ea"),
    "class1": ("#bd6410", "#f3b06a"),
    "class2": ("#33994d", "#85d69a"),
    "class3": ("#ad1f2b", "#e77d86"),
    "class4": ("#673399", "#ae85d6"),
    "class5": ("#8a5842", "#caab9d"),
    "class6": ("#a3297a", "#de7dc0"),
    "class7": ("#61656b", "#abaeb3"),
    "class8": ("#8b8d18", "#d2d463"),
    "class9": ("#168495", "#5fd3e2"),
}


def light(name: str) -> str:
    return COLOURS[name][0]


def css_variables() -> str:
    """Return the colours as CSS variables that follow the reader's scheme; print is light."""
    schemes = ["".join(f"--{name}: {pair[scheme]}; " for name, pair in COLOURS.items()) for scheme in (0, 1)]
    return (
        f":root {{ color-scheme: light dark; {schemes[0]}}}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {schemes[1]}}} }}\n"
    )


def follow_scheme(svg: str) -> str:
    """Replace the light colours of an SVG by the variables, so that it follows the page's scheme."""
    for name, (colour, _) in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg

"""How Sphinx builds the site: `make docs`."""

import re

from docutils import nodes
from sphinx.util.docutils import SphinxDirective
from typer.testing import CliRunner

import cglb.cli

project = "cglb"
author = "The cglb authors"
copyright = "The cglb authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = "cglb"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_numpy_docstring = False


def literal(match):
    """Two backticks, and a separator before a letter that follows, as in `name`s."""
    return f"``{match[1]}``" + ("\\ " if match[2] else "")


def plain_text_to_rst(app, what, name, obj, options, lines):
    """Docstrings are plain text with `code`: as reStructuredText they need two backticks."""
    for number, line in enumerate(lines):
        if line.lstrip().startswith(":"):  # a field that napoleon made
            continue
        line = re.sub(r"(?<!`)`([^`]+)`(?!`)(?=(\w)?)", literal, line)
        parts = re.split(r"(``.*?``)", line)
        parts[::2] = [re.sub(r"([|*])", r"\\\1", part) for part in parts[::2]]
        lines[number] = "".join(parts)


class Help(SphinxDirective):
    """What `cglb COMMAND --help` prints."""

    required_arguments = 1

    def run(self):
        """One literal block."""
        command = [self.arguments[0], "--help"]
        shown = CliRunner().invoke(cglb.cli.app, command, prog_name="cglb", terminal_width=90)
        return [nodes.literal_block(shown.output, shown.output, language="text")]


def setup(app):
    """Called by Sphinx."""
    app.add_directive("help", Help)
    app.connect("autodoc-process-docstring", plain_text_to_rst, priority=400)

"""A report of a fitted model: one HTML file with pictures, light and dark, without network."""

from cglb.page.write import write_report

__all__ = ["write_report"]

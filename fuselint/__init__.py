"""fuselint: a fusion-opportunity linter for MLX code."""

__version__ = "0.1.0"

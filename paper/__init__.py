"""The paper's figures and tables, one module each: ``python -m paper.<name> [--quick] [--out FOLDER]``."""

"""Configuration of the documentation site; ``make docs`` builds it.

The source folder is the repository, so that links between pages, to the README and to results of
benchmarks are the same here, on a forge and in an editor. Nothing is loaded from the network, neither while
building nor while reading.
"""

import os
import sys
import warnings
from importlib.metadata import version as installed_version
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_ext"))

# Examples in the gallery: one thread each, no window.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "agg")

project = "capedjica"
author = "the capedjica developers"
copyright = author
version = release = installed_version("capedjica")

root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "benchmarks/results/*.md", "paper/RESULTS.md"]
# Named are the large folders, so that they are not searched.
exclude_patterns = [".*", "docs/_build", "docs/_templates", "src", "tests", "**/node_modules"]
extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_gallery.gen_gallery",
    "commands",
    "formats",
    "mathml",
    "references",
]
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(nilearn|numpy|sklearn)\..*")]
suppress_warnings = ["config.cache"]

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "fieldlist"]
myst_links_external_new_tab = False

# Types are in the numpydoc sections; annotations would repeat them in every signature.
autodoc_typehints = "none"
autosummary_generate = True
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
templates_path = [str(DOCS / "_templates")]

sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "docs/gallery",
    "filename_pattern": r"[/\\]plot_",
    "ignore_pattern": r"(^|[/\\])(?!plot_)\w+\.py$",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": False,
    "only_warn_on_example_error": False,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "remove_config_comments": True,
    "reset_modules": ("matplotlib",),
    "reference_url": {"capedjica": None},
    "doc_module": ("capedjica",),
    "backreferences_dir": None,
}
# Small examples ask for more than their noise recovers, and say so in their text.
warnings.filterwarnings("ignore", message="[0-9]+ components were requested", category=UserWarning)

html_theme = "pydata_sphinx_theme"
html_title = "capedjica"
html_context = {"default_mode": "auto"}
html_static_path = ["_static"]
html_extra_path = ["_extra"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "capedjica"},
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"docs/index": []}

"""Text of commands as parts of a page."""

from capedjica.web.prose import parts


def test_headings_paragraphs_items_tables_and_fingerprints():
    text = (
        "A title\n\nWho takes part\n  Two sites.\n  north: 3 people\n    abcd efgh ijkl\n\n"
        "  release      times\n  mean             1\n  sum              2\n"
        "  This holds as long as:\n  - nothing changes.\n"
    )
    assert list(parts(text)) == [
        ("heading", "A title"),
        ("heading", "Who takes part"),
        ("paragraph", "Two sites."),
        ("paragraph", "north: 3 people"),
        ("code", "abcd efgh ijkl"),
        ("table", "release      times\nmean             1\nsum              2"),
        ("paragraph", "This holds as long as:"),
        ("item", "nothing changes."),
    ]


def test_nothing_of_a_text_is_lost():
    text = "x\n  y   z\n      deep\n\n\n  - item\nlast"
    assert " ".join(" ".join(words.split()) for _, words in parts(text)) == "x y z deep item last"

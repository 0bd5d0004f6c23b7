"""Every snippet of the page about analyses is a study that can be run."""

import re
import tomllib

import msgspec
import numpy as np
import pytest

from capedjica.study.analyses import OWN
from capedjica.study.public_files import with_hashes
from capedjica.study.study_file import Study, to_content
from tests.support.drafts import draft, plain
from tests.support.places import ROOT

PAGE = (ROOT / "docs" / "user-guide" / "analyses.md").read_text()
SNIPPETS = [tomllib.loads(found) for found in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)]
STUDIES = [snippet for snippet in SNIPPETS if "analysis" in snippet]


@pytest.mark.parametrize("snippet", STUDIES)
def test_a_snippet_is_part_of_a_study(snippet, tmp_path):
    frame = plain(draft())
    privacy = frame["privacy"] | snippet.get("privacy", {})
    np.save(tmp_path / "template.npy", np.eye(10, 90))
    content = to_content(frame | snippet | {"privacy": privacy})
    tables = tuple(with_hashes(table, tmp_path) for table in content.analyses)
    study = Study(msgspec.structs.replace(content, analyses=tables), tmp_path)
    assert study.problems() == []
    assert msgspec.to_builtins(study.content)["analysis"]


def test_every_kind_is_in_the_table():
    assert set(re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE)) == set(OWN)

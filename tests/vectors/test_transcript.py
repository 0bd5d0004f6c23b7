"""The transcript of a whole study: the same bytes by every version of the package, and others refused."""

import json
import sys

import msgspec
import numpy as np
import pytest

from capedjica.errors import ProtocolError
from capedjica.mechanisms.messages import Status, encode, question_hash, read_question, read_reply, sign_reply
from tests.mechanisms.world import hello, make_data, make_study, parts, reply
from tests.vectors import generate_transcript
from tests.vectors.generate import NAMES, identity
from tests.vectors.generate_replies import contract, conversation
from tests.vectors.generate_transcript import LATE, PATH, build, run

TRANSCRIPT = json.loads(PATH.read_text())


def set_package_version(monkeypatch, version):
    """Have all modules believe that they are of another version of the package; return how many."""
    own = [module for name, module in sys.modules.items() if name.startswith("capedjica.")]
    found = [module for module in own if "__version__" in vars(module)]
    for module in found:
        monkeypatch.setattr(module, "__version__", version)
    return len(found)


def test_this_version_says_what_is_in_the_file():
    assert build() == TRANSCRIPT


def test_another_version_of_the_package_says_the_same(monkeypatch):
    import capedjica.tools.version  # noqa: F401 (one place that has it must be loaded)

    assert set_package_version(monkeypatch, "999.0.0")
    assert build() == TRANSCRIPT


@pytest.mark.parametrize("change", ["a sum", "the version of the messages"])
def test_any_other_byte_is_noticed(monkeypatch, change):
    if change == "a sum":
        honest = generate_transcript.sum_of
        monkeypatch.setattr(generate_transcript, "sum_of", lambda *asked: honest(*asked) + 1)
        assert build()["letters"] != TRANSCRIPT["letters"]
    else:
        for name, module in list(sys.modules.items()):
            if name.startswith("capedjica.mechanisms.") and "VERSION" in vars(module):
                monkeypatch.setattr(module, "VERSION", 3)
        assert build()["letters"][0] != TRANSCRIPT["letters"][0]


def test_the_transcript_is_a_whole_study():
    """Every kind of message, one of them lost and repeated as it was, and the means of what was summed."""
    letters, means = run()
    kinds = {parts(letter)[0] for letter in letters}
    assert kinds == {"Hello", "Begin", "Sum", "Ask", "Status", "SumAnswer", "Answer"}
    answers = [one.data for one in letters if one.site == LATE and parts(one)[0] == "Answer"]
    assert answers[0] == answers[1] != answers[2]
    assert [len(mean) for mean in means] == [3, 3, 2]
    assert all(np.isfinite(mean).all() for mean in means)


@pytest.mark.parametrize("version", [1, 3])
def test_a_site_refuses_questions_of_another_version(version):
    study = make_study(make_data((5, 5, 5), 4))
    said = reply(study.sites["s0"].handle(hello(study.contract, version=version)))
    assert type(said).__name__ == "Refusal"
    assert f"version {version}, expected 2" in said.reason


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("kind", conversation())
def test_messages_of_another_version_are_refused_by_both(version, kind):
    """In words that name both versions; a reply although it is signed."""
    words = f"version {version}, expected 2"
    question, answer = (msgspec.structs.replace(one, version=version) for one in conversation()[kind])
    with pytest.raises(ProtocolError, match=words):
        read_question(encode(question), contract())
    hash_ = question_hash(encode(question))
    with pytest.raises(ProtocolError, match=words):
        read_reply(sign_reply(identity(NAMES[0]), hash_, answer), contract(), NAMES[0], hash_)


@pytest.mark.parametrize("version", [1, 3])
def test_an_aggregator_leaves_out_a_site_of_another_version_and_says_why(version):
    study = make_study(make_data((5, 5, 5, 5), 4))
    honest = study.sites["s3"]

    class Other:
        def handle(self, data):
            status = Status(version, study.contract.hash, "s3", -1, 0.0, b"", "embedded")
            return honest.sign(question_hash(data), status)

    study.engine.sites["s3"] = Other()
    study.mean(0)
    assert study.aggregator.releases[-1].participants == ("s0", "s1", "s2")
    assert f"version {version}, expected 2" in study.aggregator.refusals["s3"]

"""What a site keeps to itself."""

import pytest
from nvflare.fuel.f3.message import Message
from nvflare.private.admin_defs import Message as Command
from nvflare.private.admin_defs import error_reply, ok_reply
from nvflare.private.defs import ERROR_MSG_PREFIX
from nvflare.private.fed import authenticator
from nvflare.private.fed.client import client_runner
from nvflare.private.fed.client.admin import FedAdminAgent

from capedjica.site.flare import discretion

PATH = "/home/hospital/sites/s1/kits/app_s1"


@pytest.mark.parametrize(
    "said",
    [error_reply(f"FileExistsError: {PATH}"), Command("reply", f"{ERROR_MSG_PREFIX}: no file {PATH}")],
)
def test_why_something_failed_is_not_told(said):
    kept = discretion.without_reasons(Message({}, said)).payload
    assert PATH not in str(kept.body)
    assert kept is said


def test_what_went_well_is_told_as_it_is():
    said = ok_reply(body="deployed app to s1")
    assert discretion.without_reasons(Message({}, said)).payload.body == "deployed app to s1"
    assert discretion.without_reasons(Message({}, b"x")).payload == b"x"


def test_the_address_of_the_machine_is_not_told(monkeypatch):
    for owner, name in (
        (authenticator, "_get_client_ip"),
        (FedAdminAgent, "_dispatch_request"),
        (client_runner, "add_job_audit_event"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    discretion.install()
    assert authenticator._get_client_ip() == "0.0.0.0"


@pytest.mark.parametrize(
    ("given", "written"), [("a-b:c", "a-b:c"), ("x\nFORGED", ""), ("x" * 101, ""), (7, ""), (None, "")]
)
def test_a_record_refers_to_others_in_plain_words_only(given, written):
    seen = []
    add = discretion._with_plain_references(lambda fl_ctx, ref, msg: seen.append((ref, msg)))
    add(fl_ctx=None, ref=given, msg="received task from server")
    assert seen == [(written, "received task from server")]

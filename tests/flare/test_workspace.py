"""What a site writes into the folder of its carrier goes nowhere else, whatever the carrier left there."""

import json
import os

import pytest

from capedjica.errors import InputError
from capedjica.flare.wire import SETTINGS
from capedjica.flare.workspace import hand_over, point_to, share
from capedjica.tools.confinement.carrier import Confinement


@pytest.fixture
def workspace(tmp_path):
    (tmp_path / "carrier" / "local").mkdir(parents=True)
    return tmp_path / "carrier"


@pytest.fixture
def secret(tmp_path):
    (tmp_path / "site").mkdir()
    file = tmp_path / "site" / SETTINGS
    file.write_text("secret")
    file.chmod(0o600)
    return file


def socket_in(workspace):
    return json.loads((workspace / "local" / SETTINGS).read_text())["socket"]


def test_a_carrier_is_told_where_the_socket_is(workspace, tmp_path):
    for path in (tmp_path / "first", tmp_path / "second"):
        point_to(workspace, path)
        assert socket_in(workspace) == str(path)


def test_links_that_a_carrier_left_lead_nowhere(workspace, secret, tmp_path):
    for name in (SETTINGS, f".{SETTINGS}.draft"):
        (workspace / "local" / name).symlink_to(secret)
    point_to(workspace, tmp_path / "socket")
    assert socket_in(workspace) == str(tmp_path / "socket")
    (workspace / "local").rename(workspace / "elsewhere")
    (workspace / "local").symlink_to(secret.parent)
    with pytest.raises(InputError, match="cannot be prepared for the carrier"):
        point_to(workspace, tmp_path / "socket")
    assert secret.read_text() == "secret"


def test_what_is_shared_with_the_carriers_group_is_in_its_folder(workspace, secret):
    own = workspace / "local" / "own"
    own.write_text("")
    own.chmod(0o600)
    (workspace / "link").symlink_to(secret)
    os.link(secret, workspace / "second name")
    share(workspace)
    assert own.stat().st_mode & 0o777 == 0o660
    assert (workspace / "local").stat().st_mode & 0o777 == 0o770
    assert secret.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_is_given_to_the_carriers_user_is_in_its_folder(workspace, secret):
    own = workspace / "local" / "own"
    own.write_text("")
    (workspace / "link").symlink_to(secret)
    (workspace / "folder").symlink_to(secret.parent)
    os.link(secret, workspace / "second name")
    hand_over(workspace, Confinement("user", 61234, 61234, ""))
    assert own.stat().st_uid == workspace.stat().st_uid == 61234
    assert secret.stat().st_uid == secret.parent.stat().st_uid == 0

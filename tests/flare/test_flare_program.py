"""What a process of FLARE is told before FLARE begins."""

import runpy
import sys

import pytest
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.drivers import socket_conn
from nvflare.fuel.f3.drivers.tcp_driver import TcpStreamServer
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.utils.fobs import lobs
from nvflare.fuel.utils.fobs.datum import DatumManager
from nvflare.fuel.utils.fobs.fobs import Packer

from capedjica.coordinator.flare import origins
from capedjica.coordinator.flare import program as server_program
from capedjica.flare.size_limits import MAX_FRAME
from capedjica.site.flare import guard
from capedjica.site.flare import program as site_program

PATCHED = (
    (socket_conn, "MAX_FRAME_SIZE"),
    (CoreCell, "_add_adhoc_connector"),
    (ConnManager, "process_frame"),
    (TcpStreamServer, "__init__"),
    (TcpStreamServer, "finish_request"),
    (Packer, "unpack"),
    (DatumManager, "externalize"),
    (lobs, "get_datum_dir"),
    (lobs, "get_dot_handler"),
)


@pytest.mark.parametrize(
    "role", ["server.server_train", "server.runner_process", "client.client_train", "client.worker_process"]
)
def test_every_party_is_limited_and_sites_and_server_choose_to_whom_they_listen(monkeypatch, role):
    for owner, name in PATCHED:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    before = [getattr(owner, name) for owner, name in PATCHED]
    chosen, ran, programs = [], [], {"client": site_program, "server": server_program}
    monkeypatch.setattr(guard, "install", lambda: chosen.append("client"))
    monkeypatch.setattr(origins, "install", lambda: chosen.append("server"))
    monkeypatch.setattr(sys, "argv", ["party", f"nvflare.private.fed.app.{role}", "-m", "kit"])
    monkeypatch.setattr(
        runpy, "run_module", lambda module, **_: ran.append((module, sys.argv[1:], list(chosen)))
    )
    programs[role.partition(".")[0]].main()
    assert ran == [(f"nvflare.private.fed.app.{role}", ["-m", "kit"], [role.partition(".")[0]])]
    assert socket_conn.MAX_FRAME_SIZE == MAX_FRAME
    assert all(getattr(owner, name) != old for (owner, name), old in zip(PATCHED, before, strict=True))
    assert CoreCell._add_adhoc_connector(None, "s2", "tcp://elsewhere:1") is None

"""What a site logs about its people is in a file of its own: not in FLARE's logs, nor on a console."""

import logging
import subprocess
import sys

import numpy as np
import pytest

from capedjica.errors import ProtocolError
from capedjica.site.flare import kits
from capedjica.site.flare.party import SiteParty

pytest.importorskip("nvflare")

SPEAK = """
import json, logging, sys, warnings
from nvflare.fuel.utils.log_utils import apply_log_config
from capedjica.mechanisms.site.private_log import private_log
apply_log_config(json.load(open(sys.argv[1])), ".")
private_log("s1").error("sub-0003 from a thread that outlived the log")
warnings.warn("loadtxt: input contained no data: sub-0003.tsv")
logging.getLogger("capedjica.site.flare.party.SiteParty").error("a word of FLARE")
"""


def refused(home, study, caplog):
    """Let a site's part in a run be refused; return what FLARE's logs, and so the console, got to see."""
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises(ProtocolError, match=r"^it does not take part; its own log says why$"),
    ):
        SiteParty(study.hash.hex()).open(kits.find_kit(home).path / "local")
    return caplog.text


def test_the_reason_of_a_refusal_is_in_the_sites_own_log_alone(ready, study, caplog):
    """It names a patient: the first whose scan changed."""
    np.save(ready.data_path / "sub-03.npy", np.ones((60, 100)))
    seen = refused(ready, study, caplog)
    assert "site.log says why" in seen
    assert "sub-03" not in seen
    log = ready.folder / "site.log"
    assert "does not take part: site s1: 1 of 6 people's scans changed" in log.read_text()
    assert "that of sub-03" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_an_unexpected_error_is_in_the_sites_own_log_alone(ready, study, caplog, monkeypatch):
    """With the lines it came from, which may have the file of a scan in them."""

    def fail(*_):
        raise OSError(f"{ready.data_path}/sub-03.npy is odd")

    monkeypatch.setattr("capedjica.site.flare.party.terms_problems", fail)
    assert "sub-03" not in refused(ready, study, caplog)
    assert "sub-03.npy is odd" in (ready.folder / "site.log").read_text()
    assert "Traceback" in (ready.folder / "site.log").read_text()


def test_a_reason_that_cannot_be_written_is_told_to_nobody(ready, study, caplog):
    np.save(ready.data_path / "sub-03.npy", np.ones((60, 100)))
    (ready.folder / "site.log").mkdir()
    assert "sub-03" not in refused(ready, study, caplog)


def test_a_site_whose_settings_cannot_be_read_says_no_more(ready, study, caplog):
    (ready.folder / "site.toml").write_text("participants = sub-03")
    seen = refused(ready, study, caplog)
    assert "its site.toml cannot be read" in seen
    assert "sub-03" not in seen


def test_what_a_site_or_a_library_says_of_a_scan_is_kept_from_flares_logs(ready, tmp_path):
    """Also a warning of a library that names a file, and a word after the site's own log was closed."""
    config = kits.find_kit(ready).path / "local" / "log_config.json"
    done = subprocess.run(
        [sys.executable, "-c", SPEAK, str(config)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    said = done.stdout + done.stderr + (tmp_path / "log.txt").read_text()
    assert said.count("a word of FLARE") == 2
    assert "sub-0003" not in said

"""The last step before a carrier: it confines itself, tries the doors, and only then becomes the program."""

import json
import os
import subprocess
import sys
from dataclasses import asdict

import pytest

from capedjica.errors import InputError
from capedjica.flare import launch
from capedjica.flare.launch import FINAL_CODE, check_doors, program_input, run_carrier, start_command
from capedjica.flare.wire import SETTINGS
from capedjica.tools.confinement import landlock
from capedjica.tools.confinement.carrier import Confinement, strongest

NO_LANDLOCK = "this system has no Landlock"
LANDLOCK = Confinement("landlock", None, None, "Landlock, in a test")
NOTHING = Confinement("none", None, None, "nothing, in a test")


@pytest.fixture
def place(tmp_path):
    """The folder of a carrier, and a secret beside it."""
    (tmp_path / "carrier").mkdir()
    (tmp_path / "secret").write_text("patient 7741")
    return tmp_path


_BROKEN_WALL = """
from capedjica.tools.confinement import landlock
landlock.restrict = lambda *_, **__: None
from capedjica.flare.launch import main
main()
"""


def launched(orders, program=None, **variables):
    what = ["-m", "capedjica.flare.launch"] if program is None else ["-c", program]
    command = [sys.executable, *what, "FOLDER"]
    return subprocess.run(
        command, input=orders, capture_output=True, text=True, timeout=120, env=os.environ | variables
    )


def orders_for(place, program, confinement=LANDLOCK, secrets=("secret",), folder="carrier"):
    command = [sys.executable, "-c", program]
    return program_input(
        confinement, place / folder, command, [place / name for name in secrets], place / "socket"
    )


@pytest.mark.skipif(not landlock.abi(), reason=NO_LANDLOCK)
def test_a_carrier_that_can_open_nothing_starts_in_its_own_folder(place):
    done = launched(orders_for(place, "import os; print(os.getcwd())"))
    assert (done.returncode, done.stdout.strip()) == (0, str(place / "carrier")), done.stderr


@pytest.mark.skipif(not landlock.abi(), reason=NO_LANDLOCK)
def test_the_carrier_cannot_read_the_secret(place):
    """The control: without confinement the same program reads it."""
    program = f"print(open({str(place / 'secret')!r}).read())"
    done = launched(orders_for(place, program))
    assert done.returncode == 1
    assert "PermissionError" in done.stderr
    assert launched(orders_for(place, program, NOTHING)).stdout.strip() == "patient 7741"


def test_a_carrier_that_could_open_a_secret_does_not_start(place):
    """Where a wall is not what it promises; one line says so, and its supervisor does not start it again."""
    orders = orders_for(place, "print('started')")
    done = launched(orders, program=_BROKEN_WALL)
    assert (done.returncode, done.stdout) == (FINAL_CODE, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"the carrier could read {place / 'secret'}, although it is confined by Landlock")
    # The control: it starts behind the same wall if there is nothing to read.
    (place / "secret").unlink()
    assert launched(orders, program=_BROKEN_WALL).stdout == "started\n"


def test_doors_are_tried_wherever_anything_confines(place):
    with pytest.raises(
        InputError, match=r"could read .*secret, although it is confined by Landlock, in a te"
    ):
        check_doors(LANDLOCK, [place / "absent", place / "secret"])
    check_doors(LANDLOCK, [place / "absent"])
    # Where nothing does, this was said before, and the owner had to agree to it.
    check_doors(NOTHING, [place / "secret"])


def test_doors_are_tried_after_the_confinement_and_before_the_program(place, monkeypatch):
    steps = []
    monkeypatch.setattr(launch, "confine", lambda *_, **__: steps.append("confined"))
    monkeypatch.setattr(launch.os, "chdir", steps.append)
    monkeypatch.setattr(launch.os, "execve", lambda *_: steps.append("executed"))
    with pytest.raises(InputError, match="it does not start"):
        launch.launch(orders_for(place, ""))
    assert steps == ["confined"]
    launch.launch(orders_for(place, "", secrets=()))
    assert steps == ["confined", "confined", place / "carrier", "executed"]


@pytest.mark.parametrize(
    "orders",
    [
        "",
        "{}",
        "[]",
        "3",
        "null",
        "\x00",
        "[" * 100_000,
        json.dumps({"confinement": asdict(LANDLOCK), "folder": "x", "command": ["x"]}),
        json.dumps(
            {"confinement": {"kind": "none"}, "folder": "x", "command": ["x"], "secrets": [], "socket": "x"}
        ),
        json.dumps(
            {"confinement": asdict(LANDLOCK), "folder": 3, "command": ["x"], "secrets": [], "socket": "x"}
        ),
    ],
)
def test_orders_that_cannot_be_read_are_refused_in_one_line(orders):
    done = launched(orders)
    assert (done.returncode, done.stdout) == (FINAL_CODE, "")
    assert done.stderr == "the launcher of a carrier received invalid instructions\n"


def test_a_program_that_cannot_be_run_is_refused_in_one_line(place):
    done = launched(program_input(NOTHING, place / "carrier", ["/absent/program"], [], place / "socket"))
    assert done.returncode == FINAL_CODE
    (line,) = done.stderr.splitlines()
    assert "No such file or directory: '/absent/program'" in line


def test_the_carrier_gets_an_environment_of_its_own(place):
    """Nothing that leads to other programs of the user, and nothing to read: no orders, no names."""
    program = "import json, os, sys; print(json.dumps([dict(os.environ), sys.stdin.read()]))"
    secret = {"SSH_AUTH_SOCK": "/x", "AWS_SECRET_ACCESS_KEY": "k", "DBUS_SESSION_BUS_ADDRESS": "d"}
    done = launched(orders_for(place, program, NOTHING), CAPEDJICA_TEST="passed on", **secret)
    variables, given = json.loads(done.stdout)
    assert not secret.keys() & variables.keys()
    assert variables["HOME"] == variables["TMPDIR"] == str(place / "carrier")
    assert variables["CAPEDJICA_TEST"] == "passed on"
    assert given == ""
    assert str(place / "secret") not in done.stdout


def test_the_program_does_not_find_the_orders_in_its_memory_or_command(place):
    """What it must not open is named to the launcher only."""
    program = "print(open('/proc/self/cmdline').read(), open('/proc/self/environ').read())"
    assert "secret" not in launched(orders_for(place, program, NOTHING)).stdout


# Where a system manager starts it


def test_a_carrier_by_itself_reads_what_it_must_not_open(place, monkeypatch):
    local = place / "carrier" / "local"
    local.mkdir()
    (local / SETTINGS).write_text(json.dumps({"socket": "/s", "closed": [str(place / "secret")]}))
    given = []
    monkeypatch.setattr(launch, "launch", lambda orders: given.append(json.loads(orders)))
    run_carrier(place / "carrier")
    (orders,) = given
    assert orders["secrets"] == [str(place / "secret")]
    assert orders["command"] == list(start_command(place / "carrier"))
    own = strongest(None, [place / "carrier"], str(place / "carrier"))
    assert orders["confinement"] == asdict(own)


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"closed": 3}'])
def test_a_folder_that_is_no_carriers_is_refused(place, content):
    local = place / "carrier" / "local"
    local.mkdir()
    if content is not None:
        (local / SETTINGS).write_text(content)
    with pytest.raises(InputError, match="is not the folder of a carrier"):
        run_carrier(place / "carrier")


def test_a_carrier_is_started_by_flares_own_command(place, monkeypatch):
    shell, script, once = start_command(place / "carrier")
    assert (os.path.basename(shell), once) == ("bash", "--once")
    assert script == str(place / "carrier" / "startup" / "sub_start.sh")
    monkeypatch.setattr(launch.shutil, "which", lambda name: None)
    with pytest.raises(InputError, match="bash script, but bash is not installed"):
        start_command(place / "carrier")


def test_the_launcher_loads_little():
    """It runs with all rights until it is confined, and every byte of it counts against the carrier."""
    program = "import capedjica.flare.launch, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    heavy = {"numpy", "nvflare", "scipy", "cryptography", "psutil", "msgspec"}
    assert not heavy & set(done.stdout.split())

"""Files for containers and systemd: strictly parsed, and no weaker than docs/user-guide/deployment.md says.

No container is started here. Where systemd is installed, its own checker reads the units.
"""

import configparser
import json
import re
import shutil
import subprocess

import pytest
import yaml

from tests.docs.test_docs import ROOT
from tests.support.command_lines import parse

DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
COMPOSE = sorted(DEPLOY.glob("compose.*.yaml"))
CONTAINER_KEYS = """
    image build command restart init read_only cap_drop security_opt tmpfs ulimits stop_grace_period
    stop_signal volumes logging extra_hosts ports user network_mode mem_limit pids_limit
"""
SERVICE_KEYS = """
    Type User Group ExecStart Restart RestartSec RestartPreventExitStatus KillMode KillSignal
    SuccessExitStatus TimeoutStopSec ReadWritePaths Environment CacheDirectory CacheDirectoryMode
    LimitCORE MemorySwapMax NoNewPrivileges CapabilityBoundingSet ProtectSystem ProtectHome PrivateTmp
    PrivateDevices ProtectClock ProtectHostname ProtectKernelLogs ProtectKernelModules
    ProtectKernelTunables ProtectControlGroups ProtectProc RestrictAddressFamilies RestrictNamespaces
    PrivateNetwork RuntimeDirectory RuntimeDirectoryMode RuntimeDirectoryPreserve InaccessiblePaths MemoryMax
    TasksMax RestrictRealtime RestrictSUIDSGID LockPersonality RemoveIPC SystemCallArchitectures
    SystemCallFilter
    SystemCallErrorNumber UMask
"""
UNIT_KEYS = {"Unit": "Description Wants After", "Service": SERVICE_KEYS, "Install": "WantedBy"}


class Several(dict):
    """A section in which a key may stand more than once, as in a unit: all values are kept."""

    def __setitem__(self, key, value):
        if isinstance(value, list) and isinstance(self.get(key), list):
            value = self[key] + value
        super().__setitem__(key, value)


def read_unit(path):
    parser = configparser.RawConfigParser(
        strict=False, dict_type=Several, delimiters=("=",), comment_prefixes=("#",)
    )
    parser.optionxform = str
    parser.read_string(path.read_text("utf-8"))
    return {name: dict(parser[name]) for name in parser.sections()}


def services(path):
    content = yaml.safe_load(path.read_text("utf-8"))
    assert set(content) <= {"services", "volumes"}
    return content["services"]


def service(path, name="capedjica"):
    return services(path)[name]


def targets(given):
    """Where the volumes of a service are mounted, and whether they are the machine's folders."""
    return {volume["target"]: volume["type"] for volume in given["volumes"]}


CONTAINERS = [
    pytest.param(service(path, name), id=f"{path.name}-{name}") for path in COMPOSE for name in services(path)
]
SITE = DEPLOY / "compose.site.yaml"
AGENT = DEPLOY / "systemd" / "capedjica-agent@.service"
CARRIER = DEPLOY / "systemd" / "capedjica-carrier@.service"


def instructions():
    """The Dockerfile's instructions, comments and continuations taken out."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text("utf-8"), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [tuple(line.split(None, 1)) for line in lines if line.strip()]


def value(name):
    return [rest for word, rest in instructions() if word == name]


def test_the_image_has_one_base_pinned_by_tag_and_no_root():
    assert {word for word, _ in instructions()} <= {
        "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "ENTRYPOINT", "CMD",
    }  # fmt: skip
    bases = {base.split()[0] for base in value("FROM")}
    assert len(bases) == 1
    assert re.fullmatch(r"python:3\.12-slim-\w+", bases.pop())
    last = max(number for number, (word, _) in enumerate(instructions()) if word == "FROM")
    after = instructions()[last:]
    (user,) = (rest for word, rest in after if word == "USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    assert f"--uid {user.split(':')[0]} " in " ".join(value("RUN"))
    assert json.loads(value("ENTRYPOINT")[0]) == ["capedjica"]


def test_only_what_is_needed_gets_into_the_image():
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    ignore = [line for line in lines if line and not line.startswith("#")]
    assert ignore[0] == "*"
    allowed = {line[1:] for line in ignore if line.startswith("!")}
    copied = {
        word
        for rest in value("COPY")
        if not rest.startswith("--from")
        for word in rest.split()[:-1]
    }  # fmt: skip
    assert copied == allowed
    assert all((ROOT / name).exists() for name in allowed)


@pytest.mark.parametrize("given", CONTAINERS)
def test_a_container_may_do_little(given):
    assert set(given) <= set(CONTAINER_KEYS.split())
    assert given["read_only"] is True
    assert given["cap_drop"] == ["ALL"]
    assert given["security_opt"] == ["no-new-privileges:true"]
    assert given["image"] == "capedjica"
    assert given.get("build") in (None, {"context": "..", "dockerfile": "deploy/Dockerfile"})
    assert "environment" not in given  # no secret by way of the environment
    # Every folder is named by whoever starts it; none has a default that might be another's.
    binds = [volume["source"] for volume in given["volumes"] if volume["type"] == "bind"]
    assert all(re.match(r"\$\{CAPEDJICA_\w+:\?", source) for source in binds)
    parse(" ".join(["capedjica", *given["command"]]))


def test_the_agent_has_the_site_and_no_network():
    given = service(SITE, "agent")
    assert given["network_mode"] == "none"
    assert "ports" not in given
    assert [v["target"] for v in given["volumes"] if v.get("read_only")] == ["/scans"]
    assert [target for target, kind in targets(given).items() if kind == "bind"] == [
        "/site",
        "/state",
        "/scans",
    ]


def test_the_carrier_has_the_network_and_nothing_of_the_site():
    agent, carrier = service(SITE, "agent"), service(SITE, "carrier")
    assert not {"network_mode", "ports"} & set(carrier)
    assert targets(carrier) == {"/carrier": "volume", "/sockets": "volume"}
    assert targets(carrier).items() <= targets(agent).items()
    assert carrier["mem_limit"]
    assert carrier["pids_limit"]


def test_the_two_halves_of_a_site_are_two_users_of_the_image():
    users = dict(re.findall(r"useradd --uid (\d+) .*? (capedjica\S*) ", " ".join(value("RUN")) + " "))
    assert users == {"10001": "capedjica", "10002": "capedjica-carrier"}
    assert service(SITE, "agent")["user"] == "10001:10001"
    assert service(SITE, "carrier")["user"] == "10002:10002"
    made = " ".join(value("RUN"))
    assert "--owner=capedjica --group=capedjica-carrier --mode=2750 /carrier" in made
    assert "--owner=capedjica --group=capedjica --mode=0711 /sockets" in made
    assert "CAPEDJICA_SOCKETS=/sockets" in " ".join(value("ENV"))


def test_the_aggregator_opens_one_port():
    given = service(DEPLOY / "compose.aggregator.yaml")
    assert given["ports"] == ["${CAPEDJICA_PORT:-8002}:${CAPEDJICA_PORT:-8002}"]
    assert given["stop_signal"] == "SIGINT"


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_may_do_little(path):
    unit = read_unit(path)
    assert set(unit) == set(UNIT_KEYS)
    for section, keys in UNIT_KEYS.items():
        assert set(unit[section]) <= set(keys.split())
    given = unit["Service"]
    assert given["User"] == given["Group"] == ("capedjica-carrier" if path == CARRIER else "capedjica")
    for key in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "RestrictNamespaces"):
        assert given[key] == "yes"
    assert given["ProtectSystem"] == "strict"
    assert given["CapabilityBoundingSet"] == ""
    assert given["Restart"] == ("always" if path == CARRIER else "on-failure")
    assert given["MemoryMax"]
    assert int(given["TasksMax"])
    # Without these calls no program could give up its files.
    assert {"landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"} <= set(
        given["SystemCallFilter"].split()
    )
    # In a user namespace nobody is told from anybody else.
    assert "PrivateUsers" not in given
    assert given["LimitCORE"] == "0"
    program, words = given["ExecStart"].split(None, 1)
    assert program == "/opt/capedjica/bin/capedjica"
    parse(f"capedjica {words}")


def test_the_agents_unit_has_no_network_and_writes_to_the_sites_places():
    given = read_unit(AGENT)["Service"]
    assert given["PrivateNetwork"] == "yes"
    assert given["RestrictAddressFamilies"] == "AF_UNIX"
    assert given["ReadWritePaths"].split() == [
        "/var/lib/capedjica/%i", "/var/lib/capedjica-state", "/var/lib/capedjica-carrier",
    ]  # fmt: skip
    # The folder of sockets is the agent's own, and the carrier can pass through it.
    assert given["RuntimeDirectory"] == "capedjica"
    assert given["RuntimeDirectoryMode"] == "0711"
    environment = given["Environment"].split()
    assert {"XDG_STATE_HOME=/var/lib/capedjica-state", "CAPEDJICA_SOCKETS=/run/capedjica"} <= set(environment)


def test_the_carriers_unit_has_the_network_and_nothing_of_the_site():
    given = read_unit(CARRIER)["Service"]
    assert "PrivateNetwork" not in given
    assert given["RestrictAddressFamilies"] == "AF_INET AF_INET6 AF_UNIX"
    assert given["ReadWritePaths"] == "/var/lib/capedjica-carrier/%i"
    hidden = given["InaccessiblePaths"].split()
    assert {"/var/lib/capedjica", "/var/lib/capedjica-state"} <= set(hidden)
    assert given["ProtectHome"] == "yes"
    assert "Environment" not in given


def judged(text, path):
    """What systemd says of a unit, and not of others of this machine; it wants the program to exist."""
    path.write_text(text.replace("/opt/capedjica/bin/capedjica", shutil.which("true")))
    said = subprocess.run(
        ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False
    )
    return "\n".join(line for line in said.stderr.splitlines() if path.name in line)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_finds_nothing_wrong(path, tmp_path):
    text = path.read_text("utf-8")
    assert judged(text, tmp_path / path.name) == ""
    assert "PrivateTemp" in judged(text.replace("PrivateTmp=", "PrivateTemp="), tmp_path / path.name)

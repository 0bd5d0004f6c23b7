"""What sealing a study refuses, makes, and leaves behind when it fails."""

import json
import stat
import zipfile

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from capedjica.coordinator.flare import provisioning
from capedjica.coordinator.flare.federation import Federation, read_seal
from capedjica.coordinator.flare.provisioning import provision, settle
from capedjica.coordinator.flare.remote_run import Terms, run_federated
from capedjica.errors import InputError
from capedjica.flare.kit import AGGREGATOR_CLASS, COORDINATOR, PROTOCOL, Label, check_protocol
from capedjica.flare.wire import MAX_MESSAGE
from capedjica.securesum.identity import Identity
from capedjica.study.study_file import SiteTable, Study, write_study
from tests.attacks.views.leaks import contents
from tests.federated.sealed import unzip
from tests.support.drafts import card, draft
from tests.support.in_process import run_main
from tests.support.small_study import changed

LONG = "a." * 40 + "org"
HOSTS = [
    "",
    " ",
    "a b",
    "-a",
    "a-",
    "a..b",
    ".a",
    "a.",
    "a_b",
    "a/b",
    "../a",
    "a:1",
    "é.org",
    "a\n",
    "::1",
    LONG,
]


def study_in(folder, names=("alder", "birch", "cedar", "elm"), **options):
    """Write a study of sites with these names."""
    content = draft(**options)
    sites = tuple(SiteTable(name=name, subjects=20, card=card(name, n)) for n, name in enumerate(names, 1))
    write_study(folder / "study.toml", msgspec.structs.replace(content, sites=sites))
    return Study.load(folder)


def refused(study, host="localhost", port=8002):
    """Return why a study is not sealed; nothing may be left behind."""
    before = sorted(study.folder.rglob("*"))
    with pytest.raises(InputError) as error:
        provision(study, host, port)
    assert sorted(study.folder.rglob("*")) == before
    assert "\n" not in str(error.value)
    return str(error.value)


# What is refused


@pytest.mark.parametrize("name", ["n", "yes", "007", "1e5", "nan"])
def test_a_name_that_flare_would_not_read_as_a_name_is_refused(tmp_path, name):
    words = refused(study_in(tmp_path, names=("alder", name, "cedar")))
    assert words.startswith(f"site {name}: NVIDIA FLARE would read this name as a number or a truth value")


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_that_is_none_is_refused(tmp_path, host):
    assert "--host must be the name or address" in refused(study_in(tmp_path), host)


@pytest.mark.parametrize("port", [0, -1, 65536, 10**9])
def test_a_port_that_is_none_is_refused(tmp_path, port):
    assert refused(study_in(tmp_path), port=port) == f"--port must be between 1 and 65535, got {port}"


def test_a_host_as_long_as_a_certificate_allows_is_taken(tmp_path):
    host = "hospital." * 6 + "hospital-x"
    assert len(host) == 64
    assert provision(study_in(tmp_path, ("birch", "cedar", "elm")), host, 8002).seal.host == host


@pytest.mark.parametrize("name", ["st.mary", "a" * 64])
def test_a_site_whose_name_cannot_travel_is_refused(tmp_path, name):
    assert refused(study_in(tmp_path, (name, "birch", "cedar"))).startswith(
        f"site {name}: for a study across machines, a site name"
    )


@pytest.mark.parametrize("name", ["server", "Server_Parent", "gateway", "Gateway"])
def test_a_site_called_like_the_server_is_refused(tmp_path, name):
    """FLARE could not tell them apart."""
    words = refused(study_in(tmp_path, (name, "birch", "cedar")), "gateway")
    assert words.startswith(f"site {name}: this name is already used by the aggregator's machine")


def test_sites_whose_files_would_be_the_same_on_some_disks_are_refused(tmp_path):
    words = refused(study_in(tmp_path, ("birch", "BIRCH", "cedar")))
    assert words.startswith("site BIRCH: this name is already used by site birch")


def test_a_study_whose_messages_are_too_large_is_refused(tmp_path):
    """And the largest that is not, is less than a tenth smaller."""
    large = study_in(tmp_path, analysis={"method": "paper", "n_features": 3600})
    words = refused(large)
    assert (
        "'second moments (PCA)' has 6,481,800 numbers, a message of 52 MB; messages between machines are "
        "limited to 50 MB" in words
    )
    # Also where it was sealed by other means: before a server is started, or anything charged.
    with pytest.raises(InputError, match="limited to 50 MB"):
        run_federated(large, tmp_path / "run", Terms())
    assert not (tmp_path / "run").exists()
    (tmp_path / "fits").mkdir()
    fits = study_in(tmp_path / "fits", analysis={"method": "paper", "n_features": 3400})
    provisioning.check_sizes(fits)
    assert 0.9 * MAX_MESSAGE < 8 * 3400 * 3401 // 2


def test_the_command_refuses_in_one_line(tmp_path, monkeypatch, capsys):
    study_in(tmp_path)
    ended = run_main(["study", "provision", str(tmp_path), "--host", "a b"], monkeypatch, capsys)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--host must be" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("step", ["flare_folders", "_settle_server", "_add_study", "_zip"])
def test_sealing_that_fails_leaves_nothing(tmp_path, monkeypatch, step):
    """Full disks, at the second time that each step is done where it is done more than once."""
    calls, real = [], getattr(provisioning, step)

    def fail(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 2 or step in ("flare_folders", "_settle_server"):
            raise OSError(28, "No space left on device")
        return real(*arguments, **options)

    monkeypatch.setattr(provisioning, step, fail)
    assert refused(study_in(tmp_path)).endswith("federation cannot be written: No space left on device")


def test_what_flare_cannot_make_is_refused_in_its_words(tmp_path, monkeypatch):
    from nvflare.lighter.impl.cert import CertBuilder

    def fail(self, *arguments):
        raise ValueError("no certificate today")

    monkeypatch.setattr(CertBuilder, "build", fail)
    words = refused(study_in(tmp_path))
    assert words.startswith("FLARE's folders could not be created: ")
    assert "no certificate today" in words


def test_a_study_is_sealed_once(sealed):
    study, federation, _ = sealed
    before = {path: path.read_bytes() for path in federation.path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=f"was already sealed, on {federation.seal.sealed[:10]}"):
        provision(study, "localhost", 8002)
    assert {path: path.read_bytes() for path in federation.path.rglob("*") if path.is_file()} == before


def test_a_folder_that_is_in_the_way_is_not_touched(tmp_path):
    (tmp_path / "federation").mkdir()
    assert "is not the folder of a sealed study" in refused(study_in(tmp_path))


# What becomes of a sealed study


def test_a_study_changed_after_sealing_is_refused(sealed, tmp_path):
    study, federation, _ = sealed
    other = changed(study, study.folder / "other.toml", epsilon=9.0)
    (study.folder / "other.toml").unlink()
    with pytest.raises(InputError, match="was changed after it was sealed") as error:
        Federation.beside(other)
    assert other.hash.hex()[:16] in str(error.value)
    assert federation.seal.study[:16] in str(error.value)


def test_a_study_that_was_not_sealed_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(InputError, match=r"is not sealed: .* Seal it first with: capedjica study provision"):
        Federation.beside(study_in(tmp_path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff", "is not a valid seal of a study"),
        (b'{"title": "\xff"}', "is not a valid seal of a study"),
        (b"{}", "is not a valid seal of a study"),
        (b"[" * 100_000, "is not a valid seal of a study"),
        (
            b'{"schema": 9, "sites": [], "host": "h", "port": 1, "sealed": "", "title": "", "study": ""}',
            "got 9",
        ),
    ],
)
def test_a_seal_that_cannot_be_used_is_refused(tmp_path, content, words):
    study = study_in(tmp_path)
    (tmp_path / "federation").mkdir()
    (tmp_path / "federation" / "sealed.json").write_bytes(content)
    with pytest.raises(InputError, match=words):
        Federation.beside(study)


def test_a_seal_of_another_protocol_names_both(sealed):
    study, federation, _ = sealed
    file = federation.path / "sealed.json"
    kept = file.read_text()
    try:
        file.write_text(kept.replace(f'"protocol": {PROTOCOL}', '"protocol": 9'))
        words = rf"version 9 of the protocol, this program speaks version {PROTOCOL}"
        with pytest.raises(InputError, match=words):
            Federation.beside(study)
    finally:
        file.write_text(kept)


def test_a_seal_of_another_package_is_taken(sealed):
    """What parties must share is the protocol."""
    study, federation, _ = sealed
    file = federation.path / "sealed.json"
    kept = file.read_text()
    try:
        file.write_text(json.dumps(json.loads(kept) | {"capedjica": "9.8.7"}))
        Federation.beside(study)
        assert read_seal(federation.path).capedjica == "9.8.7"
    finally:
        file.write_text(kept)


def test_the_protocol_is_compared_as_a_whole():
    check_protocol(PROTOCOL, "it")
    for other in (PROTOCOL - 1, PROTOCOL + 1):
        with pytest.raises(InputError, match=f"it was made for version {other} of the protocol"):
            check_protocol(other, "it")


# What is made


def test_the_server_allows_our_components_only_and_no_commands_code_or_streams(sealed):
    _, federation, _ = sealed
    folder = federation.server_kit / "local"
    local = {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}
    resources = local["resources.json"]
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["class_allow_list"] == [AGGREGATOR_CLASS]
    assert not any("log" in one["id"] for one in resources["components"])
    allowed = local["authorization.json"]["permissions"]
    powers = {power for power, who in allowed["project_admin"].items() if who != "none"}
    assert powers == {"submit_job", "manage_job", "view"}
    assert allowed["org_admin"] == allowed["lead"] == allowed["member"] == {}


def test_a_kit_holds_what_a_site_needs_and_nothing_else(sealed):
    study, federation, _ = sealed
    for name in study.contract.roster.names:
        assert sorted(unzip(federation.site_kits / f"{name}.zip")) == [
            "kit.json",
            "startup/client.crt",
            "startup/client.key",
            "startup/rootCA.pem",
            "study/study.toml",
        ]


def private_keys(files):
    """Return the public part of every private key in some files."""
    found = []
    for data in files.values():
        for part in data.replace(b"\\n", b"\n").split(b"-----BEGIN ")[1:]:
            if b"PRIVATE KEY" in part[:40]:
                pem = b"-----BEGIN " + part.partition(b"-----END ")[0] + b"-----END "
                pem += part.partition(b"-----END ")[2].partition(b"-----")[0] + b"-----\n"
                found.append(public(serialization.load_pem_private_key(pem, None).public_key()))
    return found


def public(key):
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def test_a_kit_holds_the_key_of_its_own_certificate_and_no_other(sealed):
    study, federation, _ = sealed
    own = {name: unzip(federation.site_kits / f"{name}.zip") for name in study.contract.roster.names}
    for kit, name in ((federation.server_kit, "localhost"), (federation.admin_kit, COORDINATOR)):
        own[name] = {str(path): path.read_bytes() for path in kit.rglob("*") if path.is_file()}
    keys = {name: private_keys(files) for name, files in own.items()}
    assert all(len(found) == 1 for found in keys.values())
    assert len({found[0] for found in keys.values()}) == 6
    for name, files in own.items():
        pem = next(data for file, data in files.items() if file.endswith((".crt",)))
        made = x509.load_pem_x509_certificate(pem)
        assert made.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value == name
        assert public(made.public_key()) == keys[name][0]


def test_no_key_of_a_site_is_with_the_coordinator(sealed):
    """The key with which a site signs was made at the site, and is in no kit, whole or in part."""
    _, federation, homes = sealed
    files = [data for _, data in contents(federation.path)]
    assert len(files) > 40
    for home in homes.values():
        pem = (home.folder / "identity.pem").read_bytes()
        key = serialization.load_pem_private_key(pem, None)
        raw = key.private_bytes(
            serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption()
        )
        forms = [raw, raw.hex().encode(), raw.hex().upper().encode(), pem.splitlines()[1]]
        assert not any(form in data for form in forms for data in files)


def test_nobody_else_on_the_machine_reads_a_key(sealed):
    """Of the coordinator's files: those with a private key, in which form ever, and all folders of kits."""
    _, federation, _ = sealed
    # The carrier's user passes through it to its own folder, and lists nothing.
    assert stat.S_IMODE(federation.path.stat().st_mode) == 0o711
    secret = [
        path
        for path in federation.path.rglob("*")
        if path.is_file() and (path.suffix == ".zip" or b"PRIVATE KEY" in path.read_bytes())
    ]
    assert {path.name for path in secret} == {
        "cert.json",
        "client.key",
        "coordinator.pem",
        "server.key",
        *(f"s{n}.zip" for n in range(1, 5)),
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}


def test_every_kit_holds_the_study_and_who_it_is_for_signed_by_the_coordinator(sealed, tmp_path):
    study, federation, _ = sealed
    write_study(tmp_path / "study.toml", study.content)
    for name in study.contract.roster.names:
        files = unzip(federation.site_kits / f"{name}.zip")
        label = msgspec.json.decode(files["kit.json"], type=Label)
        assert (label.site, label.study, label.protocol) == (name, study.hash.hex(), PROTOCOL)
        assert (label.host, label.port) == ("localhost", 8002)
        assert label.coordinator == Identity.load(federation.key_path).public_key.hex()
        startup = {path.removeprefix("startup/"): data for path, data in files.items()}
        assert label.is_signed(startup)
        assert not label.is_signed(startup | {"client.key": b""})
        assert (tmp_path / "study.toml").read_bytes() == files["study/study.toml"]
        assert not zipfile.ZipFile(federation.site_kits / f"{name}.zip").testzip()


def test_a_server_keeps_its_files_in_its_own_kit(tmp_path):
    """By default all servers of a machine share a folder that anybody can write to."""
    federation = provision(study_in(tmp_path), "localhost", 8002)
    for _ in range(2):
        settle(federation.server_kit)
        text = (federation.server_kit / "local" / "resources.json").read_text()
        assert "/tmp/nvflare" not in text
        assert text.count(str(federation.server_kit / "jobs")) == 1
        assert text.count(str(federation.server_kit / "snapshots")) == 1


@pytest.mark.full
def test_a_server_has_room_for_all_sites(tmp_path):
    """FLARE's own limit is 100."""
    names = tuple(f"site-{n}" for n in range(120))
    federation = provision(study_in(tmp_path, names), "localhost", 8002)
    resources = json.loads((federation.server_kit / "local" / "resources.json").read_text())
    assert resources["servers"][0]["max_num_clients"] > 120
    assert len(list(federation.site_kits.iterdir())) == 120

"""The connection flags: etcdctl's words and variables, and what is refused."""

from __future__ import annotations

import ssl
from pathlib import Path

import click
import pytest

from etcdmaint.cli import connection as module
from etcdmaint.cli.connection import Connection, connection_from, with_connection
from etcdmaint.errors import ClusterNotHealthy, EtcdmaintError, InvalidInput, MemberUnreachable
from etcdmaint.etcd.cluster import ClusterClient
from etcdmaint.etcd.endpoint import Endpoint
from tests.controlplane.certificates import CertificateAuthority

from .commandline import CONNECTION_VARIABLES, CommandLine, one_sentence

SECRET = "hunter2-and-more"


class Files:
    """A CA and a client certificate on the disk, and things that are neither."""

    def __init__(self, folder: Path) -> None:
        authority = CertificateAuthority()
        self.ca = str(authority.write(folder))
        pair = authority.issue("root").write(folder, "client")
        self.cert, self.key = (str(path) for path in pair)
        self.other_key = str(authority.issue("other").write(folder, "other")[1])
        rubbish = folder / "rubbish.pem"
        rubbish.write_bytes(b"\xff\x00 no PEM")
        self.rubbish = str(rubbish)
        self.absent = str(folder / "absent.pem")
        self.folder = str(folder)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def refused(field: str, **flags: object) -> str:
    """The fault of the flags, which must name this field."""
    with pytest.raises(InvalidInput) as caught:
        connection_from(**flags)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert SECRET not in str(caught.value)
    return caught.value.fault


def test_without_flags_it_is_the_local_member_in_the_clear() -> None:
    connection = connection_from()
    assert connection.seeds == (Endpoint("127.0.0.1", 2379, secure=False),)
    assert connection.access.tls is None
    assert (connection.dial_timeout, connection.command_timeout) == (2.0, 5.0)


def test_endpoints_are_separated_by_commas_and_may_be_repeated() -> None:
    connection = connection_from(endpoints=("a,b:1", "a", "[::1]:3"))
    assert [seed.target for seed in connection.seeds] == ["a:2379", "b:1", "[::1]:3"]


@pytest.mark.parametrize("text", ["", "a,,b", "http://a/path", "root:pw@a", "a:0", "ftp://a"])
def test_a_bad_endpoint_names_its_flag(text: str) -> None:
    refused("--endpoints", endpoints=(text,))


def test_an_endpoint_without_a_scheme_is_dialled_with_tls_where_tls_flags_are_given(
    files: Files,
) -> None:
    """As etcdctl does."""
    connection = connection_from(endpoints=("a",), cacert=files.ca)
    assert connection.seeds == (Endpoint("a", secure=True),)
    assert connection.access.tls is not None
    assert connection.access.tls.ca == Path(files.ca).read_bytes()


def test_http_beside_tls_flags_is_explained_rather_than_dialled(files: Files) -> None:
    """D51: etcdctl would quietly send everything in the clear."""
    fault = refused("--endpoints", endpoints=("http://a",), cacert=files.ca)
    assert "http://a:2379 is not encrypted" in fault
    assert "https://" in fault


def test_http_and_https_are_not_mixed(files: Files) -> None:
    assert "mixes" in refused("--endpoints", endpoints=("http://a", "https://b"))


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        ({"cacert": "absent"}, "--cacert"),
        ({"cacert": "folder"}, "--cacert"),
        ({"cacert": "rubbish"}, "--cacert"),
        ({"cacert": "key"}, "--cacert"),
        ({"cacert": "ca", "cert": "absent", "key": "key"}, "--cert"),
        ({"cacert": "ca", "cert": "rubbish", "key": "key"}, "--cert"),
        ({"cacert": "ca", "cert": "cert", "key": "absent"}, "--key"),
        ({"cacert": "ca", "cert": "cert", "key": "rubbish"}, "--key"),
        ({"cacert": "ca", "cert": "cert", "key": "other_key"}, "--key"),
        ({"cacert": "ca", "cert": "cert"}, "--key"),
        ({"cacert": "ca", "key": "key"}, "--cert"),
    ],
    ids=lambda value: str(value),
)
def test_a_file_that_is_missing_or_rubbish_names_its_flag(
    files: Files, flags: dict[str, str], field: str
) -> None:
    given = {flag: getattr(files, name) for flag, name in flags.items()}
    fault = refused(field, endpoints=("a",), **given)
    assert "PRIVATE KEY" not in fault


@pytest.mark.parametrize("flag", ["cacert", "cert", "key"])
def test_a_file_without_an_end_is_not_read_for_ever(files: Files, flag: str) -> None:
    given = {"cacert": files.ca, "cert": files.cert, "key": files.key, flag: "/dev/zero"}
    fault = refused(f"--{flag}", endpoints=("a",), **given)
    assert fault.startswith("/dev/zero is larger than 4 MiB")


def test_a_key_of_another_certificate_is_told_so(files: Files) -> None:
    fault = refused("--key", cacert=files.ca, cert=files.cert, key=files.other_key)
    assert "does not belong to the certificate" in fault


def test_https_without_a_ca_is_verified_by_the_systems(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = ssl.DefaultVerifyPaths(files.ca, None, "", files.ca, "", "")
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
    tls = connection_from(endpoints=("https://a",)).access.tls
    assert tls is not None
    assert tls.ca == Path(files.ca).read_bytes()


def test_a_bundle_of_the_system_that_is_rubbish_is_named(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = ssl.DefaultVerifyPaths(files.rubbish, None, "", files.rubbish, "", "")
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
    assert files.rubbish in refused("--cacert", endpoints=("https://a",))


def test_https_on_a_machine_without_cas_asks_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = ssl.DefaultVerifyPaths(None, None, "", "", "", "")
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
    assert "needed" in refused("--cacert", endpoints=("https://a",))


def test_skipping_verification_is_refused_with_the_way_out(etcdmaint: CommandLine) -> None:
    for said in (
        etcdmaint("status", "--insecure-skip-tls-verify"),
        etcdmaint("status", "--insecure-skip-tls-verify=true"),
        etcdmaint("--insecure-skip-tls-verify", "status"),
        etcdmaint("--insecure-transport", "--insecure-skip-tls-verify", "status"),
        etcdmaint("status", environment={"ETCDCTL_INSECURE_SKIP_TLS_VERIFY": "true"}),
    ):
        assert said.code == 2
        told = one_sentence(said)
        assert "--insecure-skip-tls-verify: refused" in told
        assert "--cacert" in told


def test_not_skipping_verification_is_nothing_special() -> None:
    assert connection_from(insecure_skip_tls_verify=False).access.tls is None


def test_insecure_transport_false_insists_on_tls(files: Files) -> None:
    connection = connection_from(endpoints=("a",), cacert=files.ca, insecure_transport=False)
    assert connection.seeds[0].secure
    assert "--insecure-transport=false" in refused(
        "--endpoints", endpoints=("http://a",), insecure_transport=False
    )


def test_insecure_transport_true_changes_nothing(files: Files) -> None:
    """It is etcdctl's default, and means nothing where TLS flags are given."""
    assert connection_from(insecure_transport=True) == connection_from()
    secured = connection_from(cacert=files.ca, insecure_transport=True)
    assert secured.seeds[0].secure


@pytest.mark.parametrize(
    ("user", "password", "login"),
    [
        ("root:pw", None, ("root", "pw")),
        ("root:p:w", None, ("root", "p:w")),
        ("root", "pw", ("root", "pw")),
        ("ro:ot", "pw", ("ro:ot", "pw")),
    ],
)
def test_user_and_password_are_taken_apart_as_etcdctl_does(
    files: Files, user: str, password: str | None, login: tuple[str, str]
) -> None:
    connection = connection_from(cacert=files.ca, user=user, password=password)
    found = connection.access.login
    assert found is not None
    assert (found.user, found.password) == login


@pytest.mark.parametrize(("user", "password"), [("root", "\udcff"), ("ro\udcffot", "pw")])
def test_a_name_or_password_that_is_no_text_is_refused(
    files: Files, user: str, password: str
) -> None:
    """Such as `ETCDCTL_PASSWORD=$'\\xff'`: etcd could not be sent it."""
    assert "UTF-8" in refused("--user", cacert=files.ca, user=user, password=password)


def test_endpoints_in_the_variable_may_have_blanks_around_their_commas(
    etcdmaint: CommandLine,
) -> None:
    """As those of the flag."""
    said = etcdmaint("status", environment={"ETCDCTL_ENDPOINTS": "127.0.0.1:1, 127.0.0.1:2"})
    assert said.code == 1
    assert "http://127.0.0.1:1: connection refused" in one_sentence(said)
    assert "http://127.0.0.1:2: connection refused" in said.err


@pytest.mark.parametrize("user", ["root:", ":pw", ":"])
def test_an_empty_name_or_password_is_refused(files: Files, user: str) -> None:
    refused("--user", cacert=files.ca, user=user)


def test_a_password_alone_is_refused() -> None:
    assert "--user" in refused("--password", password=SECRET)


def test_a_password_is_never_sent_in_the_clear() -> None:
    """D51."""
    assert "only sent over TLS" in refused("--user", user=f"root:{SECRET}")


def test_the_password_is_asked_for_on_a_terminal(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def prompt(text: str, *, hide_input: bool, err: bool) -> str:
        asked.append((text, hide_input, err))
        return SECRET

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "prompt", prompt)
    login = connection_from(cacert=files.ca, user="root").access.login
    assert login is not None
    assert login.password == SECRET
    assert asked == [("Password of root", True, True)]


def test_without_a_terminal_nobody_is_asked(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert "ETCDCTL_PASSWORD" in refused("--user", cacert=files.ca, user="root")


def test_no_repr_of_a_connection_shows_a_secret(files: Files) -> None:
    connection = connection_from(
        cacert=files.ca, cert=files.cert, key=files.key, user=f"root:{SECRET}"
    )
    assert SECRET not in repr(connection)
    assert "PRIVATE KEY" not in repr(connection)


def test_the_address_map_is_read(tmp_path: Path) -> None:
    path = tmp_path / "map"
    path.write_text("etcd-0.etcd:2379 127.0.0.1:12379\n")
    connection = connection_from(etcd_address_map=str(path))
    mapped = connection.access.address_map.resolve(Endpoint("etcd-0.etcd"))
    assert mapped.target == "127.0.0.1:12379"


def test_a_bad_address_map_names_its_line(etcdmaint: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "map"
    path.write_text("only-one\n")
    said = etcdmaint("status", "--etcd-address-map", str(path))
    assert said.code == 2
    told = one_sentence(said)
    assert "--etcd-address-map" in told
    assert "line 1" in told


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> list[Connection]:
    """What connections the status command would use."""
    found: list[Connection] = []

    async def survey(connection: Connection) -> None:
        found.append(connection)
        raise InvalidInput("test", "stops here")

    monkeypatch.setattr("etcdmaint.cli.status.survey", survey)
    return found


def test_every_etcdctl_variable_is_the_fallback_of_its_flag(
    etcdmaint: CommandLine, files: Files, caught: list[Connection]
) -> None:
    variables = {
        "ETCDCTL_ENDPOINTS": "https://a:1,https://b:2",
        "ETCDCTL_CACERT": files.ca,
        "ETCDCTL_CERT": files.cert,
        "ETCDCTL_KEY": files.key,
        "ETCDCTL_USER": "root",
        "ETCDCTL_PASSWORD": SECRET,
        "ETCDCTL_DIAL_TIMEOUT": "3s",
        "ETCDCTL_COMMAND_TIMEOUT": "1m",
        "ETCDCTL_INSECURE_TRANSPORT": "false",
    }
    assert {*variables, "ETCDCTL_INSECURE_SKIP_TLS_VERIFY"} == set(CONNECTION_VARIABLES)
    said = etcdmaint("status", environment=variables)
    assert said.err == "etcdmaint: test: stops here\n"
    connection = caught[0]
    assert [seed.url for seed in connection.seeds] == ["https://a:1", "https://b:2"]
    assert connection.access.tls is not None
    assert connection.access.tls.key == Path(files.key).read_bytes()
    assert connection.access.login is not None
    assert connection.access.login.password == SECRET
    assert (connection.dial_timeout, connection.command_timeout) == (3.0, 60.0)


def test_a_flag_wins_over_its_variable(etcdmaint: CommandLine, caught: list[Connection]) -> None:
    environment = {"ETCDCTL_ENDPOINTS": "a"}
    etcdmaint("--endpoints=b", "status", environment=environment)
    etcdmaint("status", "--endpoints=c", environment=environment)
    etcdmaint("status", environment=environment)
    assert [connection.seeds[0].host for connection in caught] == ["b", "c", "a"]


def test_the_flags_become_one_argument_beside_the_commands_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.command()
    @with_connection
    @click.option("--mine")
    def command(connection: Connection, mine: str) -> None:
        print(connection.seeds[0], mine)

    command.main(["--endpoints=a", "--mine=x"], standalone_mode=False)
    assert capsys.readouterr().out == "http://a:2379 x\n"
    names = [parameter.name for parameter in command.params]
    assert names == ["mine", *(flag.name for flag in module.CONNECTION_FLAGS)]


@pytest.mark.parametrize(
    "fault",
    [
        MemberUnreachable("nobody answers"),
        ClusterNotHealthy("MixedClusters", "endpoints lead to different clusters"),
    ],
    ids=lambda fault: str(fault.reason),
)
async def test_what_stands_in_the_way_for_now_is_left_to_whoever_may_wait_for_it(
    fault: EtcdmaintError, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D12: `defrag --wait` waits with --user as it does without."""

    async def connect(*_: object, **__: object) -> ClusterClient:
        raise fault

    monkeypatch.setattr(ClusterClient, "connect", connect)
    connection = connection_from(
        endpoints=("https://a",), cacert=files.ca, user="root", password=SECRET
    )
    assert await connection.settled() is connection

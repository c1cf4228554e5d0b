"""Settings: which source wins, where a value came from, and what a wrong one is answered with."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.settings import SettingsError, load, parse_size


def test_everything_has_a_default_that_says_so() -> None:
    settings, sources = load({}, {}, None)
    assert settings.listen == "127.0.0.1:9092"
    assert set(sources.values()) == {"default"}


def test_the_command_line_goes_before_the_environment_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('listen = "10.0.0.1:1"\nhttp = "10.0.0.1:2"\nbroker-id = 7\n')
    environment = {"PENSTOCK_LISTEN": "10.0.0.2:1", "PENSTOCK_HTTP": "10.0.0.2:2"}
    settings, sources = load({"listen": "10.0.0.3:1", "http": None}, environment, file)
    assert (settings.listen, sources["listen"]) == ("10.0.0.3:1", "--listen")
    assert (settings.http, sources["http"]) == ("10.0.0.2:2", "PENSTOCK_HTTP")
    assert (settings.broker_id, sources["broker_id"]) == (7, str(file))


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("64KiB", 65536), ("1.5 GB", 1_500_000_000), ("2g", 2 << 30), (512, 512)],
)
def test_sizes_are_numbers_with_a_unit(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "12x", "-5MiB", "MiB", "1,5GB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"PENSTOCK_LISTEN": "localhost"}, "PENSTOCK_LISTEN: 'localhost' is not HOST:PORT"),
        ({"PENSTOCK_LISTEN": "localhost:99999"}, "PENSTOCK_LISTEN: 'localhost:99999' is not HOST:PORT"),
        ({"PENSTOCK_MEMORY": "lots"}, "PENSTOCK_MEMORY: 'lots' is not a size"),
        ({"PENSTOCK_MEMORY": "1"}, "PENSTOCK_MEMORY: Input should be greater than"),
        (
            {"PENSTOCK_CLUSTER": "http://a:2379,https://b:2379"},
            "PENSTOCK_CLUSTER: 'https://b:2379': brokers speak plain HTTP to etcd, no TLS",
        ),
        (
            {"PENSTOCK_CLUSTER": "http://root:secret@a:2379"},
            "PENSTOCK_CLUSTER: etcd at a: no user and password",
        ),
        ({"PENSTOCK_CLUSTER": "http://a:2379/etcd"}, "PENSTOCK_CLUSTER: 'http://a:2379/etcd' is not an etcd"),
        ({"PENSTOCK_CLUSTER": " , "}, "PENSTOCK_CLUSTER: ' , ' names no etcd endpoint"),
        ({"PENSTOCK_CLUSTER": "http://a:port"}, "PENSTOCK_CLUSTER: Port could not be cast"),
        ({"PENSTOCK_LOG_LEVEL": "loud"}, "PENSTOCK_LOG_LEVEL: must be debug, info, warning or error"),
        ({"PENSTOCK_BROKER_ID": "one"}, "PENSTOCK_BROKER_ID: Input should be a valid integer"),
        (
            {"PENSTOCK_TOPIC_DEFAULTS": "retention.ms"},
            "PENSTOCK_TOPIC_DEFAULTS: 'retention.ms' is not name=value",
        ),
        ({"PENSTOCK_TOPIC_DEFAULTS": "no.such=1"}, "PENSTOCK_TOPIC_DEFAULTS: unknown topic config no.such"),
        ({"PENSTOCK_TOPIC_DEFAULTS": "segment.bytes=x"}, "PENSTOCK_TOPIC_DEFAULTS: segment.bytes=x"),
        (
            {"PENSTOCK_TOPIC_DEFAULTS": "unclean.leader.election.enable=true"},
            "PENSTOCK_TOPIC_DEFAULTS: unclean.leader.election.enable=true: no such election comes by itself; "
            "`penstock cluster elect",
        ),
    ],
)
def test_a_wrong_value_is_told_in_one_line_with_where_it_came_from(
    environment: dict[str, str], complaint: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load({}, environment, None)
    assert str(caught.value).startswith(complaint)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("listne = 1\n", "listne: there is no such setting; `penstock config` lists them"),
        ('memory = "much"\n', "memory: 'much' is not a size"),
        ("listen = \n", "Invalid value"),
    ],
)
def test_a_wrong_file_is_told_with_its_name(tmp_path: Path, content: str, complaint: str) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(content)
    with pytest.raises(SettingsError) as caught:
        load({}, {}, file)
    assert str(caught.value).startswith(f"{file}: {complaint}")


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.toml: No such file"):
        load({}, {}, tmp_path / "nowhere.toml")


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        load({"listen": "x"}, {"PENSTOCK_MEMORY": "y"}, None)
    assert "--listen" in str(caught.value)
    assert "PENSTOCK_MEMORY" in str(caught.value)


def test_topic_defaults_come_from_a_table_or_from_pairs(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[topic-defaults]\n"retention.ms" = 1000\n"unclean.leader.election.enable" = false\n')
    from_file, _ = load({}, {}, file)
    assert from_file.topic_defaults == {"retention.ms": "1000", "unclean.leader.election.enable": "false"}
    from_pairs, _ = load({}, {"PENSTOCK_TOPIC_DEFAULTS": "retention.ms=5, durability=disk"}, file)
    assert from_pairs.topic_defaults == {"retention.ms": "5", "durability": "disk"}

"""Tokens: how they are stored, found, scoped, expired and revoked."""

from __future__ import annotations

import hashlib
import json
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.errors import OptionError
from wds_tools.service import tokens
from wds_tools.service.tokens import TokenChecker, create_token, parse_duration, read_tokens, revoke_token


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def test_the_file_has_mode_0600_and_contains_only_the_hash(path: Path) -> None:
    token, secret = create_token(path, name="cluster", datasets=["imagenet*"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert secret not in text
    assert secret.removeprefix(tokens.PREFIX) not in text
    assert json.loads(text)["tokens"][0]["sha256"] == hashlib.sha256(secret.encode()).hexdigest()
    assert read_tokens(path) == [token]


def test_a_secret_has_256_random_bits(path: Path) -> None:
    secrets = {create_token(path)[1] for _ in range(20)}
    assert len(secrets) == 20
    assert all(len(secret.removeprefix(tokens.PREFIX)) == 43 for secret in secrets)  # 32 bytes in base64


def test_a_token_is_found_by_its_secret_and_by_nothing_else(path: Path) -> None:
    token, secret = create_token(path)
    create_token(path)
    checker = TokenChecker(path)
    assert checker.find(secret) == token
    for wrong in ("", secret[:-1], secret + "x", token.sha256, token.id, "x" * 100_000, "\ud800"):
        assert checker.find(wrong) is None


def test_an_expired_token_is_not_found(path: Path) -> None:
    clock = Clock()
    token, secret = create_token(path, valid_seconds=60)
    checker = TokenChecker(path, clock=clock)
    clock.now = token.created + 59
    assert checker.find(secret) == token
    clock.now = token.created + 60
    assert checker.find(secret) is None


def test_a_revoked_token_is_not_found_after_the_time_to_reload(path: Path) -> None:
    timer = Clock()
    token, secret = create_token(path)
    other, other_secret = create_token(path)
    checker = TokenChecker(path, timer=timer)
    assert revoke_token(path, token.id) == token
    timer.now += tokens.RELOAD_SECONDS
    assert tokens.RELOAD_SECONDS < 2
    assert checker.find(secret) is None
    assert checker.find(other_secret) == other


@pytest.mark.parametrize("change", ["removed", "damaged", "readable by others"])
def test_no_token_is_valid_while_the_file_cannot_be_used(path: Path, change: str) -> None:
    timer = Clock()
    token, secret = create_token(path)
    checker = TokenChecker(path, timer=timer)
    good = path.read_bytes()
    if change == "removed":
        path.unlink()
    elif change == "damaged":
        path.write_bytes(good[:-9])
    else:
        path.chmod(0o644)
    timer.now += tokens.RELOAD_SECONDS
    assert checker.find(secret) is None
    path.write_bytes(good)
    path.chmod(0o600)
    timer.now += tokens.RELOAD_SECONDS
    assert checker.find(secret) == token


@pytest.mark.parametrize(
    ("patterns", "allowed", "refused"),
    [
        (["imagenet*"], ["imagenet", "imagenet/train"], ["photos", "old/imagenet"]),
        (["a", "b/*"], ["a", "b/c"], ["aa", "b", "A"]),
        (["*"], ["anything", "any/thing"], []),
    ],
)
def test_a_token_is_for_the_datasets_of_its_patterns(
    path: Path, patterns: list[str], allowed: list[str], refused: list[str]
) -> None:
    token, _ = create_token(path, datasets=patterns)
    assert [name for name in (*allowed, *refused) if token.allows(name)] == allowed


def test_an_unknown_id_is_refused_with_the_known_ones(path: Path) -> None:
    token, _ = create_token(path)
    with pytest.raises(OptionError, match=f"no token with the id 'nonsense'; it has {token.id}"):
        revoke_token(path, "nonsense")


def test_a_file_that_others_can_read_is_refused_with_the_remedy(path: Path) -> None:
    create_token(path)
    path.chmod(0o640)
    with pytest.raises(OptionError, match=r"mode 0640\): run `chmod 600"):
        TokenChecker(path)


def test_a_missing_file_is_refused_with_the_remedy(path: Path) -> None:
    with pytest.raises(OptionError, match="does not exist: create it with `wds-tools token create"):
        TokenChecker(path)


@given(data=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_other_content_is_refused_by_its_name(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "hostile-tokens.json"
    path.write_bytes(data)
    path.chmod(0o600)
    with pytest.raises(OptionError, match="is not a token file"):
        read_tokens(path)


@pytest.mark.parametrize("change", [{"sha256": "00"}, {"expires": "soon"}, {"datasets": 3}, {"id": 7}, {"more": 1}])
def test_an_invalid_entry_is_refused(path: Path, change: dict[str, object]) -> None:
    create_token(path)
    raw = json.loads(path.read_text())
    raw["tokens"][0].update(change)
    path.write_text(json.dumps(raw))
    with pytest.raises(OptionError, match="is not a token file"):
        read_tokens(path)


def test_tokens_that_are_created_at_the_same_time_are_all_stored(path: Path) -> None:
    threads = [threading.Thread(target=create_token, args=(path,)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_tokens(path)) == 16


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("5m", 300), ("2 h", None), ("1w", 604_800), ("0d", None)])
def test_a_duration_is_parsed_or_refused(text: str, seconds: int | None) -> None:
    if seconds is None:
        with pytest.raises(OptionError, match="is not a duration"):
            parse_duration(text)
    else:
        assert parse_duration(text) == seconds

"""Checksums of lines: of a log, every flipped bit is found."""

import json

import pytest

from bertvision.disk import seal_line, unseal_line

LINE = json.dumps({"time": 1.5, "event": "größe", "scores": {"dev": {"f1": 61.25}}}, ensure_ascii=False)


def test_a_sealed_line_is_json_and_comes_back_without_its_checksum() -> None:
    sealed = seal_line(LINE)
    assert json.loads(sealed) == {**json.loads(LINE), "crc32": sealed[-10:-2]}
    assert unseal_line(sealed.encode()) == json.loads(LINE)


def test_a_line_of_an_earlier_version_is_read_as_it_is() -> None:
    assert unseal_line(LINE.encode()) == json.loads(LINE)


def test_every_flipped_bit_is_found() -> None:
    whole = seal_line(LINE).encode()
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        assert unseal_line(bytes(data)) is None, bytes(data)


@pytest.mark.parametrize("line", [b"", b"{", b'{"time": 1.5, "eve', b"[1]", b"\xff", b"[" * 100_000])
def test_what_a_kill_leaves_is_no_line(line: bytes) -> None:
    assert unseal_line(line) is None

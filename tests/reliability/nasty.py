"""Values that no one means to write."""

from functools import cache
from random import Random
from typing import Any

LONG = ["x" * 300, "y" * 5000, "a/" * 3000, "é" * 200, "z" * 1_000_000]
TEXTS = [
    "", " ", "\0", "a\0b", "\udcff", "\ud800x", "\u202eabc", "\u2028", "~nobody_here/x", "../../etc/passwd", "/", ".",
    "..", "/proc/self/mem", "/dev/null/x", "con", "-1", "--help", "%s%n{0}{x}", "null", "None", "true", "[", "{", "=",
    "a=b=c", "é\u0301", "💥" * 50, "file:///etc", "ftp://x", "s3://", "://", "C:\\x", "*", "'", '"', "\\", "\r\n", "\t",
    "default", "<script>alert(1)</script>",
]  # fmt: skip
NUMBERS = [
    "0", "-0", "-1", "1", "2", "1e300", "-1e300", "1e400", "nan", "inf", "-inf", "99999999999", "4294967296",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "0.1", "1e-320", "0x10", "1_000", "9" * 400,
    "9" * 5000, "1." + "1" * 5000, "1e99999999", "0.1234567", "2020-01-01", "2020-99-01", "00:00:00",
]  # fmt: skip
TABLES = [
    "[]", "{}", "[[]]", "[{}]", "[" * 15 + "]" * 15, "[" * 30 + "]" * 30, "[" * 100_000, "{a=" * 30 + "1" + "}" * 30,
    "[1, 2, 3]", '["a", 1, true]', "[true]", "[nan]", "[" + "1," * 20_000 + "]", '["' + '","' * 2000 + '"]',
    "{low=1, high=2}", "{low=2, high=1}", "{low=nan, high=inf, log=true}", "{a.b.c=1}", '{""=1}', "[2020-01-01]",
]  # fmt: skip


def nasty_text(random: Random) -> str:
    """A text as a user could write it after `=`."""
    return random.choice(random.choice([NUMBERS, TEXTS, TABLES, LONG]))


def nasty_value(random: Random) -> Any:
    """A Python value."""
    return random.choice([random.choice(_values()), nasty_text(random)])


@cache
def _values() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    deep: Any = 1
    for _ in range(5000):
        deep = {"a": deep}
    return [
        None, True, False, 0, -1, 2**31, 2**63, -(2**63), 10**400, 10**5000, 0.5, float("nan"), float("inf"), 1e300,
        1e-320, 5e-324, b"bytes", object(), print, int, {1, 2}, (1, "a"), [], {}, endless, deep, [None], [[]],
        {"a": None}, {1: 2}, {None: 1}, range(10**9), complex(1, 2), bytearray(3), Ellipsis, [float("nan")], [10**400],
    ]  # fmt: skip


def mutate(data: bytes, random: Random) -> bytes:
    """The same bytes with one to three mistakes."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(changed) + 1)
        end = min(len(changed), at + random.randint(1, 40))
        match random.randrange(11):
            case 0:
                if changed:
                    changed[at % len(changed)] ^= 1 << random.randrange(8)
            case 1:
                del changed[at:end]
            case 2:
                del changed[at:]
            case 3:
                changed[at:at] = changed[at:end] * random.choice([1, 2, 1000])
            case 4:
                changed[at:at] = random.choice(
                    [b"\0", b'"', b"'", b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3", b"\xed\xa0\x80"]
                )
            case 5:
                changed[at:at] = random.choice(
                    [b"\r", b"\r\n", b"\n\n", b"\t", b",", b";", b"\x85", b"\xe2\x80\xa8", b"\\"]
                )
            case 6:
                changed[at:end] = nasty_text(random).encode("utf-8", "surrogatepass")
            case 7:
                changed = bytearray(bytes(changed).replace(b"\n", random.choice([b"\r", b"\r\n", b"\n\r", b""])))
            case 8:
                changed[at:at] = random.choice([b"a" * 200_000, b"[" * 100_000, b"9" * 5000, b'{"a":' * 2000])
            case 9:
                text = bytes(changed).decode("utf-8", "replace")
                encoding = random.choice(["utf-16", "utf-16-le", "latin-1", "utf-8-sig", "cp1252", "utf-32"])
                changed = bytearray(text.encode(encoding, "replace"))
            case _:
                other = random.randrange(len(changed) + 1)
                changed[at:at] = changed[other : other + 200]
    return bytes(changed)

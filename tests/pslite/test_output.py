"""Output of nodes, line by line."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from pslite.output import Lines, Screen, Tail

chunks = st.lists(
    st.binary(max_size=20) | st.sampled_from([b"\n", b"a\nb\n", b"\n\n"]), max_size=10
)


@given(chunks)
def test_lines_are_whole_and_nothing_is_lost(parts: list[bytes]) -> None:
    stream = b"".join(parts).replace(b"\r", b"")
    lines, blocks = Lines(), []

    for part in parts:
        blocks.append(lines.feed(part.replace(b"\r", b"")))
        assert blocks[-1] == b"" or blocks[-1].endswith(b"\n")
    blocks.append(lines.close())

    ending = b"\n" if stream and not stream.endswith(b"\n") else b""
    assert b"".join(blocks) == stream + ending


def test_an_unfinished_line_waits_for_its_end() -> None:
    lines = Lines()

    assert lines.feed(b"one\ntw") == b"one\n"
    assert lines.feed(b"o") == b""
    assert lines.feed(b"\n") == b"two\n"
    assert lines.close() == b""


def test_a_line_without_end_is_shown_in_pieces() -> None:
    lines = Lines(longest=4)

    assert [lines.feed(b"abc"), lines.feed(b"def"), lines.feed(b"g\n")] == [
        b"",
        b"abcdef\n",
        b"g\n",
    ]


def test_windows_line_ends_are_line_ends() -> None:
    assert Lines().feed(b"a\r\nb\r\n") == b"a\nb\n"


def test_the_tail_holds_the_last_lines() -> None:
    tail = Tail(lines=3, width=5)

    tail.add(b"0\n")
    tail.add(b"1\n2\n3\n4\n")
    tail.add(b"long line \n\xff\n")

    assert tail.text() == ["4", "long ", "\\xff"]


def test_every_line_stands_under_its_name() -> None:
    out = io.StringIO()

    Screen(out).write("worker", "worker 3", b"one\n\nthree\n")

    assert out.getvalue() == "[worker 3] one\n[worker 3] \n[worker 3] three\n"


def test_colours_are_for_terminals() -> None:
    plain, coloured = io.StringIO(), io.StringIO()

    Screen(plain).write("server", "server 0", b"x\n")
    Screen(coloured, colour=True).write("server", "server 0", b"x\n")

    assert plain.getvalue() == "[server 0] x\n"
    assert coloured.getvalue() == "\033[36m[server 0]\033[0m x\n"


def test_bytes_that_are_no_text_are_shown_as_escapes() -> None:
    out = io.StringIO()

    Screen(out).write("worker", "worker 0", b"\xff caf\xc3\xa9\n")

    assert out.getvalue() == "[worker 0] \\xff café\n"


def test_characters_the_stream_cannot_show_are_escapes_too() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")

    Screen(out).write("worker", "worker 0", "café\n".encode())

    assert raw.getvalue() == b"[worker 0] caf\\xe9\n"

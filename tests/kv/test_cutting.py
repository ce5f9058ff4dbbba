"""Requests cut by server and size: every row once, whatever the sizes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kv.cutting import MOST_PIECES, Cut, cut_blocks, cut_keys, pieces_of
from kv.dense import share_of, shares_of
from kv.placement import SlotMap
from kv.spec import TableSpec, dense_keys

TABLES = st.lists(
    st.tuples(
        st.integers(1, 40), st.lists(st.integers(0, 300), min_size=3, max_size=3), st.booleans()
    ),
    max_size=4,
)


@given(tables=TABLES, limit=st.integers(1, 5000))
def test_every_row_is_in_one_piece_and_pieces_are_bounded(tables: list, limit: int) -> None:
    cuts = [
        Cut(dim, None, [0, *np.cumsum(counts).tolist()], may_split)
        for dim, counts, may_split in tables
    ]

    pieces = pieces_of(cuts, 3, lambda server: limit)

    for place, (_, counts, may_split) in enumerate(tables):
        for server, count in enumerate(counts):
            ranges = [
                part
                for piece in pieces
                if piece.server == server
                for part in piece.ranges
                if part.place == place
            ]
            rows = [row for part in ranges for row in range(part.start, part.stop)]
            assert rows == list(range(count))
            assert may_split or len(ranges) <= 1
    for server in range(3):
        own = [piece for piece in pieces if piece.server == server]
        assert [piece.number for piece in own] == list(range(len(own)))
        if all(may_split for *_, may_split in tables):
            assert len(own) <= 2 * MOST_PIECES
    begun: set[tuple[int, int]] = set()
    for piece in pieces:
        places = [(piece.server, part.place) for part in piece.ranges]
        assert piece.is_rest == (places[0] in begun)
        assert not begun & set(places[1:])
        begun |= set(places)


def test_a_table_that_asks_everywhere_reaches_servers_without_its_rows() -> None:
    none, some = Cut(4, None, [0, 0, 0, 0], True, True), Cut(4, None, [0, 5, 5, 5], True)

    pieces = pieces_of([none, some], 3)

    assert [[tuple(part) for part in piece.ranges] for piece in pieces] == [
        [(0, 0, 0), (1, 0, 5)],
        [(0, 0, 0)],
        [(0, 0, 0)],
    ]


def test_a_request_of_ordinary_size_is_one_piece_a_server() -> None:
    keys = np.arange(1000, dtype=np.uint64)

    cut = cut_keys(keys, 16, True, SlotMap.even(3), 3)
    pieces = pieces_of([cut], 3)

    assert [(piece.server, piece.number, piece.is_rest) for piece in pieces] == [
        (server, 0, False) for server in range(3)
    ]
    rows = np.concatenate([cut.rows(piece.server, 0, piece.ranges[0].stop) for piece in pieces])
    assert sorted(rows.tolist()) == list(range(1000))


@given(size=st.integers(1, 200_000), servers=st.integers(1, 5))
def test_servers_share_the_blocks_of_a_dense_table_and_agree_on_them(
    size: int, servers: int
) -> None:
    spec, slots = TableSpec.dense("t", (size,)), SlotMap.even(servers)

    shares = shares_of(spec, slots)
    cut = cut_blocks(shares, spec.dim)

    layout = dense_keys(spec)
    key_of = dict(zip(layout.blocks.tolist(), layout.keys.tolist(), strict=True))
    blocks = np.concatenate([share.blocks for share in shares])
    assert sorted(blocks.tolist()) == list(range(layout.keys.size))
    assert cut.bounds[-1] == layout.keys.size
    for rank, share in enumerate(shares):
        assert (share.blocks[1:] > share.blocks[:-1]).all()
        assert (share.keys[1:] > share.keys[:-1]).all()
        assert share.keys.tolist() == [key_of[b] for b in share.blocks[share.order].tolist()]
        same = share_of(spec, lambda keys, rank=rank: slots.owner_of(keys) == rank)
        np.testing.assert_array_equal(same.blocks, share.blocks)


def test_each_server_has_a_limit_of_its_own() -> None:
    cut = Cut(2, None, [0, 100, 200], True)  # 16 bytes a row and key

    pieces = pieces_of([cut], 2, lambda server: (1600, 800)[server])

    assert [(piece.server, *piece.ranges[0][1:]) for piece in pieces] == [
        (0, 0, 100),
        (1, 0, 50),
        (1, 50, 100),
    ]

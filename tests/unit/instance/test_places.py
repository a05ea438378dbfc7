"""Do places of embeddings tell content, chunk and positions, and are prefixes cut where no chunk is divided?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamactl.instance.engine.places import (
    MAX_CHUNK,
    Contents,
    count_positions,
    find_chunk_start,
    is_place,
    keep_text,
    make_places,
)
from llamactl.instance.engine.prefixes import Cells, choose_cut, choose_place

chunks = st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6)).map(
    lambda chunk: (chunk[0], max(chunk[1:]), min(chunk[1:]))
)


@given(st.lists(st.one_of(st.integers(0, 9), chunks), max_size=12))
def test_prompt_of_texts_and_chunks_is_counted_and_cut_between_them(parts: list[int | tuple[int, int, int]]) -> None:
    tokens: list[int] = []
    positions, starts = [0], []
    for part in parts:
        starts += [len(tokens)] * (1 if isinstance(part, int) else part[1])
        if isinstance(part, int):
            tokens.append(part)
            positions.append(positions[-1] + 1)
        else:
            tokens += make_places(*part)
            positions += [-1] * (part[1] - 1) + [positions[-1] + part[2]]
    for index in range(len(tokens)):
        assert find_chunk_start(tokens, index) == starts[index]
    for length, position in enumerate(positions):
        if position >= 0:
            assert count_positions(tokens, length) == position
    assert keep_text(tokens) == [part for part in parts if isinstance(part, int)]
    assert [is_place(token) for token in tokens] == [token not in range(10) for token in tokens]


def test_places_of_contents_or_shapes_that_differ_differ() -> None:
    shapes = [(1, 4, 4), (2, 4, 4), (1, 4, 2), (1, 5, 5), (1 << 30, 4, 4), (1, MAX_CHUNK, 1)]
    assert len({make_places(*shape)[1] for shape in shapes}) == len(shapes) - 1, "length alone is not told"
    assert make_places(7, 4, 4) == make_places(7, 4, 4)
    assert -1 not in make_places(0, 1, 1)


@pytest.mark.parametrize("shape", [(1, 0, 0), (1, MAX_CHUNK + 1, 1), (1, 2, 3)])
def test_impossible_chunk_is_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="a chunk of"):
        make_places(*shape)


def test_content_keeps_its_number_while_it_is_asked_for() -> None:
    contents = Contents()
    often, rare = contents.give("often"), contents.give("rare")
    for index in range(5000):
        contents.give(index)
        assert contents.give("often") == often
    assert contents.give("rare") > rare, "forgotten, and its number is not given again"


def test_prefix_goes_on_from_where_its_pictures_are_whole() -> None:
    cells = Cells(range(4, 6))
    picture = make_places(1, 40, 40)
    held = cells.prefixes[0]
    cells.extend(held, [1, 2, *picture[:30]])  # one that is decoded just now
    prompt = [1, 2, *picture, 3]
    place = choose_place(cells.prefixes, prompt, 1, can_copy=True)
    assert place is not None
    assert (place.n_kept, place.n_copied) in ((2, 0), (0, 2))


def test_idle_prefix_gives_up_whole_pictures() -> None:
    cells = Cells(range(4, 6))
    cells.extend(cells.prefixes[0], [*range(100), *make_places(1, 80, 80), 5])
    cut = choose_cut(cells.prefixes, 70, can_cut=True)
    assert cut is not None
    assert cut.n_kept == 100

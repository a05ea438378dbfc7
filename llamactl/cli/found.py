"""What was found in which directory, as `reload` and `check` say it."""

from collections.abc import Iterator, Mapping, Sequence

from llamactl.cli.output import clean_line

MAX_PLACES = 20


def format_found(found: Mapping[str, Mapping[str, Sequence[str]]], max_places: int = MAX_PLACES) -> Iterator[str]:
    """Lines for each directory: which models it has, by the directory below it that holds their files."""
    for path, places in found.items():
        yield clean_line(f"found in {path}:" + ("" if places else " no models"))
        for place, names in list(places.items())[:max_places]:
            yield clean_line("  " + (f"{place}: " if place else "") + ", ".join(names))
        if len(places) > max_places:
            yield f"  and in {len(places) - max_places} more directories: `llamactl check` shows all"

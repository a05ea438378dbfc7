"""How does what a request shows become part of its prompt, and when is it encoded?

A prompt is cut with placeholders of the right sizes: that tells how many embeddings it will have, and costs nothing.
What the context still holds of the same content is not encoded again, so encoding waits until a sequence has come to
the place, and then takes a thread of its own: one chunk at a time, at a lower priority than the thread that computes
text, and off again with it. Encoded embeddings are kept for a while, for other choices of the same request, and for
the same content in another text.
"""

import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from llamactl.instance.engine.places import MAX_CHUNK, Contents, make_places
from llamactl.instance.llama.projector import Bitmap, MediaChunk, MediaError, MediaShape, Projector

KEPT_BITMAP_BYTES = 64 << 20
KEPT_EMBEDDING_BYTES = 64 << 20
MAX_KNOWN = 4096
NICENESS = 5
"""Of the threads that encode: text that others wait for goes first."""


class ItemError(MediaError):
    """What is wrong with one of a request's pictures or sounds."""

    def __init__(self, item: int, reason: str) -> None:
        super().__init__(reason)
        self.item = item


@dataclass(eq=False)
class Span:
    """A chunk in a prompt."""

    prompt: "MediaPrompt"
    start: int
    """Of its places, the first one's index."""
    chunk: MediaChunk
    """A placeholder."""
    ordinal: int
    """Among the chunks of its item."""
    content: object
    embeddings: Any = None
    """An array of floats, once encoded and until decoded."""
    error: str = ""
    """Why it cannot be encoded."""
    is_wanted: bool = False
    """It waits for its turn, or is encoded."""

    @property
    def end(self) -> int:
        return self.start + self.chunk.n_tokens


@dataclass(eq=False)
class MediaPrompt:
    """A prompt of texts and items, in the order in which the model reads them."""

    tokens: list[int]
    spans: dict[int, Span]
    """By `start`."""
    parts: Sequence[str | int]
    """Texts, and numbers of items."""
    items: Sequence[bytes]
    shapes: Sequence[MediaShape]
    bitmaps: dict[int, Bitmap] = field(default_factory=dict)
    """Decoded items that are to be encoded soon."""


class MediaReader:
    """Makes prompts for one projector. May be used from any thread."""

    def __init__(self, projector: Projector, n_step: int) -> None:
        """`n_step`: how many embeddings can be decoded at once."""
        self.projector = projector
        self._n_step = n_step
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, MediaShape] = OrderedDict()
        """What has been decoded without a fault, by its hash."""
        self._contents = Contents()

    def read(self, parts: Sequence[str | int], items: Sequence[bytes], *, bos: int) -> MediaPrompt:
        """`parts` are texts, and numbers of items, each of which stands there once, in order. `bos`: the token that
        begins prompts, at most once. Raises ItemError.
        """
        digests = [hashlib.sha256(item).digest() for item in items]
        bitmaps: dict[int, Bitmap] = {}
        shapes = [self._read_shape(number, items[number], digests[number], bitmaps) for number in range(len(items))]
        with ExitStack() as stack:
            given: list[str | Bitmap] = []
            for part in parts:
                if isinstance(part, int):
                    placeholder = self.projector.make_placeholder(shapes[part])
                    stack.callback(placeholder.close)
                    given.append(placeholder)
                else:
                    given.append(part)
            pieces = self.projector.cut_prompt(given)
        prompt = MediaPrompt([], {}, parts, items, shapes, bitmaps)
        counts: dict[int, int] = {}
        for piece in pieces:
            if isinstance(piece, MediaChunk):
                ordinal = counts[piece.item] = counts.get(piece.item, -1) + 1
                self._place(prompt, piece, ordinal, digests[piece.item])
            else:
                prompt.tokens += piece
                if prompt.tokens[:2] == [bos, bos] and len(prompt.tokens) == len(piece):
                    del prompt.tokens[0]
        return prompt

    def _read_shape(self, number: int, data: bytes, digest: bytes, bitmaps: dict[int, Bitmap]) -> MediaShape:
        with self._lock:
            shape = self._known.get(digest)
            if shape is not None:
                self._known.move_to_end(digest)
                return shape
        try:
            bitmap = self.projector.decode(data)
        except MediaError as error:
            raise ItemError(number, str(error)) from None
        shape = bitmap.shape
        if sum(kept.n_bytes for kept in bitmaps.values()) + bitmap.n_bytes <= KEPT_BITMAP_BYTES:
            bitmaps[number] = bitmap
        if not shape.width and shape.n_samples < 2:
            raise ItemError(number, "there is no sound in it")
        with self._lock:
            self._known[digest] = shape
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        return shape

    def _place(self, prompt: MediaPrompt, chunk: MediaChunk, ordinal: int, digest: bytes) -> None:
        if not 0 < chunk.n_tokens <= MAX_CHUNK or not 0 < chunk.n_positions <= chunk.n_tokens:
            raise ItemError(chunk.item, f"it becomes {chunk.n_tokens} embeddings")
        if chunk.n_tokens > self._n_step and self.projector.is_noncausal(chunk):
            raise ItemError(
                chunk.item,
                f"it becomes {chunk.n_tokens} embeddings, which must be computed at once; set `ubatch` to so many",
            )
        content = (digest, ordinal, chunk.n_tokens)
        with self._lock:
            number = self._contents.give(content)
        start = len(prompt.tokens)
        prompt.spans[start] = Span(prompt, start, chunk, ordinal, content)
        prompt.tokens += make_places(number, chunk.n_tokens, chunk.n_positions)

    def encode(self, span: Span) -> Any:
        """Its embeddings. One at a time. Raises MediaError."""
        prompt, number = span.prompt, span.chunk.item
        with ExitStack() as stack:
            given: list[str | Bitmap] = []
            for part in prompt.parts:
                if not isinstance(part, int):
                    given.append(part)
                    continue
                if part == number:
                    bitmap = prompt.bitmaps.get(number) or self.projector.decode(prompt.items[number])
                    if number not in prompt.bitmaps:
                        stack.callback(bitmap.close)
                else:
                    bitmap = self.projector.make_placeholder(prompt.shapes[part])
                    stack.callback(bitmap.close)
                given.append(bitmap)
            # The whole prompt again: what some projectors make of a picture depends on where it stands.
            chunks = [piece for piece in self.projector.cut_prompt(given) if isinstance(piece, MediaChunk)]
        own = [chunk for chunk in chunks if chunk.item == number]
        embeddings = self.projector.encode(own[span.ordinal])
        if span.ordinal == len(own) - 1:
            prompt.bitmaps.pop(number, None)
        return embeddings


class Encoder:
    """Encodes what sequences wait for, on a thread of its own while there is something. `want` and `leave` are called
    from the engine's thread.
    """

    def __init__(self, reader: MediaReader, on_encoded: Callable[[], None]) -> None:
        """`on_encoded` is called from any thread: a span has its embeddings, or an error."""
        self.reader = reader
        self._on_encoded = on_encoded
        self._lock = threading.Lock()
        self._waiting: list[Span] = []
        self._thread: threading.Thread | None = None
        self._running: tuple[float, int] | None = None
        """Since when something is encoded, in seconds of CLOCK_MONOTONIC, and how many embeddings it becomes."""
        self._kept: OrderedDict[object, Any] = OrderedDict()
        self.n_encoded = 0
        self.n_finished = 0
        """As often something was encoded, or could not be."""

    @property
    def projector(self) -> Projector:
        return self.reader.projector

    def want(self, span: Span) -> None:
        """Its embeddings come, in order of asking, unless they are there already."""
        with self._lock:
            if span.embeddings is not None or span.is_wanted or span.error:
                return
            kept = self._kept.get(span.content)
            if kept is not None:
                self._kept.move_to_end(span.content)
                span.embeddings = kept
                return
            span.is_wanted = True
            self._waiting.append(span)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="encode", daemon=True)
                self._thread.start()

    def leave(self, span: Span) -> None:
        """Nobody waits for it any more. If it is encoded already, that goes on."""
        with self._lock:
            if span in self._waiting:
                self._waiting.remove(span)
                span.is_wanted = False

    def since_progress_s(self) -> float:
        """How long what is encoded has taken; 0 when idle. From any thread."""
        running = self._running
        return 0.0 if running is None else time.monotonic() - running[0]

    def count_step_tokens(self) -> int:
        """Embeddings of what is encoded: the more, the longer it may take. From any thread."""
        running = self._running
        return 0 if running is None else running[1]

    def close(self) -> None:
        """Waits until nothing is encoded. Nothing new may be wanted."""
        with self._lock:
            self._waiting.clear()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        # The team of threads that computes an encoder's graph inherits it, and ends with this thread.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while (span := self._pop_span()) is not None:
            self._running = time.monotonic(), span.chunk.n_tokens
            try:
                embeddings = self.reader.encode(span)
            except Exception as error:
                self._finish(span, None, str(error))
            else:
                self._finish(span, embeddings, "")
            self._on_encoded()

    def _pop_span(self) -> Span | None:
        with self._lock:
            self._running = None
            if not self._waiting:
                self._thread = None
                return None
            return self._waiting.pop(0)

    def _finish(self, span: Span, embeddings: Any, error: str) -> None:
        with self._lock:
            span.embeddings, span.error, span.is_wanted = embeddings, error, False
            self.n_finished += 1
            if embeddings is None:
                return
            self.n_encoded += 1
            self._kept[span.content] = embeddings
            while sum(len(kept) for kept in self._kept.values()) * 4 > KEPT_EMBEDDING_BYTES and len(self._kept) > 1:
                self._kept.popitem(last=False)

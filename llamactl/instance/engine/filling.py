"""Which tokens of which sequences go into the next batch?"""

from collections.abc import Iterable

from llamactl.instance.engine.cache import PrefixCache
from llamactl.instance.engine.sequence import Sequence
from llamactl.instance.llama.batch import Batch


def fill_batch(batch: Batch, running: Iterable[Sequence], cache: PrefixCache) -> None:
    """Empty the batch and fill it again: generating sequences first, so that no prompt delays them by more than one
    chunk. Each sequence is told where in the batch the logits will be that it needs.
    """
    batch.clear()
    for sequence in sorted(running, key=lambda s: s.n_pending > 1):
        assert sequence.prefix is not None
        sequence.output_index = sequence.probe_index = -1
        n_take = min(sequence.next_text, batch.room)
        probe = sequence.next_probe
        if probe is not None:
            n_take = min(n_take, probe + 1 - sequence.n_past)
        if n_take == 0:
            continue
        is_last = n_take == sequence.n_pending
        chunk = sequence.tokens[sequence.n_past : sequence.n_past + n_take]
        is_probe = probe is not None and sequence.n_past + n_take == probe + 1
        position = sequence.n_past - sequence.n_spared
        index = batch.add(sequence.prefix.id, chunk, position, output_last=is_last or is_probe)
        cache.extend(sequence.prefix, chunk)
        sequence.n_past += n_take
        if is_last:
            sequence.output_index = index
        if is_probe:
            sequence.probe_index = index

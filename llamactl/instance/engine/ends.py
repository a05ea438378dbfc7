"""When does an answer end that the model would go on with?

By what its request says (tokens, time, lines), and where its context is full. A context that shifts is never full; so
an answer without a limit of its own has one here.
"""

from llamactl.instance.engine.sequence import Sequence
from llamactl.instance.engine.shift import ContextShift


def is_at_limit(sequence: Sequence, text: str, now_s: float, n_ctx: int, shift: ContextShift | None) -> bool:
    """Whether it ends with the token that has just come; `text` is what that has made certain."""
    request = sequence.request
    if sequence.n_generated == request.max_tokens or is_at_end(sequence, n_ctx, shift):
        return True
    if request.max_predict_s is not None and now_s - sequence.first_token_s > request.max_predict_s and "\n" in text:
        return True
    return sequence.text.is_dedented


def is_at_end(sequence: Sequence, n_ctx: int, shift: ContextShift | None) -> bool:
    """Whether the context is full. One that shifts never is; there an answer without a limit of its own is at its end
    when it is longer than the context, and than any text that the model was trained with.
    """
    if shift is None:
        return len(sequence.tokens) >= n_ctx
    return sequence.request.max_tokens is None and sequence.n_generated >= max(n_ctx, shift.n_ctx_train)

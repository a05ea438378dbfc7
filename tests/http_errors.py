"""Has an error the form of its route? On OpenAI's its `code` is a word or null, on all others the HTTP status."""

from typing import Any

WORDS = {"unknown_model": "model_not_found", "queue_full": "rate_limit_exceeded"}
"""OpenAI's, by ours."""


def check_error(error: dict[str, Any], path: str, status: int, word: str | None = None) -> None:
    """`word`: OpenAI's."""
    if path.startswith("/v1/") and not path.startswith(("/v1/rerank", "/v1/health")):
        assert error["code"] == word, error
        assert "param" in error
    else:
        assert error["code"] == status, error
        assert "param" not in error

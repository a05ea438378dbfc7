"""The measurements behind scripts/bench."""

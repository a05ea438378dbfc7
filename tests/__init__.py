"""Tests: `unit` runs anywhere, `system` inside a sandbox with a real systemd."""

"""Tests under a real systemd: root inside a sandbox, where `systemctl` and `journalctl` are the sandbox's own."""

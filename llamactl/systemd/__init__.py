"""The edges to systemd: units over D-Bus, notifications, the journal, passed sockets, peers."""

"""Tests of the two child roles as processes: real llama.cpp on tiny files, a scripted supervisor, no systemd."""

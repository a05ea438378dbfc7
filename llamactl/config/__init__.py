"""What did the administrator configure, and is it right?

`load.load_config` reads everything and never fails; `permissions.check_config` looks at the world besides: may an
instance read its files? Both return findings as values. `model_keys` and `machine_keys` are the tables of all keys, and
pure. Nothing here talks to systemd or loads a model.
"""

"""What runs inside a model's own units? The two child roles: `serve`, one loaded model behind a socket, and
`measure`, what it would need.

Nothing here decides which models run. A child does what its environment says and reports; the supervisor may come and
go meanwhile.
"""

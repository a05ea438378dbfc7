"""`python -m llamactl.cli`, for where the command itself is not on the PATH."""

import sys

from llamactl.cli.main import main

sys.exit(main())

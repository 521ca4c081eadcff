"""`python -m sphere_replay` is the `sphere` command."""

import sys

from sphere_replay.cli import main

sys.exit(main())

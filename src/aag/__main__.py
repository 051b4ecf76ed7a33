"""python -m aag"""

import sys

from aag.cli import main

sys.exit(main())

"""python -m libmla bench | check"""

from libmla.command_line import main

raise SystemExit(main("libmla"))

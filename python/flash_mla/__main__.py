"""python -m flash_mla bench | check"""

from libmla.command_line import main

raise SystemExit(main("flash_mla"))

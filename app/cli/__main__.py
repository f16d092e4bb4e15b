"""``python -m app.cli`` is ``trails``."""

from app.cli.main import main

main()

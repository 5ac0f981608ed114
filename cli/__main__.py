"""``python -m cli`` is ``layl``."""

from cli.main import app

app(prog_name="layl")

"""The ``layl`` command: each module imports torch and other heavy things only inside the command that needs them."""

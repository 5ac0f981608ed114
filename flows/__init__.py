"""What Prefect runs: thin flows over the same code that the shell and DVC run."""

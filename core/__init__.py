"""What the stages must agree on: manifests, run directories, events, configuration, checkpoints."""

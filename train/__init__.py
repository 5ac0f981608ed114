"""Manifests in, checkpoints out: one engine for every recipe."""

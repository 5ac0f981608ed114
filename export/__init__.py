"""Checkpoints to shipped models: weights are chosen, exported, quantised, and what ships is what was measured."""

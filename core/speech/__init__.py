"""What prepare, train and export must agree on about speech: text, audio, features, model, scoring."""

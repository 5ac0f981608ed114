"""Raw corpora become manifests: read, check, split, publish. Nothing here trains and nothing here knows a model."""

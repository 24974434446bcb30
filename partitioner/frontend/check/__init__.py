"""The last proof: what will be called, beside eager."""

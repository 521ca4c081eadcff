"""How state becomes files: trees of tensors and plain values, written whole or not at all."""

"""Pages, state slots and the prefix tree, without torch."""

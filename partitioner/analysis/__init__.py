"""Questions about the nouns. Nothing here changes one; every stage may ask."""

"""The only place where a result becomes text. Strings from captures are untrusted: each renderer escapes them here."""

"""One engine for all entry points: measure, judge, decide, apply or refuse, record."""

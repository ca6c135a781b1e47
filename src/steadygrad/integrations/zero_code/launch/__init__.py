"""Start a program under guard, arm its processes, report its end. Little of it imports torch."""

"""What running steps again leaves as it was: what the program keeps in its objects, and what it would print."""

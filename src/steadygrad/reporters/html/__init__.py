"""One HTML file that tells of one run or of several, and opens anywhere without a network."""

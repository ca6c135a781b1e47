"""What follows a refused or harmful update: its analysis, retries, rollback."""

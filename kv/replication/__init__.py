"""Copies of rows on other servers: the log that carries them, and what happens when one fails."""

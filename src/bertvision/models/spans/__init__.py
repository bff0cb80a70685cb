"""Models for a user's own questions on passages: `bertvision fit questions.json`."""

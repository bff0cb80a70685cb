"""The published experiments and their scores, and the command that runs them and shows published beside measured."""

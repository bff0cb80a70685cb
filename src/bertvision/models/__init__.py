"""Models for a user's own data: `fit`, the estimators, and loading what they saved."""

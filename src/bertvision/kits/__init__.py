"""Kits: heads of several tasks on one encoder that was not fine-tuned; new text goes through it once for all."""

from bertvision.kits.kit import Kit, load

__all__ = ["Kit", "load"]

"""Training loops: fine-tuning the encoder (`finetune`), and all heads in one pass (`train`)."""

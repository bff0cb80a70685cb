"""What learns: the encoder, a little (`finetune`), and then the whole set of heads in one pass (`heads`)."""

"""What a decoder is: its configuration and its weights, whatever file they came from."""

"""One short decoder for the Llama-shaped family on the CPU; everything else keeps transformers."""

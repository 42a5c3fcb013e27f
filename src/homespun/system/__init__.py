"""This machine: files, the terminal, the CPU, and what a folder may make it do."""

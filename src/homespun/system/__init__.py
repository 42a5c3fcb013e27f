"""The local machine: files, terminal, CPU, loading of methods, and trust in run folders."""

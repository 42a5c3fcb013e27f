"""One file per method. A file here is found by its name: `homespun train furl`."""

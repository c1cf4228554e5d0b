"""One file per experiment; a new file is a new `penstock bench NAME`. See `penstock.bench.experiment`."""

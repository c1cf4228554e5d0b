"""Several brokers of one machine under one supervisor: `penstock node`."""

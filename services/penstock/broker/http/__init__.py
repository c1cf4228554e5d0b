"""The broker over HTTP: health, metrics, and JSON that answers what an operator asks at 3 a.m."""

"""The checks of `steady verify`."""

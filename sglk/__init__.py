"""sglk: deploy and tune LLM inference on any chip, by configuration."""

__version__ = "0.1.0"

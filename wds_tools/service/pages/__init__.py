"""The web page of `wds-tools serve`."""

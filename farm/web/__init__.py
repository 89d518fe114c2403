"""The farm in a browser, and its API over HTTP."""

"""Records of what happened: metrics, decisions, access log, traces and shadow policies."""

"""HTTP/1.1 messages: framing, requests, responses and the header fields a proxy adds. PURE."""

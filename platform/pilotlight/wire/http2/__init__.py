"""HTTP/2 (RFC 9113) and its header compression (RFC 7541), the server's side. Knows bytes, not gRPC, and has no socket.

Reading order: frames.py is what goes over the wire, huffman.py and hpack.py what header blocks mean, blocks.py what
is remembered of them; connection.py takes bytes and says what they ask for, outgoing.py gives bytes as fast as the
peer's windows allow, allowance.py says when a peer costs more than it brings.
"""

"""Server side of HTTP/2 (RFC 9113) and HPACK (RFC 7541), without sockets and without knowledge of gRPC.

Frames are the wire format, HPACK decodes header blocks. A Connection turns bytes into requests, with the receive
windows of FlowControl, the send windows of SendBuffer, and the FloodLimiter against control frames.
"""

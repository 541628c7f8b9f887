"""Live federations: the wire protocol, the server, the sites and their keys."""

"""The transport "peers": workers of a region pass verified chunks on to one another, so that the store is read once."""

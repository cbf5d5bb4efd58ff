"""Opens the transport that the configuration names. One that is not used is not imported.

To add a transport: write a class with the methods of `WeightTransport`, and the function that opens it, in a module of
its own; enter it here, in `config.Weights.transport`, and among the transports of `test_transport.py`.
"""

from workers.weights.transport import Site, WeightTransport


def open_transport(site: Site) -> WeightTransport:
    """Opens the transport that the configuration names. Raises `ServiceError` if it cannot be opened."""
    if site.config.weights.transport == "folder":
        from workers.weights.folder import open_folder

        return open_folder(site)
    from workers.weights.peers.exchange import open_exchange

    return open_exchange(site)
